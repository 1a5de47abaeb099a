"""Arrays in files have the elements of the array, and are read in few reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tasks.worker.training import record_files
from tasks.worker.training.record_files import Column, RecordFile

KIND = np.dtype([("key", "<i8"), ("pair", "<f4"), ("numbers", "<f4", (2,)), ("none", "<i8", (0,))], align=True)


@pytest.fixture
def records(tmp_path: Path) -> np.ndarray:
    """Forty records in the file `records`."""
    random = np.random.default_rng(3)
    values = np.zeros(40, KIND)
    values["key"], values["pair"], values["numbers"] = random.integers(0, 99, 40), np.arange(40), random.random((40, 2))
    values.tofile(tmp_path / "records")
    return values


@pytest.mark.parametrize("field", ["key", "pair", "numbers", "none"])
@pytest.mark.parametrize("part", [slice(None), slice(None, -1), slice(3, 30)])
def test_a_field_is_indexed_like_an_array(tmp_path: Path, records: np.ndarray, field: str, part: slice):
    column, array = Column(RecordFile(tmp_path / "records", KIND), field)[part], records[field][part]
    (tmp_path / "records").unlink()
    assert len(column) == len(array)
    for rows in (np.array([5, 0, 5, -1, 26]), np.array([], dtype=np.int64), np.arange(len(array)), np.array([0, 9, 9])):
        assert column[rows].dtype == array.dtype
        assert column[rows].tolist() == array[rows].tolist()
    assert np.asarray(column).tolist() == array.tolist()


def test_neighbours_of_a_file_of_numbers_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(record_files, "NEAR_BYTES", 40)
    values = np.arange(100, 200, dtype=np.int32)
    values.tofile(tmp_path / "ids")
    column, reads = Column(RecordFile(tmp_path / "ids", np.int32)), []
    read = record_files.os.pread
    monkeypatch.setattr(record_files.os, "pread", lambda *arguments: reads.append(arguments) or read(*arguments))
    rows = np.array([7, 8, 18, 50, 51, 3, 8])
    assert column[rows].tolist() == values[rows].tolist()
    assert len(reads) == 2


def test_the_fields_of_a_batch_are_read_at_once(tmp_path: Path, records: np.ndarray, monkeypatch: pytest.MonkeyPatch):
    file, rows = RecordFile(tmp_path / "records", KIND), np.array([4, 31])
    assert Column(file, "key")[rows].tolist() == records["key"][rows].tolist()
    monkeypatch.setattr(record_files.os, "pread", never_read)
    assert Column(file, "pair")[rows].tolist() == records["pair"][rows].tolist()
    monkeypatch.undo()
    for others in range(record_files.REMEMBERED):
        assert Column(file, "pair")[np.arange(others + 1)].tolist() == list(range(others + 1))
    monkeypatch.setattr(record_files.os, "pread", never_read)
    with pytest.raises(AssertionError, match="read"):
        Column(file, "pair")[rows]


def never_read(*_: object) -> bytes:
    raise AssertionError("it was read")


@pytest.mark.parametrize("count", [0, 1, 7, 64])
def test_a_sorted_column_is_searched_like_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int):
    monkeypatch.setattr(record_files, "INDEXED", 8)
    values = np.sort(np.random.default_rng(count).integers(0, 50, count))
    values.tofile(tmp_path / "sorted")
    wanted = np.arange(-1, 52)
    column = Column(RecordFile(tmp_path / "sorted", np.int64))
    assert np.searchsorted(column, wanted).tolist() == np.searchsorted(values, wanted).tolist()


def test_a_row_beyond_the_end_is_refused(tmp_path: Path, records: np.ndarray):
    with pytest.raises(IndexError, match="of a file of"):
        Column(RecordFile(tmp_path / "records", KIND), "key")[np.array([40])]


def test_what_is_read_does_not_stay_in_memory(tmp_path: Path):
    values = np.arange(2**23)
    values.tofile(tmp_path / "values")
    column = Column(RecordFile(tmp_path / "values", np.int64))
    before = resident_mib()
    for start in range(0, len(values), 2**16):
        assert int(column[np.arange(start, start + 2**16)].sum()) == int(values[start : start + 2**16].sum())
    assert resident_mib() < before + 16


def resident_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
