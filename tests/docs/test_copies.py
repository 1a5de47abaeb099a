"""What docs/ copies from the source is up to date, and no command is missing in it."""

from __future__ import annotations

import pytest
from typer.main import get_command

from configs.schema.config import Config
from flows.cli.app import app
from tests.docs import codes, configuration, folders, json_page, proof


@pytest.mark.parametrize("copy", [codes, configuration, json_page, folders, proof])
def test_the_page_is_up_to_date(copy) -> None:
    assert copy.PAGE.read_text() == copy.page(), "write it again: make docs"


def test_every_key_of_the_configuration_has_a_meaning() -> None:
    assert configuration.unexplained(Config) == [], "give these fields a description: a noun first, with the unit"


def test_every_command_with_json_has_its_record() -> None:
    commands = get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
    with_json = {name for name, command in commands.items() if any("--json" in each.opts for each in command.params)}
    assert {name.removesuffix(" --dry-run") for name in json_page.OUTPUTS} == with_json


def test_each_statement_has_a_test_unless_it_is_unproven() -> None:
    """And each mark names a statement, which is then no unproven one."""
    stated = {name for name, statement in proof.STATEMENTS.items() if statement.proof != "unproven"}
    assert set(proof.shown_by()) == stated
