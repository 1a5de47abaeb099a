"""What docs/ copies from the source is up to date."""

from __future__ import annotations

import pytest

from configs.schema.config import Config
from tests.benchmarks.weeks import SIZES, SUMS, WEEKS, Size, week
from tests.docs import configuration, proof
from tests.docs.copies import COPIES


@pytest.mark.parametrize("copy", COPIES, ids=lambda copy: copy.__name__)
def test_the_page_is_up_to_date(copy) -> None:
    assert copy.PAGE.read_text(encoding="utf-8") == copy.page(), "write it again: make docs"


def test_every_key_of_the_configuration_has_a_meaning() -> None:
    assert configuration.unexplained(Config) == [], "give these fields a description: a noun first, with the unit"


def test_each_statement_has_a_test_unless_it_is_unproven() -> None:
    """And each mark names a statement, which is then no unproven one."""
    stated = {name for name, statement in proof.STATEMENTS.items() if statement.proof != "unproven"}
    assert set(proof.shown_by()) == stated


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size.items:,} items")
def test_a_line_of_a_week_grows_with_the_weeks_only_if_it_says_why(size: Size) -> None:
    first, second = (week(size, number) for number in WEEKS)
    grown = {one.name for one, other in zip(first, second, strict=True) if one[2:8] != other[2:8]}
    assert grown - set(SUMS) == {line.name for line in first if line.grows}
