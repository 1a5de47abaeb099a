"""The set of ids, beside Python's own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tasks.worker.rows import seen_ids
from tasks.worker.rows.seen_ids import Hashes, SeenIds


def hashes(texts: list[str]) -> Hashes:
    return Hashes.of(pa.chunked_array([pa.array(texts, pa.string())]))


@pytest.mark.parametrize("seed", range(5))
def test_it_knows_what_a_set_knows(seed: int):
    random = np.random.default_rng(seed)
    ours, earlier, theirs = SeenIds(), SeenIds(), set[str]()
    for piece in range(40):
        texts = [f"r{number}" for number in random.integers(0, 3000, random.integers(0, 200))]
        asked = hashes(texts)
        assert ours.has(asked).tolist() == [text in theirs for text in texts]
        ours.add(asked)
        theirs.update(texts)
        if piece % 7 == 6:  # a span ends
            earlier.take(ours)
            ours, theirs = SeenIds(), set()
    every = {f"r{number}" for number in range(3000)}
    known = {text for text in every if earlier.has(hashes([text]))[0]}
    assert 1500 < len(known) < 3000
    assert earlier.has(hashes(sorted(known))).all()
    assert len(earlier._runs) < 14, "runs are merged: a look-up searches each"


def test_ids_that_share_a_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    hashed = seen_ids.hash_array
    monkeypatch.setattr(
        seen_ids, "hash_array", lambda texts, hash_key, **more: hashed(texts, hash_key=hash_key, **more) % 2
    )
    seen = SeenIds()
    both = hashes([f"r{number}" for number in range(64)])
    assert len(set(both.first)) == len(set(both.second)) == 2
    one = next(row for row in range(64) if both.first[row] == both.second[row] == 1)
    like = [row for row in range(64) if both.first[row] == 1 and both.second[row] == 0]
    seen.add(both.at(np.array([*like, one])))
    other = SeenIds()
    other.add(both.at(np.array(like)))
    assert seen.has(both.at(np.array([one]))).tolist() == [True]
    assert other.has(both.at(np.array([one]))).tolist() == [False]
