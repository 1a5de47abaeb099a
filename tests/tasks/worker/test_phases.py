"""The phases of each stage: an import or a load is no goodput, by a clock that only the test moves."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import (
    EvaluateInputs,
    HealthInputs,
    InferInputs,
    Inputs,
    ReleaseInputs,
    TrainInputs,
    WarmupInputs,
)
from tasks.contracts.outcomes import Phases
from tasks.contracts.references import ModelRef, RowsRef
from tasks.worker import evaluate, health, infer, release, train, validate, warmup
from tasks.worker.process import job as jobs
from tasks.worker.process.job import Job
from tests.support.fakes.own_process import encode_here
from tests.support.workspace import spans
from tests.support.workspace.jobs import (
    infer_vectors,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    with_held,
)

IMPORT, LOAD, WORK = 1.0, 1000.0, 1_000_000.0
CONFIG = tiny_config("health.matmul_size=64")


class Trained(NamedTuple):
    store: DirectoryStore
    rows: RowsRef
    model: ModelRef


class Clock:
    """Seconds that pass only in the functions given to `takes`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch, self._now = patch, 0.0
        patch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: self._now, time=time.time))

    def takes(self, seconds: float, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def slow(*arguments: Any, **named: Any) -> Any:
            self._now += seconds
            return original(*arguments, **named)

        self._patch.setattr(owner, name, slow)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    store, rows = make_workspace(tmp_path_factory.mktemp("phases"), rows=90, distinct=40)
    return Trained(store, rows, model_of(train_model(store, CONFIG, rows)))


def phases(run: Callable[[Job], object], job: Job) -> Phases:
    run(job)
    return job.clock.read()


def of_stage(stage: Any, trained: Trained, inputs: Inputs, config: Config = CONFIG) -> Phases:
    return phases(stage.run, make_job(trained.store, config, inputs, run_key="phases"))


def test_of_validate(store: DirectoryStore, tmp_path: Path, clock: Clock) -> None:
    spans.write_span(store, tmp_path, spans.MARCH, spans.rows(40))
    clock.takes(IMPORT, validate, "load_great_expectations")
    clock.takes(IMPORT, validate, "load_identifier")
    clock.takes(LOAD, validate, "read_earlier")
    clock.takes(WORK, validate, "_judge")
    assert phases(validate.run, spans.job(store)) == Phases(booting=2 * IMPORT, restoring=LOAD, productive=WORK)


def test_of_health(trained: Trained, clock: Clock) -> None:
    """Checks of machines are neither steps nor rows."""
    clock.takes(IMPORT, health, "_measure")
    assert of_stage(health, trained, HealthInputs()) == Phases(booting=IMPORT)


def test_of_warmup(trained: Trained, clock: Clock) -> None:
    clock.takes(IMPORT, warmup, "make_accelerator")
    clock.takes(LOAD, warmup, "read_training_rows")
    clock.takes(WORK, warmup, "run_trial")
    found = of_stage(warmup, trained, WarmupInputs(rows=(trained.rows,), parent=None))
    assert found == Phases(booting=IMPORT, restoring=LOAD, compiling=WORK)


def test_of_train(trained: Trained, clock: Clock) -> None:
    clock.takes(IMPORT, train, "open_accelerator")
    clock.takes(LOAD, train, "read_training_rows")
    clock.takes(LOAD, train, "open_pairs")
    clock.takes(WORK, train, "_take_steps")
    inputs = TrainInputs(rows=(trained.rows,), history=(), parent=None)
    found = of_stage(train, trained, inputs, tiny_config("lineage=other"))
    assert found == Phases(booting=IMPORT, restoring=2 * LOAD, productive=WORK)


def test_of_evaluate(trained: Trained, clock: Clock) -> None:
    rows = with_held(trained.store, CONFIG, trained.rows)
    catalogue = make_catalogue(trained.store, CONFIG, trained.rows)
    clock.takes(IMPORT, evaluate, "open_accelerator")
    clock.takes(LOAD, evaluate, "open_model")  # of the challenger, and of the untrained model
    clock.takes(LOAD, evaluate, "read_holdout")
    clock.takes(WORK, evaluate, "measure")
    inputs = EvaluateInputs(rows=rows, catalogue=catalogue, challenger=trained.model, champion=None)
    found = of_stage(evaluate, trained, inputs)
    assert found == Phases(booting=IMPORT, restoring=3 * LOAD, productive=2 * WORK)


def test_of_infer(trained: Trained, clock: Clock) -> None:
    catalogue = make_catalogue(trained.store, CONFIG, trained.rows)
    clock.takes(IMPORT, infer, "open_accelerator")
    clock.takes(LOAD, infer, "load_parts")
    clock.takes(WORK, infer.Embedder, "shard")
    found = of_stage(infer, trained, InferInputs(catalogue=catalogue, model=trained.model))
    assert found == Phases(booting=IMPORT, restoring=LOAD, productive=catalogue.partitions * WORK)


def test_of_release(trained: Trained, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumers' process loads its library in the middle of the work."""
    encode_here(monkeypatch, loading=IMPORT)
    clock.takes(LOAD, release, "load_released")
    clock.takes(WORK, release, "export_model")
    clock.takes(WORK, release, "prove")
    inputs = ReleaseInputs(
        model=trained.model,
        vectors=infer_vectors(trained.store, CONFIG, trained.rows, trained.model).prefix,
        catalogue=make_catalogue(trained.store, CONFIG, trained.rows),
        rows=with_held(trained.store, CONFIG, trained.rows),
    )
    found = of_stage(release, trained, inputs)
    assert found == Phases(booting=IMPORT, restoring=LOAD, productive=2 * WORK - IMPORT)
