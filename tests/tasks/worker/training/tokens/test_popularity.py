import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tasks.worker.training import pair_arrays, positives
from tasks.worker.training.pair_arrays import write_popularity

KIND = np.dtype([("item_key", "<i8"), ("pair", "<f4")])


@pytest.mark.parametrize("only", [None, "pair"])
def test_it_is_the_share_of_the_rows_times_the_number_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: str | None
):
    for module in (pair_arrays, positives):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 32)
    random = np.random.default_rng(3)
    rows = np.zeros(201, dtype=KIND)  # the last record is no row
    rows["item_key"] = random.integers(0, 2**63, 40)[random.zipf(1.5, 201) % 40]
    rows["pair"] = random.random(201) < 0.6
    rows.tofile(tmp_path / "rows")
    write_popularity(tmp_path / "rows", KIND, 200, "item_key", tmp_path / "found", only)
    found = np.fromfile(tmp_path / "found", np.float32)
    counted = [row for row in range(200) if only is None or rows["pair"][row]]
    counts = Counter(rows["item_key"][counted].tolist())
    for row in range(200):
        share = counts[int(rows["item_key"][row])] / len(counted)
        assert found[row] == pytest.approx(math.log(share * len(counts)) if row in counted else 0.0, abs=1e-5)
    assert len(list(tmp_path.iterdir())) == 2, "no bucket is left"


def test_equally_frequent_keys_have_none(tmp_path: Path):
    rows = np.zeros(12, dtype=KIND)
    rows["item_key"] = np.arange(12) % 4
    rows.tofile(tmp_path / "rows")
    write_popularity(tmp_path / "rows", KIND, 12, "item_key", tmp_path / "found")
    assert np.fromfile(tmp_path / "found", np.float32) == pytest.approx(np.zeros(12), abs=1e-6)
