"""Jobs for worker code: a workspace with validated rows, and `Job`s over it, without runner or Prefect."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file

from configs.load import load_config
from configs.schema.config import Config
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.jobs import InferInputs, Inputs, JobSpec, TrainInputs
from tasks.contracts.outcomes import InferOutcome, TrainOutcome
from tasks.contracts.references import CatalogueRef, CheckpointRef, HoldoutRule, ModelRef, RowsRef, SpanRef
from tasks.data.label_columns import used_columns
from tasks.data.rows import CORE, ROWS_KIND, read_rows
from tasks.worker import infer, train
from tasks.worker.catalogue.build import build
from tasks.worker.catalogue.sources import Sources
from tasks.worker.process.cores import Cores
from tasks.worker.process.job import Job, PhaseClock, Rank
from tasks.worker.rows.holdout import write_held
from tasks.worker.training.row_keys import write_span_keys

torch.set_num_threads(1)  # for models this small a second thread only costs; and the same sums on every machine

TINY = [
    "model.scratch={vocab_size: 400, hidden_size: 32, layers: 1, attention_heads: 2, intermediate_size: 64, "
    "max_tokens: 64}",
    "train.max_tokens={query: 16, item: 16}",
    "train.sequence_tokens=32",
    "train.batch_rows=16",
    "train.learning_rate=3e-3",
    "train.precision=fp32",
    "train.log_every_steps=1",
    "train.checkpoint_every=4 steps",
    "train.evaluate_every_steps=5",
    "infer.max_tokens=16",
    "infer.sequence_tokens=32",
    "infer.batch_sequences=16",
    "infer.shard_rows=40",
    "evaluate.holdout_share=0.2",
]
FEATURES = [
    "features.numeric=[price]",
    "features.categorical=[locale, gift]",
    "features.query=[locale]",
    "model.interaction.kind=both",
]
CLASSIFIER = "heads.classification={weight: 0.5, input: pair, negative_max: 2, positive_min: 4}"
LABEL_HEADS = (
    "heads.multiclass={weight: 0.05, input: query, classes: [1, 2, 3, 4, 5]}",
    "heads.regression={weight: 0.05, input: pair, low: 1, high: 5}",
)
COLOURS = ("red", "blue", "green", "black", "white", "grey", "pink")
THINGS = ("shoe", "lamp", "chair", "kettle", "towel", "knife", "scarf", "mirror", "clock", "bag")


def tiny_config(*overrides: str) -> Config:
    """A model small enough for tests."""
    return load_config(None, [*TINY, *overrides])


def write_rows(store: DirectoryStore, span: str, count: int, folder: Path, distinct: int = 1000) -> RowsRef:
    """Validated rows of one span: `count` queries for coloured things, with price, locale, gift and label.

    Row i is about item i modulo `distinct`.
    """
    index = range(count)
    about = [i % distinct for i in index]
    thing = [THINGS[i * 7 % len(THINGS)] for i in about]
    colour = [COLOURS[i * 3 % len(COLOURS)] for i in about]
    table = pa.table(
        {
            "row_id": [f"{span}-{i}" for i in index],
            "time": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * count, CORE["time"]),
            "query": [f"want a {colour[i]} {thing[i]} please" + " now" * (i // 5 % 5) for i in index],
            "item": [f"{colour[i]} {thing[i]} model {about[i] % 9}" for i in index],
            "item_id": [f"{colour[i]}-{thing[i]}-{about[i]:04d}" for i in index],
            "label": pa.array([float(i % 5 + 1) for i in index]),
            "price": pa.array([None if i % 11 == 0 else 10.0 + i % 17 for i in index], pa.float64()),
            "locale": [("en", "de")[i % 2] for i in index],
            "gift": pa.array([None if i % 7 == 0 else i % 3 == 0 for i in index], pa.bool_()),
        }
    )
    return commit_rows(store, span, table, folder)


def change_rows(
    store: DirectoryStore, rows: RowsRef, span: str, change: Callable[[pa.Table], pa.Table], folder: Path
) -> RowsRef:
    """Another span, whose rows are those of `rows` after `change`."""
    table = change(pq.read_table(store.path(rows.prefix) / "part-00000.parquet"))
    return commit_rows(store, span, table, folder)


def commit_rows(store: DirectoryStore, span: str, table: pa.Table, folder: Path) -> RowsRef:
    source = folder / f"rows-{span}"
    source.mkdir(parents=True)
    pq.write_table(table, source / "part-00000.parquet")
    prefix = f"runs/fixture/validate/rows/{span}"
    commit(store, prefix, source, ROWS_KIND, {"span": span, "version": 1, "rows": table.num_rows})
    return RowsRef(span=SpanRef(name=span, version=1), prefix=prefix, rows=table.num_rows)


def all_rows(store: DirectoryStore, refs: Sequence[RowsRef], config: Config) -> pa.Table:
    """Validated rows with every column that the configuration uses, in one table."""
    return pa.concat_tables(read_rows(store, refs, used_columns(config)), promote_options="permissive")


def make_job(
    store: Store,
    config: Config,
    inputs: Inputs,
    run_key: str = "run",
    attempt: int = 1,
    rank: Rank | None = None,
) -> Job:
    """A job for one process; `rank` says which among how many."""
    spec = JobSpec(
        run_key=run_key,
        span=SpanRef(name="2026-01", version=1),
        attempt=attempt,
        submitted_as=attempt,
        workspace=store.uri,
        workers=rank.world if rank else 1,
        config=config,
        inputs=inputs,
    )
    return Job(spec, store, rank or Rank(0, 1, 0), PhaseClock(0.0))


def make_workspace(folder: Path, rows: int = 160, distinct: int = 1000) -> tuple[DirectoryStore, RowsRef]:
    """A new workspace below `folder` with one span of validated rows; equal arguments give equal rows."""
    store = DirectoryStore(folder / "workspace")
    with tempfile.TemporaryDirectory() as scratch:
        return store, write_rows(store, "2026-01", rows, Path(scratch), distinct)


def train_model(
    store: DirectoryStore, config: Config, rows: RowsRef, parent: CheckpointRef | None = None, run_key: str = "run"
) -> TrainOutcome:
    """Train one run in this process, on `rows` alone."""
    inputs = TrainInputs(rows=(rows,), history=(), parent=parent)
    return train.run(make_job(store, config, inputs, run_key=run_key))


def model_of(outcome: TrainOutcome) -> ModelRef:
    """The model that training ended with."""
    return ModelRef(version=outcome.model_version, checkpoint=outcome.checkpoint)


def infer_vectors(store: DirectoryStore, config: Config, rows: RowsRef, model: ModelRef) -> InferOutcome:
    """Embed the items of `rows` in this process."""
    return infer_alone(make_job(store, config, InferInputs(catalogue=make_catalogue(store, config, rows), model=model)))


def infer_alone(job: Job) -> InferOutcome:
    """Embed all items as the first worker, who returns the outcome."""
    outcome = infer.run(job)
    assert outcome is not None
    return outcome


def with_held(store: DirectoryStore, config: Config, *refs: RowsRef, golden: str | None = None) -> tuple[RowsRef, ...]:
    """References with the held-out side of their spans, as validate writes it."""
    rule = HoldoutRule.of(config.evaluate)
    with tempfile.TemporaryDirectory() as scratch:
        wheres = [(ref, f"runs/fixture/validate/held/{ref.span.name}") for ref in refs]
        return tuple(write_held(store, ref, rule, where, Path(scratch), Cores(()), golden) for ref, where in wheres)


def with_keys(store: DirectoryStore, config: Config, *refs: RowsRef) -> tuple[RowsRef, ...]:
    """References with the keys of their spans, as validate writes them."""
    with tempfile.TemporaryDirectory() as scratch:
        wheres = [(ref, f"runs/fixture/validate/keys/{ref.span.name}") for ref in refs]
        return tuple(
            write_span_keys(store, ref, config.heads, where, Path(scratch) / ref.span.name, Cores(()))
            for ref, where in wheres
        )


def make_catalogue(store: DirectoryStore, config: Config, *rows: RowsRef) -> CatalogueRef:
    """The catalogue of validated rows."""
    return build(store, Sources(rows, ()), (), config)


def tensors_of(store: DirectoryStore, checkpoint: CheckpointRef, file: str = "model") -> dict[str, torch.Tensor]:
    """The weights of a checkpoint, or its `optimizer` state."""
    return load_file(store.local(checkpoint.prefix) / f"{file}.safetensors")
