"""--json-schema: no key without a meaning, and no need for a command's own arguments."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter

from flows.cli.app import all_commands
from flows.cli.terminal.command import COMMANDS, MEANINGS, json_schema, keys
from tests.support.processes.command import call


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    all_commands()


def test_every_key_has_a_meaning() -> None:
    without = {
        f"{title}.{name}"
        for command in COMMANDS.values()
        if command.prints
        for title, name, value in keys(json_schema(*command.prints))
        if "description" not in value and "$ref" not in value
    }
    assert sorted(without) == [], "give these fields a description: a noun first, with the unit"


def test_every_shared_meaning_is_used() -> None:
    plain = [TypeAdapter(kind).json_schema() for command in COMMANDS.values() for kind in command.prints]
    used = {name for schema in plain for _, name, value in keys(schema) if "description" not in value}
    assert sorted(set(MEANINGS) - used) == []


def test_it_needs_no_argument_and_no_workspace(capsys: pytest.CaptureFixture[str]) -> None:
    schema = call(capsys, "search", "--json-schema").json
    assert schema["properties"]["query"] == {"title": "Query", "type": "string", "description": MEANINGS["query"]}


def test_a_command_with_two_outputs_has_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(call(capsys, "backfill", "run", "--json-schema").json["anyOf"]) == 2
