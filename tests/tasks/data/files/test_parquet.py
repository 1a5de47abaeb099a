"""Values of Parquet that Python has not, such as the year 10000: their own rows are judged, and no others.

Ids of float32 and float16, as pandas makes whole numbers of a column with gaps.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.data.files.sources import SourceReader
from tasks.data.ids import id_of, scalar_of
from tasks.foundation.errors import DataError


def parquet(path: Path, **columns: Any) -> Path:
    rows = {"at": ["2026-10-01"] * 300, "q": ["lamp"] * 300, "title": [f"Lamp {n}" for n in range(300)]}
    pq.write_table(pa.table({**rows, **columns}), path)
    return path


FAR = pa.array([0] * 299 + [2**63 - 1], pa.int64())
BYTES = pa.array([b"text"] * 299 + [b"caf\xe9"], pa.binary())
LATIN = pa.Array.from_buffers(pa.string(), 300, BYTES.buffers())


@pytest.mark.parametrize(
    ("column", "first", "last"),
    [
        (FAR.cast(pa.timestamp("us")), dt.datetime(1970, 1, 1), "<value out of range: 9223372036854775807>"),
        (FAR.cast(pa.timestamp("ms")), dt.datetime(1970, 1, 1), "<value out of range: 9223372036854775807>"),
        (pa.array([0] * 299 + [2932897], pa.int32()).cast(pa.date32()), dt.date(1970, 1, 1), "10000-01-01"),
        (BYTES, b"text", b"caf\xe9"),
        (LATIN, "text", b"caf\xe9"),
        (LATIN.dictionary_encode(), "text", b"caf\xe9"),
    ],
)
def test_one_value_that_python_has_not_leaves_all_others_of_a_parquet_file(
    tmp_path: Path, column: pa.Array, first: object, last: object
) -> None:
    values = [row.values["until"] for row in SourceReader(parquet(tmp_path / "log.parquet", until=column))]
    assert (len(values), values[0], values[298], values[299]) == (300, first, first, last)


@pytest.mark.parametrize("inside", [FAR.cast(pa.timestamp("us")), LATIN])
def test_such_a_value_inside_a_nested_one_is_named_by_its_column(tmp_path: Path, inside: pa.Array) -> None:
    path = parquet(tmp_path / "log.parquet", more=pa.StructArray.from_arrays([inside], ["until"]))
    with pytest.raises(DataError, match=r"row 257 .*43.*'more'"):
        list(SourceReader(path))


@pytest.mark.parametrize(("kind", "most"), [(pa.float16(), 2**11), (pa.float32(), 2**24), (pa.float64(), 2**53)])
def test_ids_in_floats_are_read_as_whole_numbers_while_these_are_exact(
    tmp_path: Path, kind: pa.DataType, most: int
) -> None:
    ids = np.array([7, most - 1, most], kind.to_pandas_dtype())
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"sku": pa.array([*ids[:2], None, ids[2]], kind)}), path)
    rows = list(SourceReader(path))
    read = [id_of(row, "sku", scalar_of(row, "sku"), texts_are_values=False) for row in rows[:3]]
    assert read == ["7", str(most - 1), None]
    with pytest.raises(DataError, match=r"log\.parquet, row 4, column 'sku'.*as text"):
        id_of(rows[3], "sku", scalar_of(rows[3], "sku"), texts_are_values=False)
