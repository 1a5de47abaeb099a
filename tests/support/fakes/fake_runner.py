"""A runner whose workers do no arithmetic: they write small outputs and results as the real ones do, or fail on demand.

With it the control plane is tested whole, against a real store, in milliseconds and without torch.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from pathlib import Path

from configs.load import config_hash, load_config
from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import Manifest, commit, next_folder
from tasks.contracts.evaluation import Role
from tasks.contracts.jobs import (
    EvaluateInputs,
    HealthInputs,
    ImportInputs,
    InferInputs,
    Inputs,
    JobSpec,
    Progress,
    PublishInputs,
    ReleaseInputs,
    TrainInputs,
    ValidateInputs,
    Waiter,
    WarmupInputs,
)
from tasks.contracts.outcomes import (
    Check,
    EvaluateOutcome,
    HealthOutcome,
    ImportOutcome,
    InferOutcome,
    Outcome,
    Phases,
    PublishOutcome,
    ReleaseOutcome,
    StageResult,
    TrainOutcome,
    ValidateOutcome,
    WarmupOutcome,
    WorkerFailure,
)
from tasks.contracts.references import (
    CatalogueRef,
    CheckpointRef,
    CheckpointState,
    CurvePoint,
    HoldoutRule,
    RowsRef,
    newest_rows,
)
from tasks.contracts.search import SharedSearch
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.usage import ShapeTiming
from tasks.data.span_versions import noted
from tasks.foundation.errors import StageError, classify
from tasks.runs import releases
from tests.support.measures.results import by_queries

STEPS_PER_SPAN = 10
ROWS_PER_SPAN = 40
PHASES = Phases(booting=1.0, compiling=0.5, restoring=0.25, productive=8.0)


class FakeRunner:
    """Implements `Runner`. `specs` are the jobs it was given, in order."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.specs: list[JobSpec] = []
        self.served: dict[str, str] = {}  # target -> table
        self.tables: set[str] = set()  # that were loaded into a target
        self.metrics = {"recall@10": 0.5, "mrr@10": 0.3}
        self.of_champion: dict[str, float] | None = None  # where there is one; None: 0.4 of each metric
        self.recall = 0.5  # recall@10 of the whole catalogue
        self._failures: dict[Stage | Chore, list[BaseException]] = {}

    def fail(self, stage: Stage | Chore, error: BaseException, times: int = 1) -> None:
        """Let the next `times` attempts of a stage end with `error` instead of a result."""
        self._failures.setdefault(stage, []).extend([error] * times)

    @property
    def stages(self) -> list[str]:
        return [spec.stage.value for spec in self.specs]

    def found(self, spec: JobSpec) -> bool:
        return False

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        written = self.store.read(f"{spec.attempt_prefix}/spec.json")
        assert JobSpec.model_validate_json(written) == spec, "a worker knows nothing but what the workspace holds"
        self.specs.append(spec)
        waiter.log(f"fake {spec.stage} of {spec.span.name}")
        waiter.progress(Progress(what=spec.stage.value, done=1, total=1))
        if failures := self._failures.get(spec.stage):
            self._die(spec, failures.pop(0))
        self.store.write(f"{spec.stage_prefix}/result.json", self.result(spec).to_json())

    def result(self, spec: JobSpec) -> StageResult:
        """Make the outputs of a stage, and its result."""
        return StageResult(
            run_key=spec.run_key,
            attempt=spec.attempt,
            config_sha256=config_hash(spec.config),
            phases=PHASES,
            outcome=self._outcome(spec, spec.inputs),
        )

    def _die(self, spec: JobSpec, error: BaseException) -> None:
        if isinstance(error, StageError):
            record = WorkerFailure(
                rank=0, at=time.time(), failure=classify(error), message=str(error), traceback="", phases=PHASES
            )
            self.store.write(f"{spec.attempt_prefix}/error-rank0.json", record.to_json())
        raise error

    def _outcome(self, spec: JobSpec, inputs: Inputs) -> Outcome:
        match inputs:
            case ValidateInputs():
                return self._validate(spec, inputs)
            case HealthInputs():
                return HealthOutcome(
                    device="fake",
                    matmul_gflops=(1.0,) * spec.workers,
                    slowest_to_median=1.0,
                    free_memory_gib=(1.0,) * spec.workers,
                    free_disk_gib=1.0,
                    collectives={},
                    checks=(),
                )
            case WarmupInputs():
                shape = ShapeTiming(sequences=16, tokens=32, first_step_seconds=0.2, step_seconds=0.1)
                return WarmupOutcome(
                    device="fake",
                    shapes=(shape,),
                    validation_seconds=0.1,
                    checkpoint_seconds=0.1,
                    peak_memory_gib=0.1,
                    compiled=None,
                    graphs=None,
                    trial_losses=(2.5, 2.25),
                    trial_metrics=self.metrics,
                    environment={},
                )
            case TrainInputs():
                return self._train(spec, inputs)
            case EvaluateInputs():
                champion = (self.of_champion or dict.fromkeys(self.metrics, 0.4)) if inputs.champion else None
                return EvaluateOutcome(
                    holdout_rows=10,
                    corpus_items=20,
                    challenger=self.metrics,
                    champion=champion,
                    by_queries={Role.challenger: by_queries(self.metrics)}
                    | ({Role.champion: by_queries(champion)} if champion else {}),
                    champion_version=inputs.champion.version if inputs.champion else None,
                )
            case InferInputs():
                return self._infer(spec, inputs)
            case ReleaseInputs():
                prefix = f"models/{inputs.model.version}"
                exported = commit_files(self.store, prefix, {"modules.json": "[]"}, "model")
                return ReleaseOutcome(
                    model=prefix,
                    model_sha256=exported.sha256,
                    min_cosine=1.0,
                    probed=8,
                    queries=10,
                    metrics={"recall@10": self.recall},
                    before=inputs.before.number if inputs.before else None,
                    shared=self._shared() if inputs.before else None,
                    code="0.1.0+fake",
                    libraries={"torch": "0"},
                )
            case ImportInputs():
                return self._import(spec, inputs)
            case PublishInputs():
                return self._publish(inputs)

    def _shared(self) -> SharedSearch:
        return SharedSearch(
            items=20, queries=10, metrics_before={"recall@10": 0.4}, metrics_after={"recall@10": self.recall}
        )

    def _validate(self, spec: JobSpec, inputs: ValidateInputs) -> ValidateOutcome:
        rows = []
        for span in inputs.window:
            prefix = f"{spec.stage_prefix}/rows/{span.name}"
            facts = {"span": span.name, "span_version": span.version, "rows": ROWS_PER_SPAN}
            commit_files(self.store, prefix, {"part-0.parquet": span.name}, "rows", **facts)
            rows.append(RowsRef(span=span, prefix=prefix, rows=ROWS_PER_SPAN))
        drift = Check(name="drift", passed=False, severity="warning", observed=0.3, sentence="labels drifted by 0.3")
        return ValidateOutcome(
            rows=tuple(rows),
            rows_in=ROWS_PER_SPAN * len(rows),
            rows_clean=ROWS_PER_SPAN * len(rows),
            rows_quarantined=0,
            reasons={},
            quarantine=None,
            checks=(drift,),
            texts=inputs.texts,
            catalogue=self._catalogue(inputs, rows) if inputs.catalogue else None,
        )

    def _catalogue(self, inputs: ValidateInputs, rows: list[RowsRef]) -> CatalogueRef:
        sources = [ref.prefix for ref in (*newest_rows(inputs.history, rows, inputs.others), *inputs.feeds)]
        name = f"catalogue/{hashlib.sha256(' '.join(sources).encode()).hexdigest()[:16]}"
        prefix = next_folder(self.store, name, "-")
        manifest = commit_files(self.store, prefix, {"part-00000.parquet": prefix}, "catalogue", sources=sources)
        return CatalogueRef(prefix=prefix, items=30, partitions=1, sha256=manifest.sha256)

    def _train(self, spec: JobSpec, inputs: TrainInputs) -> TrainOutcome:
        first = inputs.parent.step if inputs.parent else 0
        last = first + STEPS_PER_SPAN * len(inputs.rows)
        losses = (CurvePoint(step=last, metrics={"loss": 1.5}),)
        curve = tuple(CurvePoint(step=step, metrics=self.metrics) for step in (first, last))
        checkpoint = write_checkpoint(
            self.store,
            CheckpointState(
                lineage=spec.config.lineage,
                run_key=spec.run_key,
                step=last,
                first_step=first,
                complete=True,
                consumed=(*inputs.history, *inputs.rows),
                parent=inputs.parent,
                seed=spec.config.seed,
                holdout=HoldoutRule.of(spec.config.evaluate),
                losses=losses,
                curve=curve,
            ),
        )
        return TrainOutcome(
            checkpoint=checkpoint,
            model_version=f"m-{checkpoint.sha256[:8]}",
            first_step=first,
            last_step=last,
            resumed_at_step=None,
            rows_trained=ROWS_PER_SPAN * len(inputs.rows),
            pairs_per_second=100.0,
            losses=losses,
            curve=curve,
            precision="fp32",
            graphs=None,
            environment={},
        )

    def _import(self, spec: JobSpec, inputs: ImportInputs) -> ImportOutcome:
        state = CheckpointState(
            lineage=spec.config.lineage,
            run_key=spec.run_key,
            step=0,
            first_step=0,
            complete=True,
            consumed=(),
            parent=None,
            seed=spec.config.seed,
            losses=(),
            curve=(),
        )
        return ImportOutcome(
            checkpoint=write_checkpoint(self.store, state),
            sha256=inputs.sha256,
            mapped=101,
            ignored=("embeddings.position_ids", "qa_outputs.weight"),
            new=("projection.weight",),
        )

    def _publish(self, inputs: PublishInputs) -> PublishOutcome:
        before, table = self.served.get(inputs.target), f"{inputs.target}_r{inputs.release}_00000000"
        current = releases.current(self.store)
        if inputs.only_current and current is not None and current.number != inputs.release:
            return PublishOutcome(
                table=None, served_before=before, vectors=30, loaded=0, recall=None, query_ms=None, dropped=()
            )
        if inputs.swap_alone and table not in self.tables:
            return PublishOutcome(
                table=None, served_before=before, vectors=30, loaded=0, recall=None, query_ms=None, dropped=()
            )
        self.tables.add(table)
        self.served[inputs.target] = table
        if inputs.swap_alone:
            return PublishOutcome(
                table=table, served_before=before, vectors=30, loaded=0, recall=None, query_ms=None, dropped=()
            )
        loaded = 0 if table == before else 30
        return PublishOutcome(
            table=table,
            served_before=before,
            vectors=30,
            loaded=loaded,
            index="vector_idx",
            recall=1.0,
            query_ms=0.5,
            queries=24,
            dropped=(),
        )

    def _infer(self, spec: JobSpec, inputs: InferInputs) -> InferOutcome:
        prefix = inputs.vectors
        commit_files(self.store, prefix, {"part-00000.parquet": inputs.model.version}, "vectors", vectors=30)
        return InferOutcome(
            prefix=prefix,
            vectors=inputs.catalogue.items,
            width=4,
            shards=1,
            shards_reused=0,
            texts_per_second=100.0,
            catalogue=inputs.catalogue,
            ids_sha256="0" * 64,
        )


def ingest(store: Store, *names: str, version: int = 1) -> None:
    """Put complete spans of made-up rows into the workspace."""
    import pyarrow as pa  # slow to load, and most processes with these fakes ingest nothing
    import pyarrow.parquet as pq

    from tasks.data.rows import CORE

    numbers = range(ROWS_PER_SPAN)
    for name in names:
        texts = {column: [f"{column} {number} of {name} v{version}" for number in numbers] for column in CORE}
        rows = texts | {"time": [0] * ROWS_PER_SPAN, "label": [float(number % 5) for number in numbers]}
        with tempfile.TemporaryDirectory() as folder:
            pq.write_table(pa.table(rows, pa.schema(CORE)), Path(folder) / "part-0.parquet")
            commit(store, f"spans/{name}/v{version}", Path(folder), "span", {"rows": ROWS_PER_SPAN})


def ingest_feed(store: Store, name: str, version: int = 1, at: str = "2021-02-01T00:00:00.000000+00:00") -> None:
    """Put a complete span of an item feed, which arrived at this time, into the workspace, without real items."""
    facts = {"rows": 3, "ingested_at": at}
    with noted(store, {name: version}):
        commit_files(store, f"items/{name}/v{version}", {"part-0.parquet": f"{name} v{version}"}, "feed", **facts)


def small_config(*overrides: str) -> Config:
    """The base configuration with a small model; override what the test is about."""
    return load_config(overrides=("model.scratch.layers=1", *overrides))


def write_checkpoint(store: Store, state: CheckpointState) -> CheckpointRef:
    """A checkpoint without weights, in the place where the train stage puts it."""
    prefix = f"lineages/{state.lineage}/step-{state.step:08d}"
    files = {"state.json": state.to_json().decode(), "model.safetensors": f"weights of {state.run_key}"}
    facts = {"step": state.step, "run_key": state.run_key, "complete": state.complete}
    manifest = commit_files(store, prefix, files, "checkpoint", **facts)
    return CheckpointRef(prefix=prefix, step=state.step, sha256=manifest.sha256)


def commit_files(store: Store, prefix: str, files: dict[str, str], kind: str, **facts: object) -> Manifest:
    """Commit a folder of small text files."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        return commit(store, prefix, Path(folder), kind, json.loads(json.dumps(facts)))
