"""Replay: rows of the spans before, trained on again together with a run's own.

Mixing in a part of the earlier data is the oldest means against forgetting (Robins 1995, "Catastrophic forgetting,
rehearsal and pseudorehearsal"). Which rows it is follows from their ids and the run's first step alone: the same for
every worker and every attempt, and others in the next run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from infra.store.base import Store
from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.references import RowsRef
from tasks.data.holdout import left_out_ids, split_holdout
from tasks.data.rows import ROW_ID, group_columns, read_rows


@dataclass(frozen=True)
class Replay:
    """Rows of earlier spans: those of `refs` whose hash, together with `first_step`, is below `share` of all hashes."""

    refs: tuple[RowsRef, ...]
    share: float
    first_step: int

    @classmethod
    def of(cls, share_of_pairs: float, rows: Sequence[RowsRef], history: Sequence[RowsRef], first_step: int) -> Replay:
        """Return the sample that gives a run over `rows` this share of its pairs, or the whole history if it is less.

        The share is that of the rows which the references count. In the pairs it differs by chance, and as far as the
        shares of rows held out or left out differ.
        """
        own, earlier = (sum(ref.rows for ref in refs) for refs in (rows, history))
        wanted = own * share_of_pairs / (1 - share_of_pairs)
        if not wanted or not earlier:
            return cls((), 0.0, first_step)
        return cls(tuple(history), min(1.0, wanted / earlier), first_step)

    def chosen(self, ref: RowsRef, row_ids: Iterable[str]) -> np.ndarray:
        """Return whether each row of a span is in the sample, bool (rows,)."""
        name, limit = f"{self.first_step}\n{ref.span.name}\n", self.share * 2**64
        digests = (hashlib.blake2b((name + row_id).encode(), digest_size=8).digest() for row_id in row_ids)
        return np.array([int.from_bytes(digest, "big") < limit for digest in digests], dtype=bool)


@dataclass
class ReplayedRows:
    """The training rows of a replay, read again each time they are iterated over."""

    store: Store
    replay: Replay
    rule: HoldoutRule
    columns: Sequence[str]

    def __iter__(self) -> Iterator[pa.Table]:
        wanted = [*self.columns, *group_columns(self.rule.group)]
        for ref in self.replay.refs:
            left_out = left_out_ids(self.store, ref)
            for rows in read_rows(self.store, [ref], wanted):
                sample = rows.filter(pa.array(self.replay.chosen(ref, rows[ROW_ID].to_pylist())))
                training = split_holdout(sample, self.rule, left_out).training
                if training.num_rows:
                    yield training
