from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError, DataError
from tasks.worker import validate
from tasks.worker.rows import row_checks
from tests.support.workspace.spans import APRIL, MARCH, check, failed, job, quarantined, row, rows, write_span

LOCALES = "{expectation: expect_column_values_to_be_in_set, column: locale, arguments: {value_set: [de, en]}%s}"


def own(*entries: str) -> list[str]:
    return [f"validate.expectations=[{', '.join(entries)}]"]


@pytest.fixture
def march(store: DirectoryStore, tmp_path: Path) -> DirectoryStore:
    """100 rows, three of them with a locale that is not expected and two without any."""
    values = [*rows(95), *rows(3, start=95, locale="xx"), *rows(2, start=98, locale=None)]
    write_span(store, tmp_path, MARCH, values)
    return store


@pytest.mark.parametrize("pieces", [50_000, 30])
def test_rows_are_counted_over_all_pieces(march: DirectoryStore, monkeypatch: pytest.MonkeyPatch, pieces: int):
    monkeypatch.setattr(row_checks, "JUDGED_ROWS", pieces)
    outcome = validate.judge(job(march, overrides=own(LOCALES % "", LOCALES % ", mostly: 0.96")))
    name = "expect_column_values_to_be_in_set on locale"
    assert failed(outcome) == [name]
    assert check(outcome, name).observed == 3.0
    assert "3 of 98 rows" in check(outcome, name).sentence
    assert check(outcome, f"{name} (2)").passed
    assert outcome.rows_quarantined == 0


def test_rows_are_set_apart_where_that_is_asked(march: DirectoryStore):
    outcome = validate.judge(job(march, overrides=own(LOCALES % ", quarantine: true")))
    reason = "not as in expect_column_values_to_be_in_set on locale"
    assert outcome.reasons == {reason: 3}
    assert {(each["locale"], each["reason"]) for each in quarantined(march, outcome)} == {("xx", reason)}


def test_a_critical_expectation_stops_the_run(march: DirectoryStore):
    with pytest.raises(DataError, match="on locale: 3 of 98"):
        validate.judge(job(march, overrides=own(LOCALES % ", severity: critical")))


@pytest.mark.parametrize("pieces", [50_000, 30])
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("mean", 4.39, 4.41), ("min", 1, 1), ("max", 8, 8), ("sum", 439, 441), ("stdev", 2.069, 2.07)],
)
def test_numbers_are_those_of_all_clean_rows(
    store: DirectoryStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pieces: int,
    name: str,
    low: float,
    high: float,
):
    values = [row(number, price=float(number % 8 + 1) if number < 80 else 4.0) for number in range(100)]
    write_span(store, tmp_path, MARCH, [*values, row(100, price=1e6, query=None)])
    monkeypatch.setattr(row_checks, "JUDGED_ROWS", pieces)
    entry = "{expectation: expect_column_%s_to_be_between, column: price, arguments: {min_value: %s, max_value: %s}}"
    within, below = entry % (name, low, high), entry % (name, low - 1, low - 0.5)
    outcome = validate.judge(job(store, overrides=own(within, below)))
    assert failed(outcome) == ["query present", f"expect_column_{name}_to_be_between on price (2)"]
    found = check(outcome, f"expect_column_{name}_to_be_between on price")
    assert found.observed is not None
    assert low <= found.observed <= high
    assert "over 100 clean rows" in found.sentence


def test_tables_and_pairs_of_columns(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40))
    write_span(store, tmp_path, APRIL, rows(50, start=100))
    entries = (
        "{expectation: expect_table_row_count_to_equal, arguments: {value: 90}}",
        "{expectation: expect_column_to_exist, column: brand}",
        "{expectation: expect_column_to_exist, column: colour}",
        "{expectation: expect_column_pair_values_to_be_equal, arguments: {column_A: brand, column_B: locale}}",
        "{expectation: expect_column_proportion_of_non_null_values_to_be_between, column: label, "
        "arguments: {min_value: 0.9}}",
    )
    outcome = validate.judge(job(store, [MARCH, APRIL], overrides=own(*entries)))
    pair = "expect_column_pair_values_to_be_equal on brand, locale"
    assert failed(outcome) == ["expect_column_to_exist on colour", pair]
    assert "2026-03, 2026-04" in check(outcome, "expect_column_to_exist on colour").sentence
    assert check(outcome, pair).observed == 90.0


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (
            "{expectation: expect_column_mean_to_be_between, column: brand, arguments: {min_value: 1}}",
            "on brand, which is string, not numbers",
        ),
        (
            "{expectation: expect_column_values_to_be_between, column: brand, arguments: {min_value: 1}}",
            "on brand can't be judged",
        ),
        (
            "{expectation: expect_column_values_to_be_between, column: brand, arguments: {min: 1}}",
            "there is no argument 'min'",
        ),
    ],
)
def test_an_expectation_that_does_not_fit_its_column_is_named(march: DirectoryStore, entry: str, message: str):
    with pytest.raises(ConfigError) as raised:
        validate.judge(job(march, overrides=own(entry)))
    assert message in str(raised.value)


def test_a_column_that_an_expectation_needs_is_asked_for(march: DirectoryStore):
    entry = "{expectation: expect_column_values_to_not_be_null, column: colour}"
    with pytest.raises(DataError, match=r"'colour'; .*expectations"):
        validate.judge(job(march, overrides=own(entry)))
