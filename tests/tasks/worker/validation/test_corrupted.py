"""Spans that went wrong before they were ingested: each kind is found by validate, under a name that says what it is.

Labels that were turned round are seen where classes are uneven; of even classes only the gates can tell.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.references import RowsRef
from tasks.foundation.errors import DataError
from tasks.worker import validate
from tests.support.workspace.spans import MARCH, TYPES, check, failed, job, row, validated, write_span

Values = dict[str, Any]
THINGS = ("lamp", "chair", "kettle", "towel", "mirror", "clock")
COLOURS = ("red", "blue", "green", "white")
PLACES = ("kitchen", "bedroom", "garden", "office upstairs")


def shop_row(number: int) -> Values:
    chance = random.Random(number)
    thing, colour, place = chance.choice(THINGS), chance.choice(COLOURS), chance.choice(PLACES)
    return row(
        number,
        query=f"where can I find a good {colour} {thing} for the {place}",
        item=f"{thing.title()} of the house Acme, {colour}, made of steel and glass" + ", boxed" * chance.randrange(4),
        label=float(chance.random() < 0.8),
        price=round(chance.lognormvariate(3.0, 0.5), 2),
    )


def rows_of(count: int, start: int = 0) -> list[Values]:
    return [shop_row(number) for number in range(start, start + count)]


class Corruption(NamedTuple):
    """What is done to the first `share` of the rows, which checks must fail, and whether one of them is critical."""

    change: Callable[[Values], Values]
    names: tuple[str, ...]
    stops: bool
    share: float = 1.0
    overrides: tuple[str, ...] = ()


CORRUPTIONS = {
    "null flood in a text": Corruption(lambda v: {"query": None}, ("query present", "quarantined share"), True, 0.4),
    "null flood in a feature": Corruption(lambda v: {"price": None}, ("price drift",), False, 0.6),
    "duplicated ids": Corruption(lambda v: {"row_id": "r1000"}, ("row_id unique", "quarantined share"), True, 0.5),
    "swapped columns": Corruption(
        lambda v: {"query": v["item"], "item": v["query"]}, ("query and item in place",), True
    ),
    "another language": Corruption(
        lambda v: {"query": "wo finde ich bitte eine schöne Lampe für die Küche oben"},
        ("query language drift",),
        False,
        0.7,
    ),
    "labels turned round": Corruption(lambda v: {"label": 1 - v["label"]}, ("label drift",), False),
    "empty texts": Corruption(lambda v: {"item": "  "}, ("item length", "quarantined share"), True, 0.3),
    "truncated texts": Corruption(lambda v: {"item": v["item"][:12]}, ("item length drift",), False),
    "another unit of price": Corruption(lambda v: {"price": v["price"] * 100}, ("price drift",), False),
    "another unit of price, critical": Corruption(
        lambda v: {"price": v["price"] * 100},
        ("price drift",),
        True,
        overrides=("validate.drift.columns={price: {severity: critical}}",),
    ),
    "times in the future": Corruption(
        lambda v: {"time": v["time"].replace(year=2099)}, ("time in its span", "quarantined share"), True, 0.3
    ),
}


@pytest.fixture
def before(store: DirectoryStore, tmp_path: Path) -> RowsRef:
    return validated(store, tmp_path, rows_of(400))


def test_a_span_like_those_before_passes(store: DirectoryStore, tmp_path: Path, before: RowsRef):
    write_span(store, tmp_path, MARCH, rows_of(300, start=1000))
    assert failed(validate.run(job(store, history=[before]))) == []


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_a_corrupted_span_is_caught_by_name(store: DirectoryStore, tmp_path: Path, before: RowsRef, kind: str):
    corruption = CORRUPTIONS[kind]
    values = rows_of(300, start=1000)
    wrong = round(len(values) * corruption.share)
    values = [{**v, **corruption.change(v)} if number < wrong else v for number, v in enumerate(values)]
    write_span(store, tmp_path, MARCH, values)
    worker_job = job(store, history=[before], overrides=corruption.overrides)
    if corruption.stops:
        with pytest.raises(DataError) as raised:
            validate.run(worker_job)
        report = validate.ValidateOutcome.model_validate_json(store.read("runs/k/validate/attempt-1/report.json"))
        critical = [c.name for c in report.checks if c.severity == "critical" and not c.passed]
        assert all(f"- {name}: " in str(raised.value) for name in critical)
    else:
        report = validate.run(worker_job)
    assert set(corruption.names) <= set(failed(report))


@pytest.mark.parametrize(
    ("types", "sentence"),
    [
        ({"locale_code": TYPES["brand"]}, "locale_code is new."),
        ({"stock": "later"}, "stock is gone."),
    ],
)
def test_another_schema_is_caught_by_name(store: DirectoryStore, tmp_path: Path, types: dict[str, Any], sentence: str):
    write_span(store, tmp_path, MARCH, rows_of(300, start=1000), **{k: v for k, v in types.items() if v != "later"})
    history = validated(store, tmp_path, rows_of(400), more={"stock": TYPES["price"]} if "stock" in types else {})
    outcome = validate.run(job(store, history=[history]))
    assert failed(outcome) == ["columns as before"]
    assert check(outcome, "columns as before").sentence == sentence


def test_a_column_in_use_that_is_gone_stops_the_run(store: DirectoryStore, tmp_path: Path, before: RowsRef):
    write_span(store, tmp_path, MARCH, rows_of(300, start=1000), price="gone")  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"no column 'price'; features\.numeric names it"):
        validate.run(job(store, history=[before]))
