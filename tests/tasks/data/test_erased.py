"""Rows with erased values, found by hash in any type of column."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tasks.data.erased import Erasures, hash_of_value


def erasures(column: str, *values: object) -> Erasures:
    return Erasures({column: frozenset(hash_of_value(column, value) for value in values)})


@pytest.mark.parametrize(
    ("column", "left"),
    [
        (pa.array(["7", "70", None, "7.0"]), ["70", None]),
        (pa.array([7.0, 70.0, None, 7.5]), [70.0, None, 7.5]),
        (pa.array(["7", "8", None]).dictionary_encode(), ["8", None]),
    ],
)
def test_a_whole_number_is_equal_to_its_text_and_null_to_nothing(column, left):
    table = pa.table({"user_id": column})
    assert erasures("user_id", "7").without(table)["user_id"].to_pylist() == left


def test_a_value_of_another_column_stays():
    table = pa.table({"item_id": ["a", "b"], "user_id": ["b", "a"]})
    assert erasures("item_id", "a").without(table)["user_id"].to_pylist() == ["a"]
    assert erasures("shop", "a").without(table) is table
