"""What docs/ copies from the source is up to date."""

from __future__ import annotations

import pytest

from configs.schema.config import Config
from tests.docs import configuration, proof
from tests.docs.copies import COPIES


@pytest.mark.parametrize("copy", COPIES, ids=lambda copy: copy.__name__)
def test_the_page_is_up_to_date(copy) -> None:
    assert copy.PAGE.read_text() == copy.page(), "write it again: make docs"


def test_every_key_of_the_configuration_has_a_meaning() -> None:
    assert configuration.unexplained(Config) == [], "give these fields a description: a noun first, with the unit"


def test_each_statement_has_a_test_unless_it_is_unproven() -> None:
    """And each mark names a statement, which is then no unproven one."""
    stated = {name for name, statement in proof.STATEMENTS.items() if statement.proof != "unproven"}
    assert set(proof.shown_by()) == stated
