"""Records split into partitions, in one pass and in several."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.worker.catalogue import scatter as scattering
from tasks.worker.catalogue.scatter import PART, remove, scatter, scattered


@pytest.mark.parametrize("partitions", [1, 4, 8, 64])
def test_each_partition_gets_its_records_in_any_number_of_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(scattering, "FILES", 4)
    monkeypatch.setattr(scattering, "BATCH_RECORDS", 20)
    numbers = np.random.default_rng(3).integers(0, partitions, 500).astype(np.int32)
    numbers[numbers == partitions - 2] = 0  # one partition has no records
    records = pa.table({"id": [f"i{row}" for row in range(500)], PART: numbers})

    scatter(_batches(records), tmp_path, partitions)

    for number in range(partitions):
        wanted = [f"i{row}" for row in np.flatnonzero(numbers == number)]
        found = scattered(tmp_path, number)
        assert (found["id"].to_pylist() if found is not None else []) == wanted
        remove(tmp_path, number)
    assert list(tmp_path.iterdir()) == []


def _batches(records: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(records.to_batches(max_chunksize=64))
