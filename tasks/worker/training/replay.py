"""Replay: training rows of earlier spans, mixed into a run's own ones against forgetting.

A run draws them by a hash, so each attempt and each worker has the same. Validate draws them first and writes them to
the workspace, so that no accelerator waits while the history is read. Of a history with many files only some are read:
as many as the run needs, in the third year too.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import (
    CorruptFolder,
    MissingFolder,
    commit_by_content,
    open_entry,
    open_folder,
    open_manifest,
)
from tasks.contracts.references import CheckpointRef, GroupRange, HoldoutRule, RowsRef
from tasks.data.holdout import exclude_development_rows, in_range, left_out_ids, spared_groups, split_holdout
from tasks.data.label_columns import used_columns
from tasks.data.rows import ROW_ID, ROWS_KIND, group_columns, part_name, read_files
from tasks.runs.lineage import state_of

KIND = "replayed"
READ_FOR_ONE = 4.0  # rows that are read for a replayed one, if some files are left out
FEWEST_FILES = 64  # files of a history that a run reads at least: rows of one file are often of one day
_FACTS = "facts.json"


@dataclass(frozen=True)
class Replay:
    """A sample of earlier rows: each row of `refs` whose hash with `first_step` is below `share` of the hash range."""

    refs: tuple[RowsRef, ...]
    share: float
    first_step: int

    @classmethod
    def of(cls, share_of_pairs: float, rows: Sequence[RowsRef], history: Sequence[RowsRef], first_step: int) -> Self:
        """Return the sample that makes up this share of a run over `rows`, or the whole history if that is smaller.

        The share holds for the row counts of the references. Among the pairs it is approximate: by chance, and because
        spans differ in their shares of held-out and excluded rows.
        """
        own, earlier = (sum(ref.rows for ref in refs) for refs in (rows, history))
        wanted = own * share_of_pairs / (1 - share_of_pairs)
        if not wanted or not earlier:
            return cls((), 0.0, first_step)
        return cls(tuple(history), min(1.0, wanted / earlier), first_step)

    def share_of_files(self, files: int) -> float:
        """Return the share of a history's files that a run reads; of fewer files it replays more rows each."""
        return min(1.0, max(READ_FOR_ONE * self.share, FEWEST_FILES / max(files, 1)))

    def reads(self, ref: RowsRef, name: str, share_of_files: float) -> bool:
        """Return True if a file of the span is read."""
        return _place(f"{self.first_step}\n{ref.prefix}/{name}") < share_of_files

    def select(self, ref: RowsRef, row_ids: Iterable[str], share_of_files: float = 1.0) -> np.ndarray:
        """Return bool (rows,): True if the row of the span, in a file that is read, is in the sample."""
        limit = self.share / share_of_files
        return np.array([_place(f"{self.first_step}\n{ref.span.name}\n{each}") < limit for each in row_ids], dtype=bool)


def _place(name: str) -> float:
    """Return a place from 0 to 1 by a hash."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") / 2**64


@dataclass(frozen=True)
class ReplayedRows:
    """The replayed rows of a run, read again in each iteration: from `folder` if validate wrote these, else drawn."""

    store: Store
    replay: Replay
    rule: HoldoutRule
    columns: Sequence[str]
    spares: Callable[[], Mapping[str, GroupRange]]  # returns development groups by span, which stay unseen
    folder: str | None = None

    @classmethod
    def of(
        cls,
        store: Store,
        config: Config,
        rows: Sequence[RowsRef],
        history: Sequence[RowsRef],
        parent: CheckpointRef | None,
        folder: str | None = None,
    ) -> Self:
        """Return the replayed rows of a run over `rows`: the share `train.replay` of its pairs, out of `history`."""
        rule = HoldoutRule.of(config.evaluate, (*history, *rows))
        own = spared_groups(rule, exclude_development_rows(rule, config, rows), rows)
        replay = Replay.of(config.train.replay, rows, history, parent.step if parent else 0)
        spares = functools.partial(_spares, store, parent, own)
        return cls(store, replay, rule, used_columns(config), spares, folder)

    @property
    def made_of(self) -> dict[str, Any]:
        """All that decides the rows, as JSON."""
        spared = sorted(self.spares().items())
        return {
            "of": [[ref.prefix, ref.sides] for ref in self.replay.refs],
            "share": self.replay.share,
            "first_step": self.replay.first_step,
            "rule": self.rule.model_dump(mode="json"),
            "columns": list(self.columns),
            "spared": [[span, groups.start, groups.end] for span, groups in spared],
        }

    def commit(self, prefix: str, folder: Path) -> str | None:
        """Draw the rows, and write them to the workspace; return the folder's key, None if nothing is replayed.

        Args:
            prefix: start of the folder's key; a hash of the files follows.
            folder: a new local folder for the files.

        Raises:
            MissingFolder, CorruptFolder: the rows of an earlier span are missing or damaged.
            DataError: they lack a column that is used now.
        """
        if not self.replay.refs:
            return None
        folder.mkdir(parents=True)
        writer, files = None, 0
        for table in self._drawn():
            if writer is None or writer.schema != table.schema.remove_metadata():  # a span may have other types
                if writer is not None:
                    writer.close()
                writer = pq.ParquetWriter(folder / part_name(files), table.schema.remove_metadata())
                files += 1
            writer.write_table(table.replace_schema_metadata())
        if writer is not None:
            writer.close()
        # In a file too, so that other facts give another folder.
        (folder / _FACTS).write_text(json.dumps(self.made_of), encoding="utf-8")
        return commit_by_content(self.store, prefix, folder, KIND, self.made_of)

    def __iter__(self) -> Iterator[pa.Table]:
        files = self._written() if self.replay.refs else []
        if files is None:
            yield from self._drawn()
        else:
            yield from read_files("of replayed rows", files, [*self.columns, *group_columns(self.rule.group)])

    def _written(self) -> list[Path] | None:
        """Return the files that validate wrote; None if they are missing or of no use, and the log says why."""
        if self.folder is None:
            return None
        folder = open_made_of(
            self.store, self.folder, KIND, self.made_of, "the replayed rows are drawn from the history"
        )
        return sorted(folder.glob("*.parquet")) if folder is not None else None

    def _drawn(self) -> Iterator[pa.Table]:
        manifests = [open_manifest(self.store, ref.prefix, ROWS_KIND) for ref in self.replay.refs]
        share, spares = self.replay.share_of_files(sum(len(each.files) for each in manifests)), self.spares()
        columns = [*self.columns, *group_columns(self.rule.group)]
        for ref, manifest in zip(self.replay.refs, manifests, strict=True):
            entries = [entry for entry in manifest.files if self.replay.reads(ref, entry.name, share)]
            left_out = left_out_ids(self.store, ref) if entries else None
            files = (open_entry(self.store, ref.prefix, entry) for entry in entries)
            for rows in read_files(ref.span.name, files, columns):
                sample = rows.filter(pa.array(self.replay.select(ref, rows[ROW_ID].to_pylist(), share)))
                training = split_holdout(sample, self.rule, left_out).training
                if (spared := spares.get(ref.span.name)) is not None:
                    training = training.filter(pa.array(~in_range(training, self.rule, spared)))
                if training.num_rows:
                    yield training


def _spares(store: Store, parent: CheckpointRef | None, own: Mapping[str, GroupRange]) -> dict[str, GroupRange]:
    """Return the development groups by span: of the lineage up to `parent`, and of the run's own spans."""
    return {**(state_of(store, parent).spared if parent is not None else {}), **own}


def open_made_of(store: Store, prefix: str, kind: str, made_of: dict[str, Any], instead: str) -> Path | None:
    """Return the local folder that validate wrote for a training; None if it is damaged, or made of other things.

    Args:
        made_of: facts that its manifest must have.
        instead: the way of the training without it, for the log.
    """
    try:
        folder, manifest = open_folder(store, prefix, kind)
    except (MissingFolder, CorruptFolder) as error:
        print(f"{error}; {instead}", flush=True)
        return None
    if manifest.facts != made_of:
        print(f"{prefix} was made of other rows, or by other settings, than this run's; {instead}", flush=True)
        return None
    return folder
