"""Validated rows as training input: the split into training and holdout, token ids, features, classes."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from configs.schema.training import HeadsConfig
from infra.store.base import Store
from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import RowsRef
from tasks.data.holdout import read_sides
from tasks.data.rows import LABEL
from tasks.foundation.errors import DataError
from tasks.worker.model.features import Side, encode_features
from tasks.worker.process.job import Job
from tasks.worker.tokens.cache import ITEM_IDS, QUERY_IDS, ROWS, open_tokens, write_tokens
from tasks.worker.tokens.positives import ROWS_AT_ONCE, write_positives
from tasks.worker.tokens.tokenised import BEGINS, ROW, Recipe
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.pair_arrays import Pairs, open_pair_files, read_pair_files, row_type

POLL_SECONDS = 1.0


def label_classes(rows: pa.Table, heads: HeadsConfig) -> np.ndarray:
    """Return classes, int64 (rows,): 0, 1, or -1 without a class (no label, one between, no classification head)."""
    classes = np.full(rows.num_rows, -1, dtype=np.int64)
    if heads.classification is not None:
        labels = rows[LABEL].to_numpy().astype(np.float64)  # null becomes NaN, and NaN compares false
        classes[labels <= heads.classification.negative_max] = 0
        classes[labels >= heads.classification.positive_min] = 1
    return classes


def pair_mask(rows: pa.Table, heads: HeadsConfig) -> np.ndarray:
    """Return whether query and item belong together, bool (rows,)."""
    if heads.contrastive is not None and heads.contrastive.positives_only:
        return label_classes(rows, heads) == 1
    return np.ones(rows.num_rows, dtype=bool)


class TrainingRows:
    """The rows of spans to train on, read again each time they are iterated over: no text stays in memory."""

    def __init__(self, store: Store, refs: Sequence[RowsRef], config: Config) -> None:
        self._store, self.refs = store, refs
        self._columns, self._rule = used_columns(config), HoldoutRule.of(config.evaluate)

    def __iter__(self) -> Iterator[pa.Table]:
        for training, _ in read_sides(self._store, self.refs, self._rule, self._columns):
            if training.num_rows:
                yield training


def used_columns(config: Config) -> list[str]:
    """Return every column that the model uses, apart from the core ones."""
    return [*config.features.numeric, *config.features.categorical]


def first_rows(rows: Iterable[pa.Table], count: int) -> list[pa.Table]:
    """Return the first `count` rows, or all if there are fewer."""
    found: list[pa.Table] = []
    for table in rows:
        found.append(table.slice(0, count - sum(each.num_rows for each in found)))
        if sum(each.num_rows for each in found) == count:
            break
    return found


def make_pairs(rows: Iterable[pa.Table], parts: ModelParts, config: Config) -> Pairs:
    """Return some training rows as arrays; `rows` is iterated over more than once, and nothing is kept of them."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        tokens, pairs = Path(name) / "tokens", Path(name) / "pairs"
        tokens.mkdir()
        pairs.mkdir()
        write_tokens(tokens, rows, _recipe(parts, config))
        _write_pairs(pairs, [(tokens, rows)], parts, config)
        return read_pair_files(pairs, parts.features, parts.model.pad)


def open_pairs(job: Job, training: TrainingRows, parts: ModelParts, barrier: Callable[[], object]) -> Pairs:
    """Return all training rows of a run in files, which one worker of each machine makes for all of them.

    The files are deleted once all workers have opened them: the system keeps them as long as they are in use.

    Args:
        barrier: waits for every worker of the stage.
    """
    rank = job.rank
    signal = f"{job.spec.attempt_prefix}/pairs-{rank.index - rank.local}"
    if rank.local:
        while not job.store.exists(signal):
            time.sleep(POLL_SECONDS)
        pairs = open_pair_files(Path(job.store.read(signal).decode()), parts.features, parts.model.pad)
        barrier()
        return pairs
    with job.scratch() as folder:
        recipe, rule = _recipe(parts, job.config), HoldoutRule.of(job.config.evaluate)
        tokens = [open_tokens(job.store, ref, rule, recipe)[0] for ref in training.refs]
        spans = [TrainingRows(job.store, [ref], job.config) for ref in training.refs]
        _write_pairs(folder, zip(tokens, spans, strict=True), parts, job.config)
        pairs = open_pair_files(folder, parts.features, parts.model.pad)
        if rank.world > 1:  # through the store: it can take longer than a process group waits
            job.store.write(signal, str(folder).encode())
        barrier()
    return pairs


def _recipe(parts: ModelParts, config: Config) -> Recipe:
    most = config.train.max_tokens
    return Recipe(parts.tokenizer, most.query, most.item)


def _write_pairs(
    folder: Path, spans: Iterable[tuple[Path, Iterable[pa.Table]]], parts: ModelParts, config: Config
) -> None:
    """Write the files that `open_pair_files` opens, holding some thousand rows in memory at a time.

    Args:
        spans: a folder with the tokens of rows, and these rows.
    """
    kind, ids = row_type(parts.features), (QUERY_IDS, ITEM_IDS)
    count, begins = 0, dict.fromkeys(BEGINS, 0)
    with contextlib.ExitStack() as opened:
        out = {name: opened.enter_context((folder / name).open("wb")) for name in (ROWS, *ids)}
        last = np.zeros(1, dtype=kind)
        for tokens, tables in spans:
            with (tokens / ROWS).open("rb") as held:
                for table in tables:
                    rows = _records(np.fromfile(held, ROW, table.num_rows), table, parts, config)
                    for name, begin in begins.items():
                        rows[name] += begin
                    out[ROWS].write(rows.tobytes())
                    count += len(rows)
                ends = np.fromfile(held, ROW, 1)
            for name in begins:
                begins[name] += int(ends[name][0])
                last[name] = begins[name]
            for name in ids:
                with (tokens / name).open("rb") as some:
                    shutil.copyfileobj(some, out[name])
        out[ROWS].write(last.tobytes())
    for name in ("item_key", "text_key"):
        write_positives(_belonging(folder / ROWS, kind, name), count, folder, name)


def _records(tokens: np.ndarray, table: pa.Table, parts: ModelParts, config: Config) -> np.ndarray:
    """Return the records of the rows of a table, `row_type` (rows,), from their tokens, ROW (rows,)."""
    rows = np.zeros(table.num_rows, dtype=row_type(parts.features))
    for name in ROW.names or ():
        rows[name] = tokens[name]
    rows["pair"] = pair_mask(table, config.heads)
    rows["label_class"] = label_classes(table, config.heads)
    sides: tuple[Side, ...] = ("query", "item")
    for side in sides:
        features = encode_features(parts.features, table, side)
        rows[f"{side}_numeric"], rows[f"{side}_categorical"] = features.numeric, features.categorical
    return rows


def _belonging(path: Path, kind: np.dtype, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the keys of queries, and the keys of this name, of the rows in a file that are pairs."""
    with path.open("rb") as file:
        while len(rows := np.fromfile(file, kind, ROWS_AT_ONCE)):
            pairs = rows[rows["pair"] > 0]
            yield pairs["query_key"], pairs[name]


def read_training_rows(job: Job, inputs: TrainInputs) -> tuple[TrainingRows, pa.Table]:
    """Return the training rows, and the newest holdout rows of these spans and those before: `train.evaluate_rows`.

    Raises:
        DataError: all rows are held out.
    """
    training = TrainingRows(job.store, inputs.rows, job.config)
    if next(iter(training), None) is None:
        rows = sum(ref.rows for ref in inputs.rows)
        raise DataError(
            f"span {job.spec.span.name}: all {rows} rows are held out, or like one that is; none is left to train on"
        )
    return training, _newest_holdout(job, (*inputs.history, *inputs.rows))


def _newest_holdout(job: Job, refs: Sequence[RowsRef]) -> pa.Table:
    """Return at most `train.evaluate_rows` holdout rows, in order; no span is read that is not needed."""
    config, tables, missing = job.config, [], job.config.train.evaluate_rows
    rule = HoldoutRule.of(config.evaluate)
    for _, held in read_sides(job.store, refs, rule, used_columns(config), newest_first=True):
        tables.append(held.slice(max(0, held.num_rows - missing)))
        missing -= tables[-1].num_rows
        if not missing:
            break
    return pa.concat_tables(reversed(tables), promote_options="permissive")
