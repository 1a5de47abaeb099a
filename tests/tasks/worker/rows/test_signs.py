"""Signs of an export that went wrong, at the level of the counts: which are found, and which bounds they meet."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from configs.schema.validation import SignsConfig
from tasks.worker.rows.signs import SIGNS, count_signs, judge_signs
from tests.support.workspace.spans import TYPES, row

ROWS = 200
Row = dict[str, Any]


def table(change: Callable[[Row], Row] = dict, rows: int = ROWS) -> pa.Table:
    made = [change(row(number, query=f"red lamp {number}")) for number in range(rows)]
    return pa.table({name: pa.array([each[name] for each in made], kind) for name, kind in TYPES.items()})


def some(share: float, **changes: Any) -> Callable[[Row], Row]:
    return lambda each: each | changes if int(each["row_id"][1:]) < share * ROWS else each


def failed(now: pa.Table, earlier: pa.Table | None = None) -> dict[str, str]:
    before = table() if earlier is None else earlier
    checks = judge_signs(count_signs(before), len(before), count_signs(now), len(now), SignsConfig())
    return {check.name: check.severity for check in checks if not check.passed}


def test_usual_rows_have_no_sign() -> None:
    assert failed(table()) == {}
    assert failed(table(lambda r: r | {"query": r["query"].upper(), "item": f"Größe É {r['item']} <3 & 5 > 4?"})) == {}


@pytest.mark.parametrize(
    ("change", "check", "severity"),
    [
        (some(1.0, query="Lamp", item=" lamp "), "queries differ from items", "critical"),
        (some(0.99, query="shoes"), "queries differ", "critical"),
        (some(0.33, query="test test"), "queries differ", "warning"),
        (some(0.7, item="Product"), "item texts differ", "critical"),
        (some(0.1, item="StraÃŸe"), "texts readable", "warning"),
        (some(0.1, query="Stra?e"), "texts readable", "warning"),
        (some(0.1, query="itâ€™s"), "texts readable", "warning"),
        (some(0.1, item="Stra\ufffde"), "texts readable", "warning"),
        (some(0.1, item="black &amp; white"), "texts plain", "warning"),
        (some(0.1, query="<b>lamp</b>"), "texts plain", "warning"),
        (some(1.0, time=row(0)["time"]), "times differ", "warning"),
    ],
)
def test_a_sign_is_named(change: Callable[[Row], Row], check: str, severity: str) -> None:
    assert failed(table(change))[check] == severity


def test_a_row_that_comes_twice_under_another_id_is_repeated() -> None:
    twice = pa.concat_tables([table(rows=100), table(lambda r: r | {"row_id": r["row_id"] + "b"}, rows=100)])
    assert failed(twice) == {"rows differ": "warning"}


def test_what_is_usual_in_a_shop_is_no_sign() -> None:
    usual = table(some(0.6, query="shoes", item="shoes"))
    assert failed(usual, usual) == {}


def test_few_rows_are_not_judged() -> None:
    few = table(some(1.0, query="shoes"), rows=49)
    checks = judge_signs(count_signs(table()), ROWS, count_signs(few), 49, SignsConfig())
    assert len(checks) == len(SIGNS)
    assert all(check.passed and check.observed is None for check in checks)
