"""Validated rows as training input: split into training and holdout, token ids, features, classes.

Row weights are summed by class and by label, and from the sums classes are balanced.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from configs.schema.model import LabelHead
from configs.schema.training import HeadsConfig
from infra.store.base import Store
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import GroupRange, HoldoutRule, RowsRef
from tasks.data.holdout import TrainingSpan, exclude_development_rows, read_sides, spared_groups, trainable
from tasks.data.label_columns import (
    entity_codes,
    label_classes,
    label_values,
    pair_mask,
    row_weights,
    used_columns,
)
from tasks.foundation.errors import DataError
from tasks.worker.model.features import Side, encode_features
from tasks.worker.model.label_heads import LABEL_TASKS
from tasks.worker.process.job import Job
from tasks.worker.process.machine import beating
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.known_pairs import KnownPositives, LineageKeys, find_known_positives
from tasks.worker.training.pair_arrays import (
    CLASSES,
    POPULARITY,
    Pairs,
    open_pair_files,
    read_pair_files,
    row_type,
    write_facts,
    write_popularity,
)
from tasks.worker.training.replay import ReplayedRows
from tasks.worker.training.row_keys import ROW_KEYS, ROWS_AT_ONCE
from tasks.worker.training.tokenised import BEGINS, ITEM_IDS, QUERY_IDS, ROW, ROWS, Recipe, open_tokens, write_tokens


@dataclass
class RowSums:
    """Sums of the weights of rows."""

    weight: float
    by_class: np.ndarray  # float64 (classes,), of the classification head
    by_value: dict[str, np.ndarray]  # float64 (values,), by label head; empty for regression

    @classmethod
    def of(cls, heads: Mapping[str, LabelHead], classes: int) -> RowSums:
        """Return sums of zero."""
        by_value = {name: np.zeros(head.outputs if head.of_names else 0) for name, head in heads.items()}
        return cls(0.0, np.zeros(classes), by_value)

    def add(self, rows: np.ndarray) -> None:
        """Add records with `weight`, `label_class` (-1: none) and `labels` (NaN: none)."""
        self.weight += float(rows["weight"].sum(dtype=np.float64))
        self.by_class += _by_value(rows["label_class"], rows["label_class"] >= 0, rows["weight"], len(self.by_class))
        for place, sums in enumerate(self.by_value.values()):
            labels = rows["labels"][:, place]
            if len(sums):
                sums += _by_value(labels, ~np.isnan(labels), rows["weight"], len(sums))


def _by_value(values: np.ndarray, known: np.ndarray, weights: np.ndarray, many: int) -> np.ndarray:
    """Return the sum of the weights of the known rows with each value, float64 (many,)."""
    return np.bincount(values[known].astype(np.int64), weights[known].astype(np.float64), many)


MADE = "pairs"  # file with the path of the folder that the machine's first worker has written


def class_weights(counts: np.ndarray, heads: HeadsConfig) -> np.ndarray:
    """Return the weight of a row of each class in the classification loss, float32 (CLASSES,).

    Balanced: rows / (classes * rows of the class), so that all classes have the same total (King and Zeng 2001).

    Args:
        counts: (CLASSES,), number of the run's rows in each class, or the sum of their weights.
    """
    if heads.classification is None or heads.classification.loss != "balanced":
        return np.ones(CLASSES, dtype=np.float32)
    return (counts.sum() / (np.count_nonzero(counts) * np.where(counts, counts, 1))).astype(np.float32)


class TrainingRows:
    """The training rows of spans, read again in each iteration, so that no text stays in memory.

    `rule` selects them; None: the configured rule, if these are all spans of the lineage.
    """

    def __init__(self, store: Store, refs: Sequence[RowsRef], config: Config, rule: HoldoutRule | None = None) -> None:
        self.refs, self.rule = refs, rule or HoldoutRule.of(config.evaluate, refs)
        self.spans = [TrainingSpan(store, ref, self.rule, used_columns(config)) for ref in refs]

    def __iter__(self) -> Iterator[pa.Table]:
        for span in self.spans:
            yield from span

    def where(self, wanted: Callable[[pa.Table], np.ndarray]) -> Iterator[pa.Table]:
        """Yield the training rows that `wanted` selects, bool (rows,); no text of another row is hashed."""
        for span in self.spans:
            yield from span.where(wanted)


def first_rows(rows: Iterable[pa.Table], count: int) -> list[pa.Table]:
    """Return at most the first `count` rows."""
    found: list[pa.Table] = []
    for table in rows:
        found.append(table.slice(0, count - sum(each.num_rows for each in found)))
        if sum(each.num_rows for each in found) == count:
            break
    return found


def make_pairs(rows: Iterable[pa.Table], parts: ModelParts, config: Config) -> Pairs:
    """Return some training rows as arrays; `rows` is iterated over more than once."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        tokens, pairs = Path(name) / "tokens", Path(name) / "pairs"
        tokens.mkdir()
        pairs.mkdir()
        write_tokens(tokens, rows, _recipe(parts, config))
        _write_pairs(pairs, [(tokens, rows)], 1, parts, config)
        kind = row_type(parts.features, len(config.heads.of_labels))
        known = find_known_positives(_read_keys(pairs / ROWS, kind), (pairs / ROWS).stat().st_size // kind.itemsize)
        return read_pair_files(pairs, known, parts.features, parts.model.pad)


def open_pairs(
    job: Job,
    training: TrainingRows,
    replayed: ReplayedRows,
    known: KnownPositives,
    parts: ModelParts,
    barrier: Callable[[], object],
) -> Pairs:
    """Return all training rows of a run, in files that one worker of each machine writes for all.

    The files are deleted once all workers have opened them: the system keeps them while they are in use.

    Args:
        replayed: come last. They differ from run to run, so their tokens are not kept in the workspace.
        barrier: waits for every worker of the stage.

    Raises:
        DataError: all rows have the weight 0.
    """
    rank = job.rank
    if rank.local:
        made = Path(job.machine.wait_for(MADE, "the training rows").decode())
        pairs = open_pair_files(made, known, parts.features, parts.model.pad)
        barrier()
        return _teaching(pairs, job.config)
    with job.scratch() as folder:
        recipe, again = _recipe(parts, job.config), folder / "replayed"
        beat = job.machine.beat
        tokens = [open_tokens(job.store, span, recipe, beat)[0] for span in training.spans]
        again.mkdir()
        write_tokens(again, beating(replayed, beat), recipe)
        sources = [*zip(tokens, training.spans, strict=True), (again, replayed)]
        _write_pairs(folder, sources, len(tokens), parts, job.config, beat)
        pairs = open_pair_files(folder, known, parts.features, parts.model.pad)
        if rank.world > 1:  # through a file: the work can exceed a process group's timeout
            job.machine.publish(MADE, str(folder).encode())
        barrier()
    return _teaching(pairs, job.config)


def _teaching(pairs: Pairs, config: Config) -> Pairs:
    """Return `pairs`. Raises DataError: all rows have the weight 0."""
    if not pairs.mean_weight:
        raise DataError(
            f"every row has the weight 0 in column {config.train.row_weight!r}, so there is nothing to learn; name "
            "another column, or set train.row_weight=null"
        )
    return pairs


def _recipe(parts: ModelParts, config: Config) -> Recipe:
    most = config.train.max_tokens
    return Recipe(parts.tokenizer, most.query, most.item, parts.model.shape.prompts, parts.features.entity)


def _write_pairs(
    folder: Path,
    sources: Sequence[tuple[Path, Iterable[pa.Table]]],
    own: int,
    parts: ModelParts,
    config: Config,
    beat: Callable[[], object] = lambda: None,
) -> None:
    """Write the files for `open_pair_files`, with some thousand rows in memory at a time.

    Args:
        sources: folders with the tokens of rows, each with these rows.
        own: number of sources with the run's own rows; they come first, then replayed ones.
        beat: called as the work goes on.
    """
    heads = config.heads.of_labels
    kind, ids = row_type(parts.features, len(heads)), (QUERY_IDS, ITEM_IDS)
    counts, begins = [0] * len(sources), dict.fromkeys(BEGINS, 0)
    sums, last = RowSums.of(config.heads.of_labels, CLASSES), np.zeros(1, dtype=kind)
    with contextlib.ExitStack() as opened:
        out = {name: opened.enter_context((folder / name).open("wb")) for name in (ROWS, *ids)}
        for number, (tokens, tables) in enumerate(sources):
            with (tokens / ROWS).open("rb") as held:
                for table in beating(tables, beat):
                    rows = _records(np.fromfile(held, ROW, table.num_rows), table, parts, config)
                    for name, begin in begins.items():
                        rows[name] += begin
                    out[ROWS].write(rows.tobytes())
                    counts[number] += len(rows)
                    sums.add(rows)
                ends = np.fromfile(held, ROW, 1)
            for name in begins:
                begins[name] += int(ends[name][0])
                last[name] = begins[name]
            for name in ids:
                with (tokens / name).open("rb") as some:
                    shutil.copyfileobj(some, out[name])
        out[ROWS].write(last.tobytes())
    mean = sums.weight / max(sum(counts), 1)
    balance = {name: LABEL_TASKS[name].balance(sums.by_value[name], head) for name, head in heads.items()}
    if config.heads.contrastive is not None and config.heads.contrastive.logq:
        item, query = (folder / name for name in POPULARITY)  # only pairs count for queries, all rows for items
        write_popularity(folder / ROWS, kind, sum(counts), "item_key", item)
        write_popularity(folder / ROWS, kind, sum(counts), "query_key", query, only="pair")
    write_facts(folder, sum(counts[:own]), class_weights(sums.by_class, config.heads), balance, mean)


def _records(tokens: np.ndarray, table: pa.Table, parts: ModelParts, config: Config) -> np.ndarray:
    """Return the records of a table's rows, `row_type` (rows,); `tokens` ROW (rows,) are theirs."""
    heads = config.heads.of_labels
    rows = np.zeros(table.num_rows, dtype=row_type(parts.features, len(heads)))
    for name in ROW.names or ():
        rows[name] = tokens[name]
    rows["pair"] = pair_mask(table, config.heads)
    rows["label_class"] = label_classes(table, config.heads)
    rows["entity"] = entity_codes(table, parts.features.entity)
    rows["weight"] = row_weights(table, config.train.row_weight)
    for place, head in enumerate(heads.values()):
        rows["labels"][:, place] = label_values(table, head)
    sides: tuple[Side, ...] = ("query", "item")
    for side in sides:
        features = encode_features(parts.of(side).features, table, side)
        rows[f"{side}_numeric"], rows[f"{side}_categorical"] = features.numeric, features.categorical
    return rows


def _read_keys(path: Path, kind: np.dtype) -> Iterator[np.ndarray]:
    """Yield the rows in a file as ROW_KEYS; the extra last record is no pair."""
    with path.open("rb") as file:
        while len(rows := np.fromfile(file, kind, ROWS_AT_ONCE)):
            keys = np.empty(len(rows), dtype=ROW_KEYS)
            for name in ROW_KEYS.names or ():
                keys[name] = rows[name]
            yield keys


def read_training_rows(job: Job, inputs: TrainInputs) -> tuple[TrainingRows, pa.Table]:
    """Return the training rows, and the newest `train.evaluate_rows` holdout rows of these and earlier spans.

    Raises:
        DataError: all rows are held out.
    """
    training = TrainingRows(job.shared, inputs.rows, job.config, _training_rule(job.config, inputs))
    if next(iter(training), None) is None:
        rows = sum(ref.rows for ref in inputs.rows)
        raise DataError(
            f"span {job.spec.span.name}: no training rows left: all {rows} rows are in the holdout, or near-duplicates "
            "of it"
        )
    return training, _newest_holdout(job, (*inputs.history, *inputs.rows))


def _rule(config: Config, inputs: TrainInputs) -> HoldoutRule:
    return HoldoutRule.of(config.evaluate, (*inputs.history, *inputs.rows))


def _training_rule(config: Config, inputs: TrainInputs) -> HoldoutRule:
    """Return the holdout rule without the run's development rows on its training side."""
    return exclude_development_rows(_rule(config, inputs), config, inputs.rows)


def run_spares(config: Config, inputs: TrainInputs) -> dict[str, GroupRange]:
    """Return the groups that a run leaves out of its training as development rows, by span."""
    return spared_groups(_rule(config, inputs), _training_rule(config, inputs), inputs.rows)


def lineage_keys(job: Job, inputs: TrainInputs) -> LineageKeys:
    """Return the keys of all rows of the lineage so far, training and holdout, and of the golden set."""
    replayed = replayed_rows(job, inputs)
    heads = job.config.heads
    return LineageKeys(job.shared, inputs.rows, inputs.history, inputs.golden, heads, replayed, inputs.positives)


def replayed_rows(job: Job, inputs: TrainInputs) -> ReplayedRows:
    """Return the replayed rows of earlier spans: the share `train.replay` of the run's pairs."""
    return ReplayedRows.of(job.shared, job.config, inputs.rows, inputs.history, inputs.parent, inputs.replayed)


def read_development_rows(job: Job, inputs: TrainInputs) -> pa.Table | None:
    """Return the development rows of a run, in order; None without `train.keep_best`, or if no row is selected."""
    if job.config.train.keep_best is None:
        return None
    rule, wider = _rule(job.config, inputs), _training_rule(job.config, inputs)
    sides = read_sides(job.shared, inputs.rows, rule, used_columns(job.config))
    found = [training.filter(pa.array(~trainable(training, wider))) for training, _ in sides]
    if not sum(table.num_rows for table in found):
        print("no row is left for development, so the last step is kept: the run has few rows", flush=True)
        return None
    return pa.concat_tables(found, promote_options="permissive")


def _newest_holdout(job: Job, refs: Sequence[RowsRef]) -> pa.Table:
    """Return the newest `train.evaluate_rows` holdout rows, in order; older spans are read only if needed."""
    config, tables, missing = job.config, [], job.config.train.evaluate_rows
    rule = HoldoutRule.of(config.evaluate, refs)
    for _, held in read_sides(job.shared, refs, rule, used_columns(config), newest_first=True):
        tables.append(held.slice(max(0, held.num_rows - missing)))
        missing -= tables[-1].num_rows
        if not missing:
            break
    return pa.concat_tables(reversed(tables), promote_options="permissive")
