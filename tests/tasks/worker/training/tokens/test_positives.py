from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.worker.training import positives
from tasks.worker.training.positives import Buckets, Positives, PositivesFile


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_positives_are_those_of_all_rows_and_not_only_of_the_batch(queries: int, items: int, seed: int):
    random = np.random.default_rng(seed)
    query, key = random.integers(0, queries, 30), random.integers(0, items, 30)
    pair = random.random(30) < 0.6
    known = {(one, other) for one, other, belongs in zip(query, key, pair, strict=True) if belongs}
    alone = {one for one in range(queries) if len({other for each, other in known if each == one}) < 2}
    batch = random.permutation(30)[:8]
    found = Positives.of(query[pair], key[pair])
    expected = [[(one, other) in known and one not in alone for other in key[batch]] for one in query[batch]]
    hits = np.zeros((8, 8), dtype=bool)
    hits[found.among(query[batch], key[batch])] = True
    assert hits.tolist() == expected
    part = found.part(np.unique(query[batch]))
    for one, other in zip(part.among(query[batch], key[batch]), found.among(query[batch], key[batch]), strict=True):
        assert one.tolist() == other.tolist()
    asked = np.unique(np.append(query[batch], 99))
    whose, keys = found.lists(asked)
    assert set(zip(asked[whose], keys, strict=True)) == {
        (one, other) for one, other in known if one in asked and one not in alone
    }


@pytest.mark.parametrize("rows", [0, 5, 400])
def test_files_made_piece_by_piece_hold_what_is_sorted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
):
    monkeypatch.setattr(positives, "ROWS_AT_ONCE", 16)  # 400 rows: 32 buckets
    random = np.random.default_rng(1)
    queries = np.concatenate([[0, 2**63 - 1], random.integers(0, 2**63, 60)])
    query, key = random.choice(queries, rows), random.integers(0, 2**63, 9)[random.integers(0, 9, rows)]
    buckets = Buckets(tmp_path, "pairs", rows, 2)
    for start in range(0, rows, 37):
        buckets.add(np.stack([query[start : start + 37], key[start : start + 37]], axis=1))
    with PositivesFile(tmp_path, "item_key") as file:
        for bucket in buckets:
            file.add(bucket[:, 0], bucket[:, 1])
    whole, written = Positives.of(query, key), Positives.open(tmp_path, "item_key")
    for name in ("queries", "offsets", "keys"):
        assert np.asarray(getattr(written, name)).tolist() == getattr(whole, name).tolist(), name
    assert len(list(tmp_path.iterdir())) == 3, "no bucket is left"
