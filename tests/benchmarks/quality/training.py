"""A lineage trained over all spans of a data set, in this process, without Prefect.

Only the stages that a training needs are run: validate and train of each span, evaluate of the last.
"""

from __future__ import annotations

import datetime as dt
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from configs.load import load_config
from configs.schema.config import Config
from flows.demo import __main__ as demo
from flows.demo.search_log import write_shop
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.outcomes import EvaluateOutcome, TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.references import ModelRef, RowsRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.spans import SpanKind
from tasks.contracts.stages import Stage
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.data.span_versions import list_spans
from tasks.evaluate import evaluate
from tasks.planning.next_run import plan_run
from tasks.quality.row_results import RowResults, read_row_results
from tasks.runs.plan import save_plan
from tasks.runs.results import read_result
from tasks.train import model_of, train
from tasks.validate import validate
from tests.benchmarks import reviews
from tests.support.fakes.own_process import OwnProcess
from tests.support.fakes.stages import carry_out

# What all trainings here share. No gate stops a lineage; vectors between the runs need not be exact.
SETTINGS = ("evaluate.gates=[]", "release.gates=[]", "infer.precision=auto", "release.min_cosine=0.99", "compute=local")
NO_WARMUP = WarmupOutcome(
    device="cpu",
    shapes=(),
    validation_seconds=0.0,
    checkpoint_seconds=0.0,
    peak_memory_gib=0.0,
    compiled=None,
    graphs=None,
    trial_losses=(),
    trial_metrics={},
    environment={},
)


class DataSet(NamedTuple):
    """A data set: its configuration, its spans (empty: all there are), and its rows."""

    name: str
    config_file: Path
    spans: tuple[str, ...]
    source: Callable[[Path], Path]  # a folder for what is made -> the file of rows, JSON lines
    time_column: str
    span: SpanKind
    columns: Mapping[str, str]  # Millrace's name of a column -> that of the file


class Trained(NamedTuple):
    """The lineage after its last span."""

    store: Store
    config: Config
    model: ModelRef
    rows: tuple[RowsRef, ...]  # of all spans
    results: RowResults  # of the last evaluation, which is over the holdout of all spans
    seconds: float  # of training, without the start of processes


def review_data(source: Path) -> DataSet:
    """Return the quarters of a reviews file, JSON lines."""

    return DataSet(
        "reviews", reviews.CONFIG_FILE, tuple(reviews.QUARTERS), lambda scratch: source, "timestamp", SpanKind.quarter,
        reviews.COLUMNS,
    )  # fmt: skip


def demo_data() -> DataSet:
    """Return the months of the demo's shop, without the broken export."""

    def source(scratch: Path) -> Path:
        path = scratch / "shop.jsonl.gz"
        write_shop(path, demo.SPANS, demo.ROWS_PER_SPAN, demo.SEED, dt.date(2026, 1, 1))
        return path

    return DataSet("demo", demo.CONFIG_FILE, (), source, "searched_at", SpanKind.month, demo.COLUMNS)


def resolved(data: DataSet, overrides: tuple[str, ...]) -> Config:
    """Return the configuration of a training. Raises ConfigError: it can't be."""
    return load_config(data.config_file, [*SETTINGS, *overrides])


def train_over(data: DataSet, folder: Path, overrides: tuple[str, ...] = ()) -> Trained:
    """Train a new lineage over all spans, one after the other, in a new workspace in `folder`; measure the last.

    Raises:
        StageError: a stage failed, or a model was refused.
    """
    *_, last = _models(data, folder, overrides, measure_all=False)
    return last


def each_model(data: DataSet, folder: Path, overrides: tuple[str, ...] = ()) -> Iterator[Trained]:
    """Train as `train_over`, and yield the measured model of each span."""
    return _models(data, folder, overrides, measure_all=True)


def _models(data: DataSet, folder: Path, overrides: tuple[str, ...], measure_all: bool) -> Iterator[Trained]:
    config, store = resolved(data, overrides), open_store(str(folder / "workspace"))
    ingest(store, data.source(folder), Format.jsonl, data.time_column, data.span, dict(data.columns))
    seconds = 0.0
    names = data.spans or tuple(span.name for span in list_spans(store))
    for name in names:
        print(f"{data.name} {name} {' '.join(overrides)}", file=sys.stderr)
        measured = measure_all or name == names[-1]
        with (
            _in_this_process(store),
            Path(os.devnull).open("w") as nowhere,
            redirect_stdout(nowhere),
        ):  # progress of workers
            plan = plan_run(store, config, name)
            _carry_out(plan, measured)
        trained = read_result(store, plan.run_key, Stage.train)
        assert trained is not None
        seconds += trained.phases.productive
        if measured:
            yield _after(store, config, plan, seconds)


def _carry_out(plan: RunPlan, measured: bool) -> None:
    """Train the spans of a plan. Hard negatives are mined from a release, so with them all stages are run."""
    contrastive = plan.config.heads.contrastive
    if contrastive is not None and contrastive.negatives is not None:
        carry_out(plan)
        return
    save_plan(open_store(plan.workspace), plan)
    validated = validate.fn(plan)
    trained = train.fn(plan, validated, NO_WARMUP)
    if measured:
        evaluate.fn(plan, validated, NO_WARMUP, trained)


def _after(store: Store, config: Config, plan: RunPlan, seconds: float) -> Trained:
    outcomes = [
        each.outcome
        for stage in (Stage.validate, Stage.train, Stage.evaluate)
        if (each := read_result(store, plan.run_key, stage))
    ]
    validated, trained, evaluated = outcomes
    assert isinstance(validated, ValidateOutcome)
    assert isinstance(trained, TrainOutcome)
    assert isinstance(evaluated, EvaluateOutcome)
    assert evaluated.rows_key is not None
    results = read_row_results(store, evaluated.rows_key)
    return Trained(store, config, model_of(trained), (*plan.history, *validated.rows), results, seconds)


@contextmanager
def _in_this_process(store: Store) -> Iterator[None]:
    runner = OwnProcess(store)
    with patch("infra.compute.factory.make_runner", lambda config, store, stage: runner):
        yield
