"""The smoke checks, by the pipeline's own stages: health, warmup, train, and train again from the checkpoint.

They run on one machine first, then on all configured machines, and stop at the first failure. No lineage changes: the
checks have rows, a model and checkpoints of their own, and delete the checkpoints.
"""

import datetime as dt
import math
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.jobs import HealthInputs, TrainInputs, WarmupInputs
from tasks.contracts.outcomes import HealthOutcome, TrainOutcome, WarmupOutcome
from tasks.contracts.references import CheckpointRef, CompileRef, RowsRef, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage, compute_of
from tasks.foundation.clock import now
from tasks.foundation.errors import CodeError, StageError
from tasks.running.lineage_lock import hold_lineage
from tasks.running.stage import run_stage
from tasks.running.stage_output import logger
from tasks.runs import ledger
from tasks.runs.host_findings import last_findings
from tasks.upkeep import rungs
from tasks.upkeep.made_up import settings, write_rows
from tasks.upkeep.smoke_report import Rung, SmokeReport, write_report

O = TypeVar("O", WarmupOutcome, TrainOutcome)  # noqa: E741
_FIRST, _SECOND = "smoke-1", "smoke-2"  # names of the two made-up spans


class _BrokenRung(Exception):
    """A check failed, so no more run; `last` has the checks of the failed stage."""

    def __init__(self, error: StageError, *last: Rung) -> None:
        super().__init__(str(error))
        self.error, self.last = error, last


def sizes(config: Config) -> tuple[int, ...]:
    """Return the worker counts, smallest first: the workers of one machine, then all of `train.workers`."""
    one = config.batch.processes_per_node if compute_of(config, Stage.train) == "batch" else 1
    return tuple(dict.fromkeys((min(one, config.train.workers), config.train.workers)))


def climb(store: Store, config: Config, seen: Callable[[Rung], None] = lambda rung: None) -> SmokeReport:
    """Run the smoke checks, write their report and return it. A failed check is a result: the last one of the report.

    Args:
        seen: called with each check as soon as it passed or failed.

    Raises:
        StoreError: the workspace can't be written from this machine.
        CancelledError: the command was interrupted.
    """
    began_at, began = now(), time.monotonic()
    key = f"smoke-{dt.datetime.fromisoformat(began_at):%Y%m%d-%H%M%S}"
    found: list[Rung] = []
    failure = None

    def note(rung: Rung) -> None:
        found.append(rung)
        seen(rung)

    plans = [_plan(store, settings(config, f"{key}-{workers}", workers)) for workers in sizes(config)]
    try:
        for plan in plans:
            with hold_lineage(store, f"lineages/{plan.run_key}.run", logger().warning):
                for rung in _climbed(store, plan):
                    note(rung)
    except _BrokenRung as broken:
        for rung in broken.last:
            note(rung)
        failure = broken.error.failure
    finally:
        for plan in plans:
            store.delete(f"lineages/{plan.run_key}")
    attempts = [one for plan in plans for each in (plan, _after(plan)) for one in ledger.records(store, each.run_key)]
    report = SmokeReport(
        key=key,
        at=began_at,
        accelerator=config.accelerator,
        machine=config.health.machine,
        rungs=tuple(found),
        failure=failure,
        seconds=round(time.monotonic() - began, 1),
        dollars=round(sum(attempt.cost for attempt in attempts), 4),
    )
    write_report(store, report)
    return report


def _climbed(store: Store, plan: RunPlan) -> Iterator[Rung]:
    """Run the checks for one worker count; yield each as it passes. Raises _BrokenRung."""
    config = plan.config
    yield from _healthy(store, plan)
    rows, others = (write_rows(store, plan.run_key, span, config.train.batch_rows) for span in (_FIRST, _SECOND))
    warm = _stage(plan, rungs.COMPILATIONS, WarmupInputs(rows=(rows,), parent=None), WarmupOutcome)
    yield rungs.of_warmup(config, warm)
    first = _trained(plan, rungs.STEP, rows, warm.compiled)
    yield rungs.of_step(config, first)
    yield rungs.of_checkpoint(config, first)
    yield rungs.of_reading(config, _trained(_after(plan, first.checkpoint), rungs.READ, others, warm.compiled))


def _healthy(store: Store, plan: RunPlan) -> Iterator[Rung]:
    try:
        outcome = run_stage(plan, HealthInputs(), HealthOutcome)
    except StageError as error:
        checks = last_findings(store, ledger.records(store, plan.run_key))
        said = tuple(rungs.of_health(plan.config, checks, {}))
        unsaid = () if any(not rung.passed for rung in said) else (rungs.broken(plan.config, rungs.FIRST, error),)
        raise _BrokenRung(error, *said, *unsaid) from error
    yield from rungs.of_health(plan.config, outcome.checks, outcome.collectives)


def _trained(plan: RunPlan, rung: str, rows: RowsRef, compiled: CompileRef | None) -> TrainOutcome:
    inputs = TrainInputs(rows=(rows,), history=(), parent=plan.parent, compiled=compiled)
    outcome = _stage(plan, rung, inputs, TrainOutcome)
    losses = [point.metrics["loss"] for point in outcome.losses]
    if not losses or not all(map(math.isfinite, losses)):
        error = CodeError(f"the loss is {', '.join(map(str, losses)) or 'missing'}, which is no number")
        raise _BrokenRung(error, rungs.broken(plan.config, rung, error))
    return outcome


def _stage(plan: RunPlan, rung: str, inputs: WarmupInputs | TrainInputs, kind: type[O]) -> O:
    try:
        return run_stage(plan, inputs, kind)
    except StageError as error:
        raise _BrokenRung(error, rungs.broken(plan.config, rung, error)) from error


def _plan(store: Store, config: Config) -> RunPlan:
    span = SpanRef(name=_FIRST, version=1)
    return RunPlan(
        run_key=config.lineage,
        span=span,
        window=(span,),
        history=(),
        parent=None,
        workspace=store.uri,
        config=config,
    )


def _after(plan: RunPlan, parent: CheckpointRef | None = None) -> RunPlan:
    """Return the plan of a second run, which starts from the checkpoint of this one."""
    span = SpanRef(name=_SECOND, version=1)
    changes = {"run_key": f"{plan.run_key}-again", "span": span, "window": (span,), "parent": parent}
    return plan.model_copy(update=changes)
