"""A workspace with a past: runs with attempts, results, verdicts and releases, written as records without any work.

Numbers are made up but plausible, and the same each time: weekly spans, a model that learns slowly, machines that fail.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from typing import Literal

from configs.load import config_hash
from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.jobs import stage_prefix
from tasks.contracts.outcomes import EvaluateOutcome, Outcome, Phases, StageResult, TrainOutcome
from tasks.contracts.references import CheckpointRef, ModelRef, RowsRef, SpanRef
from tasks.contracts.runs import Release, RunPlan, RunState
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import NUMBER, RESULT, VERDICTS
from tasks.foundation.errors import FailureClass
from tasks.judging.judge_run import rules_of
from tasks.runs import releases
from tasks.runs.invocations import Invocation
from tasks.runs.ledger import LedgerRecord
from tasks.runs.releases import CURRENT, Numbered, Pointer
from tasks.runs.results import Judgement
from tests.support.fakes.fake_runner import commit_files, ingest, small_config
from tests.support.measures.results import by_queries
from tests.support.workspace.past_outcomes import VECTORS, catalogue, forward, outcome_of, quality, slices, verdicts
from tests.support.workspace.specs import MADE_BY, SEALED, price_at

End = Literal["Released", "Rejected", "Failed", "Cancelled", "Running"]

FIRST = dt.date(2025, 12, 29)  # the Monday of 2026-W01
GATES = (
    "[{metric: recall@10, direction: higher, threshold: -0.01, baseline: champion, severity: critical}, "
    "{metric: auc, direction: higher, threshold: 0.7, baseline: none, severity: critical}, "
    "{metric: mrr@10, direction: higher, threshold: -0.005, baseline: champion, severity: warning}]"
)
SECONDS = {  # of a stage that goes well: queued, booting, compiling, restoring, productive
    Stage.validate: (20, 15, 0, 0, 240),
    Stage.health: (180, 60, 0, 0, 90),
    Stage.warmup: (30, 45, 620, 20, 60),
    Stage.train: (40, 45, 12, 35, 5400),
    Stage.evaluate: (30, 40, 5, 15, 420),
    Stage.infer: (35, 45, 8, 15, 1900),
    Stage.release: (15, 20, 0, 0, 90),
}
PRICES: tuple[float | None, float | None] = (21.5, 0.9)  # dollars an hour, of the accelerators and of other machines
FAILURES = {
    FailureClass.HOST: "train: worker 17 of 64 was killed by SIGKILL; last lines:\nstep 212, loss 1.94",
    FailureClass.HANG: "train: no step for 600 s; the last one was 188. Rank 41 waited in all_reduce",
    FailureClass.CAPACITY: "train: no machine of queue millrace-accelerator within 3600 s",
    FailureClass.STORE: "s3://shop/models: SlowDown: Please reduce your request rate",
    FailureClass.DATA: "validate: 31.2 % of the rows were set apart; 20 % is allowed (validate.max_bad_share)",
    FailureClass.OOM: "warmup: out of memory at 40 sequences of 128 tokens; lower train.batch_rows",
    FailureClass.COMPILE: "warmup: NCC_EVRF009: the graph of 128 x 64 tokens did not compile",
    FailureClass.CODE: "evaluate: KeyError: 'locale' <script>alert(1)</script>",
    FailureClass.CONFIG: "release: min_cosine 0.99990 is required, 0.99871 was found",
    FailureClass.CANCELLED: "the flow run was cancelled in Prefect; what was finished is kept",
}
STOPS_IN = {
    FailureClass.DATA: Stage.validate,
    FailureClass.OOM: Stage.warmup,
    FailureClass.COMPILE: Stage.warmup,
    FailureClass.CODE: Stage.evaluate,
    FailureClass.CONFIG: Stage.release,
}


def week(number: int) -> str:
    """The name of the n-th week, counted from 0."""
    year, of_year, _ = (FIRST + dt.timedelta(weeks=number)).isocalendar()
    return f"{year}-W{of_year:02d}"


def settings(*overrides: str) -> Config:
    """A pipeline on rented machines."""
    return small_config(
        "pipeline=shop", "accelerator=xla", "train.workers=64", "heads.classification={weight: 0.2, input: pair, "
        "negative_max: 0.0, positive_min: 1.0}", f"evaluate.gates={GATES}", "train.learning_rate=2e-4", *overrides,
    )  # fmt: skip


def write_past(store: Store, runs: int, ends: Mapping[int, tuple[End, FailureClass | None]] | None = None) -> list[str]:
    """Weekly runs, all released but for `ends` by number, every seventh retried; returns their keys, oldest first."""
    ends = ends or {}
    keys = []
    for number in range(runs):
        end, failure = ends.get(number, ("Released", None))
        retried = (
            (FailureClass.HOST, FailureClass.HANG, FailureClass.CAPACITY)[number // 7 % 3] if not number % 7 else None
        )
        keys.append(write_run(store, number, end, failure, retried))
    return keys


def write_run(
    store: Store,
    number: int,
    end: End = "Released",
    failure: FailureClass | None = None,
    retried: FailureClass | None = None,
    config: Config | None = None,
) -> str:
    """One run over the n-th week, begun on the Monday after; returns its key."""
    numbers = random.Random(number)
    config = config or settings()
    key, span = f"{0x5EED0000 + number:016x}", SpanRef(name=week(number), version=1)
    ingest(store, span.name)
    before = CheckpointRef(prefix=f"lineages/main/step-{number * 400:08d}", step=number * 400, sha256=f"{number:064x}")
    rows = RowsRef(span=span, prefix=f"{stage_prefix(key, Stage.validate)}/rows/{span.name}", rows=48_120)
    plan = RunPlan(
        run_key=key, span=span, window=(span,), history=(), parent=before if number else None, workspace=store.uri,
        config=config,
    )  # fmt: skip
    store.write(f"runs/{key}/plan.json", plan.to_json())
    began = dt.datetime.combine(FIRST, dt.time(6), dt.UTC) + dt.timedelta(weeks=number + 1)
    clock, rejected = began, end == "Rejected"
    stops_in = STOPS_IN.get(failure, Stage.train) if failure else Stage.train
    for stage in Stage:
        if rejected and stage in (Stage.infer, Stage.release):
            break
        stopped = end in ("Failed", "Cancelled", "Running") and stage is stops_in
        tries: list[FailureClass | None] = [retried] if retried and stage is Stage.train else []
        tries += [failure if stopped else None]
        for attempt, why in enumerate(tries, start=1):
            on_record = not (end == "Running" and stopped and attempt == len(tries))
            clock = _attempt(store, plan, stage, attempt, why, clock, numbers, ended=on_record)
        if stopped:
            break
        _result(store, plan, stage, len(tries), outcome_of(plan, stage, rows, number, rejected), rejected)
    if end == "Released":
        _release(store, plan, number, clock)
    _invocation(store, plan, end, failure, began, clock)
    return key


def _attempt(
    store: Store,
    plan: RunPlan,
    stage: Stage,
    attempt: int,
    failure: FailureClass | None,
    began: dt.datetime,
    numbers: random.Random,
    ended: bool,
) -> dt.datetime:
    queued, booting, compiling, restoring, productive = (part * numbers.uniform(0.8, 1.3) for part in SECONDS[stage])
    if failure is FailureClass.CAPACITY:
        phases = Phases(queued=3600.0)
    elif failure is not None:
        phases = Phases(queued=queued, booting=booting, compiling=compiling, restoring=restoring, lost=productive / 3)
    else:
        phases = Phases(queued=queued, booting=booting, compiling=compiling, restoring=restoring, productive=productive)
    wall = sum(phases.model_dump().values())
    dear = stage in (Stage.health, Stage.warmup, Stage.train, Stage.infer)
    over = began + dt.timedelta(seconds=wall)
    record = LedgerRecord(
        run_key=plan.run_key,
        span=plan.span.name,
        stage=stage,
        attempt=attempt,
        failure=failure if ended else None,
        message=FAILURES[failure] if failure and ended else "",
        started_at=began.isoformat(timespec="microseconds"),
        ended_at=over.isoformat(timespec="microseconds") if ended else None,
        seconds=phases if ended else Phases(),
        workers=64 if dear else 1,
        machines=1,
        instance="trn1.32xlarge" if dear else "m7i.2xlarge",
        price=price_at(PRICES[0 if dear else 1]),
        billable_seconds=wall - phases.queued if ended else 0.0,
        job="",
        hosts=(),
    )
    store.write(f"{stage_prefix(plan.run_key, stage)}/attempt-{attempt}/ledger.json", record.to_json())
    return over


def _result(store: Store, plan: RunPlan, stage: Stage, attempt: int, outcome: Outcome, rejected: bool) -> None:
    result = StageResult(
        run_key=plan.run_key, attempt=attempt, config_sha256=config_hash(plan.config), phases=Phases(), outcome=outcome
    )
    store.write(RESULT.key(run=plan.run_key, stage=stage), result.to_json())
    if isinstance(outcome, EvaluateOutcome):
        number, released = plan.parent.step // 400 if plan.parent else 0, len(releases.numbers(store))
        judgement = Judgement(
            outcome=outcome,
            verdicts=verdicts(outcome, rejected),
            forward=forward(plan.span.name, number, released),
            slices=slices(outcome),
            number=1,
            at="2026-11-22T12:00:00+00:00",
            rules=rules_of(plan.config),
        )
        store.write(VERDICTS.key(run=plan.run_key), judgement.to_json())


def _release(store: Store, plan: RunPlan, number: int, made: dt.datetime) -> None:
    count = sum(key.endswith(".json") for key in store.list("releases")) + 1
    outcome = outcome_of(plan, Stage.train, RowsRef(span=plan.span, prefix="", rows=1), number, False)
    assert isinstance(outcome, TrainOutcome)
    release = Release(
        number=count,
        previous=count - 1 or None,
        model_before=count - 1 or None,
        span=plan.span,
        run_key=plan.run_key,
        model=ModelRef(version=outcome.model_version, checkpoint=outcome.checkpoint),
        model_prefix=f"models/{outcome.model_version}",
        vectors_prefix=f"vectors/{outcome.model_version}/{plan.span.name}",
        vectors=VECTORS,
        catalogue=catalogue(number),
        metrics=quality(number),
        by_queries=by_queries(quality(number)),
        created_at=made.isoformat(timespec="microseconds"),
        **SEALED,
        **MADE_BY,
    )
    store.write(NUMBER.key(run=plan.run_key), Numbered(number=count).to_json())
    store.write(f"releases/{count}.json", release.to_json())
    commit_files(store, catalogue(number).prefix, {"part-00000.parquet": ""}, "catalogue", sources=[])
    store.write(CURRENT, Pointer(release=count).to_json())


def _invocation(
    store: Store, plan: RunPlan, end: End, failure: FailureClass | None, began: dt.datetime, over: dt.datetime
) -> None:
    one = Invocation(
        number=1,
        run_key=plan.run_key,
        span=plan.span.name,
        lineage=plan.config.lineage,
        flow_run=f"{plan.run_key}-flow-run",
        page=f"http://127.0.0.1:4200/runs/flow-run/{plan.run_key}",
        scheduled_at=began.isoformat(timespec="seconds"),
        began_at=began.isoformat(timespec="microseconds"),
        expected_seconds=9000.0,
        deadline=(began + dt.timedelta(hours=24)).isoformat(timespec="seconds"),
        ended_at=None if end == "Running" else over.isoformat(timespec="microseconds"),
        state=RunState(end),
        failure=failure,
        message=FAILURES[failure] if failure else "",
    )
    store.write(f"runs/{plan.run_key}/invocations/1.json", one.to_json())
