"""One stage of one run: skipped if it is done, else one attempt on the runner, with its record in the ledger.

`run_stage` works without Prefect. `stage_task` makes a Prefect task from a stage's plain function: Prefect retries it
if the failure class is transient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import prefect
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed

import infra.compute.factory
from configs.schema.config import Config
from configs.schema.operations import CostConfig
from infra.store.base import NoAnswer, Store
from infra.store.factory import open_store
from infra.store.manifest import quarantine
from tasks.contracts.jobs import BatchAttempt, Inputs, JobSpec, Listener, Runner
from tasks.contracts.kinds import run_folder
from tasks.contracts.outcomes import Check, StageResult
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import workers_of
from tasks.contracts.workspace import RESULT, SPEC
from tasks.foundation.clock import uptime
from tasks.foundation.errors import (
    ERRORS,
    POLICIES,
    CodeError,
    FailureClass,
    StageError,
    StoreError,
    SupersededError,
    classify,
    message_of,
)
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.running import json_logs
from tasks.running.context import Budget, is_stopping, note_done, override_context, stage_context
from tasks.running.lineage_lock import admit_workers, confirm_lineages
from tasks.running.server_presence import await_server, repeat_until_served, server_answers
from tasks.running.stage_output import Heartbeat, StageOutput, logger
from tasks.runs.done import same_work, usable_result
from tasks.runs.ledger import OpenAttempt
from tasks.runs.results import read_result
from tasks.runs.run import Run, StageRun
from tasks.runs.snapshot import Snapshot

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound=Record)  # noqa: E741


def run_stage(
    plan: RunPlan,
    inputs: Inputs,
    outcome_type: type[O],
    runner: Runner | None = None,
    listener: Listener | None = None,
    outputs_stay: bool = True,
) -> O:
    """Return the outcome of one stage: the recorded one if the stage is done, else a new attempt's.

    An unusable result (unreadable, made from other inputs, its folders incomplete) is moved to quarantine/ and the
    stage runs again. The caller holds the lineage's lock, so that no other process runs the same stage.
    An attempt of an earlier invocation that still runs is waited for, not started a second time.
    Without `outputs_stay` a stage is also done if its folders were deleted since: only its record is needed.

    Raises:
        StageError: the attempt failed; its class is the attempt's failure class, and the ledger has its record. An
            interruption (Ctrl-C, a signal, Prefect ending the run) passes through unchanged, recorded as CANCELLED.
    """
    store = open_store(plan.workspace)
    output, run = StageOutput(listener), Run(Snapshot(store, strict=True), plan.run_key)
    stage, name = inputs.stage, f"{inputs.stage} {plan.span.name}"
    before = run.stage(stage)
    runner = runner or infra.compute.factory.make_runner(plan.config, store, stage)
    spec = _found(before, plan, inputs, runner)
    if spec is None:
        for abandoned in (each for each in before.attempts if each.ended_at is None):
            OpenAttempt(store, abandoned).close_abandoned()
            output.log(
                f"{stage}: attempt {abandoned.attempt} of an earlier invocation ended without a record; closed it"
            )
        if (done := _done(run, plan.config, inputs, outcome_type, output, outputs_stay)) is not None:
            output.log(f"{name}: done before, in {run_folder(plan.run_key)}/{stage}")
            note_done()
            return done
        spec = _spec(plan, inputs, before.last_number + 1)
        admit_workers(spec)
        store.create(SPEC.of(spec), spec.to_json())
        output.log(f"{name}: attempt {spec.attempt} starts, {plural(spec.workers, 'worker')}")
    else:
        admit_workers(spec)
        output.log(f"{name}: attempt {spec.attempt} was started before and still runs; waiting for it")
    budget = stage_context().budget or Budget(plan.config.retry)
    with json_logs.log_context(attempt=spec.attempt):
        outcome = _attempt(store, spec, outcome_type, runner, output, budget)
        output.log(f"{name}: attempt {output.last_attempt or spec.attempt} is done")
    return outcome


def warn_of(checks: tuple[Check, ...]) -> None:
    """Log every failed check that did not stop the stage as a warning."""
    for check in checks:
        if not check.passed:
            logger().warning("%s: %s", check.name, check.sentence)


class StageTask(Generic[P, R]):
    """A stage as a flow calls it; `fn` is the plain function, for use without Prefect."""

    def __init__(self, fn: Callable[Concatenate[RunPlan, P], R]) -> None:
        self.fn = fn
        functools.update_wrapper(self, fn)
        self.task: prefect.Task[..., Any] = prefect.Task(
            _with_state(fn),
            name=fn.__name__,
            task_run_name=fn.__name__ + " {plan.span.name}",
            cache_policy=NO_CACHE,  # only the workspace decides that a stage is done
            persist_result=False,
        )

    def __call__(self, plan: RunPlan, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run as a task of the current flow run, with the retries and jitter of the plan's configuration."""
        retry = plan.config.retry
        budget = Budget(retry)

        def retry_helps(task: prefect.Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
            return _retry_helps(budget, state)

        task = self.task.with_options(
            retries=retry.attempts - 1,
            retry_delay_seconds=lambda _: budget.delays,
            retry_jitter_factor=retry.jitter,
            retry_condition_fn=retry_helps,
        )
        with override_context(budget=budget):
            state: State[R] = repeat_until_served(lambda: task(plan, *args, **kwargs, return_state=True))
        return state.result()

    def called(self, run_name: str) -> StageTask[P, R]:
        """Return the same task with another run name, for a flow with several runs of it."""
        same = StageTask(self.fn)
        same.task = self.task.with_options(task_run_name=run_name)
        return same


def _retry_helps(budget: Budget, state: State[Any]) -> bool:
    """Return True if Prefect may retry."""
    error = state.result(raise_on_failure=False)
    policy = POLICIES[classify(error)] if isinstance(error, BaseException) else None
    if policy is None or not policy.transient or budget.used >= budget.attempts or is_stopping():
        return False
    logger().warning("%s; try %d of %d in about %.0f s", error, budget.used + 1, budget.attempts, budget.delays[-1])
    return True


def stage_task(fn: Callable[Concatenate[RunPlan, P], R]) -> StageTask[P, R]:
    """Make a Prefect task from a stage's function, whose first parameter is `plan`.

    The task has the function's name, its runs names such as `train 2022-Q4`. If the stage is already done, its run
    ends in the state Cached.
    """
    return StageTask(fn)


def _spec(plan: RunPlan, inputs: Inputs, attempt: int) -> JobSpec:
    return JobSpec(
        run_key=plan.run_key,
        span=plan.span,
        attempt=attempt,
        submitted_as=attempt,
        workspace=plan.workspace,
        workers=workers_of(plan.config, inputs.stage),
        config=plan.config,
        inputs=inputs,
        fences=tuple(hold.fence for hold in stage_context().lineages),
    )


def _found(before: StageRun, plan: RunPlan, inputs: Inputs, runner: Runner) -> JobSpec | None:
    """Return the spec of the last attempt if it was for the same work and the runner can still wait for it."""
    spec = before.last_spec()
    if spec is None or not runner.found(spec):
        return None
    wanted = _spec(plan, inputs, spec.attempt)
    return spec if same_work(spec, wanted) else None


def _attempt(
    store: Store, spec: JobSpec, outcome_type: type[O], runner: Runner, output: StageOutput, budget: Budget
) -> O:
    attempt, began = OpenAttempt.begin(store, spec), uptime()
    output.signs = Heartbeat(attempt)
    tries = budget.left(spec.attempt)
    try:
        runner.run(spec, output, tries)
        confirm_lineages()
        outcome = _outcome(read_result(store, spec.run_key, spec.stage), outcome_type)
        if outcome is None:
            raise CodeError(f"{spec.stage}: the workers succeeded but left no {store.uri}/{RESULT.of(spec)}")
    except BaseException as error:
        output.ended(classify(error))
        if isinstance(error, SupersededError):  # the process that took over has closed the record
            raise
        last = _record_failure(attempt, output.tries, uptime() - began, error, spec.config.cost)
        budget.use(last)
        output.log(f"{spec.stage} {spec.span.name}: attempt {last} ended with {classify(error)}: {error}")
        if isinstance(error, StageError) or not isinstance(error, Exception):
            raise
        said = f"{spec.stage}: {type(error).__name__}: {message_of(error, store.uri)}"
        raise ERRORS[classify(error)](said) from error
    output.ended()
    if output.tries:
        attempt.end_tries(output.tries, spec.config.cost)
    else:
        attempt.end(uptime() - began)
    return outcome


def _record_failure(
    attempt: OpenAttempt, tries: Sequence[BatchAttempt], wall_seconds: float, error: BaseException, cost: CostConfig
) -> int:
    """Close the records of all tries, and return the number of the last one."""
    try:
        attempt.end_tries(tries, cost)
        if tries and tries[-1].failure == classify(error):
            return tries[-1].attempt
        # The error belongs to no reported try, so it ended the one after them.
        last = attempt.numbered(tries[-1].attempt + 1) if tries else attempt
        return last.end(wall_seconds, error).attempt
    except (OSError, StoreError) as unwritable:  # a full disk must not hide the first error
        record = attempt.record
        logger().error(
            "the ledger record of %s attempt %d was not closed: %s", record.stage, record.attempt, unwritable
        )
        return tries[-1].attempt if tries else record.attempt


def _done(
    run: Run, config: Config, inputs: Inputs, outcome_type: type[O], output: StageOutput, outputs_stay: bool
) -> O | None:
    try:
        return _outcome(usable_result(run, inputs, workers_of(config, inputs.stage), outputs_stay), outcome_type)
    except NoAnswer:
        raise  # the next try may read it
    except StoreError as error:
        moved = quarantine(run.snapshot.store, RESULT.key(run=run.run_key, stage=inputs.stage))
        output.log(f"{inputs.stage}: its result can't be relied on and is in {moved} now; running again. {error}")
        return None


def _outcome(result: StageResult | None, outcome_type: type[O]) -> O | None:
    return result.outcome if result is not None and isinstance(result.outcome, outcome_type) else None


def make_page(plan: RunPlan, stage: str, value: Any) -> None:
    """Make the page of a stage with the outcome `value`, if a page maker is set; log a warning if that fails."""
    make = stage_context().page_maker
    if make is None:
        return
    try:
        make(plan, stage, value)
    except Exception as error:  # the outcome of the stage counts more than its page
        logger().warning("%s: its page could not be made: %s", stage, error)


def _with_state(fn: Callable[..., R]) -> Callable[..., R | State[R]]:
    """Return the task's body: a stage that was already done ends as Cached, a failure without retries left says so."""

    @functools.wraps(fn)
    def body(plan: RunPlan, *args: Any, **kwargs: Any) -> R | State[R]:
        try:
            with override_context(was_done=False), json_logs.run_log_context(plan, stage=fn.__name__):
                value = fn(plan, *args, **kwargs)
                was_done = stage_context().was_done
            if was_done:
                where = f"{run_folder(plan.run_key)}/{fn.__name__}"
                return Completed(name="Cached", message=f"done before: {where}", data=value)
            await_server()
            make_page(plan, fn.__name__, value)
            return value
        except Exception as error:
            budget = stage_context().budget
            if budget is not None:
                budget.delay_after(classify(error))
            if not isinstance(error, StageError):
                raise
            # The person who cancelled needs no page.
            if error.failure is not FailureClass.CANCELLED and server_answers():
                make_page(plan, fn.__name__, error)
            if budget is None or not error.policy.transient or budget.used < budget.attempts:
                raise
            raise type(error)(
                f"{error} (That was try {budget.used} of {budget.attempts}, as retry.attempts allows. Run span "
                f"{plan.span.name} again to continue from here, with as many tries.)"
            ) from error.__cause__

    return body
