"""Validated rows as training input: the split into training and holdout, token ids, features, classes."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from configs.schema.config import Config
from configs.schema.training import HeadsConfig
from infra.store.base import Store
from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import RowsRef
from tasks.data.holdout import read_sides, split_holdout
from tasks.data.rows import ITEM, ITEM_ID, LABEL, QUERY, normal_text
from tasks.foundation.errors import DataError
from tasks.worker.model.features import encode_features, joined_features
from tasks.worker.model.tokens import joined_tokens, tokenize
from tasks.worker.process.job import Job
from tasks.worker.retention.best import without_development_rows
from tasks.worker.retention.replay import Replay, ReplayedRows
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.pair_arrays import Pairs, Positives

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


def label_classes(rows: pa.Table, heads: HeadsConfig) -> np.ndarray:
    """Return classes, int64 (rows,): 0, 1, or -1 without a class (no label, one between, no classification head)."""
    classes = np.full(rows.num_rows, -1, dtype=np.int64)
    if heads.classification is not None:
        labels = rows[LABEL].to_numpy().astype(np.float64)  # null becomes NaN, and NaN compares false
        classes[labels <= heads.classification.negative_max] = 0
        classes[labels >= heads.classification.positive_min] = 1
    return classes


def label_weights(classes: np.ndarray, heads: HeadsConfig) -> np.ndarray:
    """Return what each row counts in the loss of its class, float32 (rows,); 0 for rows without one.

    Balanced: rows / (classes * rows of the class), so that all classes together count the same (King and Zeng 2001).
    """
    weights = (classes >= 0).astype(np.float32)
    if heads.classification is not None and heads.classification.loss == "balanced":
        there, place, counts = np.unique(classes[classes >= 0], return_inverse=True, return_counts=True)
        weights[classes >= 0] = (counts.sum() / (len(there) * np.maximum(counts, 1)))[place]
    return weights


def pair_mask(rows: pa.Table, heads: HeadsConfig) -> np.ndarray:
    """Return whether query and item belong together, bool (rows,)."""
    if heads.contrastive is not None and heads.contrastive.positives_only:
        return label_classes(rows, heads) == 1
    return np.ones(rows.num_rows, dtype=bool)


class TrainingRows:
    """The rows of spans to train on, read again each time they are iterated over: no text stays in memory.

    `rule` says which rows these are; None: the one of the configuration.
    """

    def __init__(self, store: Store, refs: Sequence[RowsRef], config: Config, rule: HoldoutRule | None = None) -> None:
        self._store, self._refs = store, refs
        self._columns, self._rule = used_columns(config), rule or HoldoutRule.of(config.evaluate)

    def __iter__(self) -> Iterator[pa.Table]:
        for training, _ in read_sides(self._store, self._refs, self._rule, self._columns):
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
    """Return training rows as arrays."""
    limits, pad = config.train.max_tokens, parts.model.pad
    query, item, query_features, item_features, keys, pair, label_class, texts, queries = ([] for _ in range(9))
    prompts = parts.model.shape.prompts
    for table in rows:
        query.append(tokenize(parts.tokenizer, table[QUERY].to_pylist(), limits.query, pad, prompts.query))
        item.append(tokenize(parts.tokenizer, table[ITEM].to_pylist(), limits.item, pad, prompts.item))
        query_features.append(encode_features(parts.features, table, "query"))
        item_features.append(encode_features(parts.features, table, "item"))
        keys.append(table[ITEM_ID])
        texts.append(_text_hashes(table[ITEM]))
        queries.append(_text_hashes(table[QUERY]))
        pair.append(pair_mask(table, config.heads).astype(np.float32))
        label_class.append(label_classes(table, config.heads))
    ids = pa.chunked_array([chunk for column in keys for chunk in column.chunks], pa.string())
    item_key = pc.rank(ids, tiebreaker="dense").to_numpy().astype(np.int64)
    text_key, query_key = (np.unique(np.concatenate(each), return_inverse=True)[1] for each in (texts, queries))
    belongs, classes = np.concatenate(pair), np.concatenate(label_class)
    return Pairs(
        query=joined_tokens(query),
        item=joined_tokens(item),
        query_features=joined_features(query_features),
        item_features=joined_features(item_features),
        item_key=item_key,
        text_key=text_key,
        query_key=query_key,
        positives=(Positives.of(query_key, item_key, belongs), Positives.of(query_key, text_key, belongs)),
        pair=belongs,
        label_class=classes,
        label_weight=label_weights(classes, config.heads),
    )


def _text_hashes(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a hash of each normalised text, uint64 (rows,)."""
    digests = (hashlib.blake2b(normal_text(text).encode(), digest_size=8).digest() for text in texts.to_pylist())
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def read_training_rows(job: Job, inputs: TrainInputs) -> tuple[TrainingRows, pa.Table]:
    """Return the training rows, and the newest holdout rows of these spans and those before: `train.evaluate_rows`.

    Raises:
        DataError: all rows are held out.
    """
    training = TrainingRows(job.store, inputs.rows, job.config, _training_rule(job.config, inputs.rows))
    if next(iter(training), None) is None:
        rows = sum(ref.rows for ref in inputs.rows)
        raise DataError(
            f"span {job.spec.span.name}: all {rows} rows are held out, or like one that is; none is left to train on"
        )
    return training, _newest_holdout(job, (*inputs.history, *inputs.rows))


def _training_rule(config: Config, rows: Sequence[RowsRef]) -> HoldoutRule:
    """Return the rule whose training side has no development rows of a run."""
    return without_development_rows(HoldoutRule.of(config.evaluate), config.train.keep_best, rows)


def replayed_rows(job: Job, inputs: TrainInputs) -> ReplayedRows:
    """Return the rows of the history that a run is trained on again: `train.replay` of its pairs."""
    first_step = inputs.parent.step if inputs.parent else 0
    replay = Replay.of(job.config.train.replay, inputs.rows, inputs.history, first_step)
    return ReplayedRows(job.store, replay, HoldoutRule.of(job.config.evaluate), used_columns(job.config))


def read_development_rows(job: Job, inputs: TrainInputs) -> pa.Table | None:
    """Return the development rows of a run, in order; None without `train.keep_best`, or where chance gave it none."""
    rule, wider = HoldoutRule.of(job.config.evaluate), _training_rule(job.config, inputs.rows)
    if wider == rule:
        return None
    sides = read_sides(job.store, inputs.rows, wider, used_columns(job.config))
    found = [split_holdout(held, rule).training for _, held in sides]
    if not sum(table.num_rows for table in found):
        print("no row is left for development, so the last step is kept: the run has few rows", flush=True)
        return None
    return pa.concat_tables(found, promote_options="permissive")


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
