"""One stage of one run: skipped when it is done, else one attempt on the runner, with its record in the ledger.

`run_stage` works without Prefect. `stage_task` puts a stage's plain function under a Prefect task, which owns the
retries: Prefect waits and tries again, the failure class decides whether that can help.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import prefect
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.states import Completed

import infra.runner
from infra.manifest import quarantine
from infra.runner import Listener, Runner
from infra.store import Store, open_store
from tasks import ledger, structured
from tasks.budget import Budget
from tasks.contracts import Check, Inputs, JobSpec, RunPlan, StageResult
from tasks.errors import ERRORS, CodeError, FailureClass, StageError, StoreError, classify
from tasks.records import Record
from tasks.results import check_inputs, check_outputs, read_result, result_key, same_work
from tasks.sinks import Sinks, logger

P = ParamSpec("P")
R = TypeVar("R")
O = TypeVar("O", bound=Record)  # noqa: E741

# Told of each stage that ended just now, inside its task run: the plan, the stage's name, what it came to, which is
# a StageError where it failed.
Publisher = Callable[[RunPlan, str, Any], None]

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)
_publisher: ContextVar[Publisher | None] = ContextVar("publisher", default=None)
_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)
_was_done: ContextVar[bool] = ContextVar("was_done", default=False)


def run_stage(
    plan: RunPlan,
    inputs: Inputs,
    outcome_type: type[O],
    workers: int = 1,
    runner: Runner | None = None,
    listener: Listener | None = None,
    outputs_stay: bool = True,
) -> O:
    """The outcome of one stage: the one on record if the stage is done, else that of a new attempt.

    A result that can't be relied on (unreadable, made from other inputs, its folders incomplete) is moved to
    quarantine/ and the stage runs again. Nobody else may run the same stage meanwhile: hold the lineage's lock.
    An attempt that an earlier invocation started and that still goes on somewhere is waited for, not made again.
    Without `outputs_stay` a stage is done also where its folders were deleted since: the record alone is wanted.

    Raises:
        StageError: of the class that ended the attempt, after the ledger has its record. An interruption (Ctrl-C,
            a signal, Prefect ending the run) passes through unchanged, recorded as CANCELLED.
    """
    store = open_store(plan.workspace)
    sinks = Sinks(listener or _listener.get())
    stage, name = inputs.stage, f"{inputs.stage} {plan.span.name}"
    runner = runner or infra.runner.make_runner(plan.config, store, stage)
    spec = _found(store, plan, inputs, workers, runner)
    if spec is None:
        for abandoned in ledger.close_abandoned(store, plan.run_key, stage):
            sinks.log(
                f"{stage}: attempt {abandoned.attempt} of an earlier invocation ended without a record; closed it"
            )
        if (done := _done(store, plan, inputs, outcome_type, sinks, outputs_stay)) is not None:
            sinks.log(f"{name}: done before, in runs/{plan.run_key}/{stage}")
            _was_done.set(True)
            return done
        spec = _spec(plan, inputs, workers, ledger.next_attempt(store, plan.run_key, stage))
        store.create(f"{spec.attempt_prefix}/spec.json", spec.to_json())
        sinks.log(f"{name}: attempt {spec.attempt} starts, {workers} worker{'s' * (workers > 1)}")
    else:
        sinks.log(f"{name}: attempt {spec.attempt} was started before and is found again")
    budget = _budget.get() or Budget(plan.config.retry)
    with structured.about(attempt=spec.attempt):
        outcome = _attempt(store, spec, outcome_type, runner, sinks, budget)
        sinks.log(f"{name}: attempt {sinks.last_attempt or spec.attempt} is done")
    return outcome


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let `listener` hear all stages that run inside the block, beside the log."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def heard_by() -> Listener | None:
    """Whoever hears the stages that run here."""
    return _listener.get()


@contextlib.contextmanager
def publishing(publish: Publisher) -> Iterator[None]:
    """Let `publish` make a page of every stage that ends inside the block; a page that fails is a warning."""
    token = _publisher.set(publish)
    try:
        yield
    finally:
        _publisher.reset(token)


def warn_of(checks: tuple[Check, ...]) -> None:
    """Put every check that failed, but not critically enough to stop the stage, into the log as a warning."""
    for check in checks:
        if not check.passed:
            logger().warning("%s: %s", check.name, check.sentence)


class StageTask(Generic[P, R]):
    """A stage as the flow calls it; `fn` is the plain function, for use without Prefect."""

    def __init__(self, fn: Callable[Concatenate[RunPlan, P], R]) -> None:
        self.fn = fn
        functools.update_wrapper(self, fn)
        self.task: prefect.Task[..., Any] = prefect.Task(
            _with_state(fn),
            name=fn.__name__,
            task_run_name=fn.__name__ + " {plan.span.name}",
            cache_policy=NO_CACHE,  # the workspace alone says what is done
            persist_result=False,
        )

    def __call__(self, plan: RunPlan, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run as a task of the current flow run, with the budget and jitter of the plan's configuration."""
        retry = plan.config.retry
        budget = Budget(retry)

        def retry_helps(task: prefect.Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
            return budget.retry_helps(task, task_run, state)  # Prefect takes plain functions only, no bound method

        # The budget sets the delay of each retry, by class, on this copy of the task.
        task = self.task.with_options(
            retries=retry.attempts - 1, retry_jitter_factor=retry.jitter, retry_condition_fn=retry_helps
        )
        token = _budget.set(budget)
        try:
            state: State[R] = task(plan, *args, **kwargs, return_state=True)
        finally:
            _budget.reset(token)
        return state.result()

    def called(self, run_name: str) -> StageTask[P, R]:
        """The same, with its runs under this name where a flow has several that would be named alike."""
        same = StageTask(self.fn)
        same.task = self.task.with_options(task_run_name=run_name)
        return same


def stage_task(fn: Callable[Concatenate[RunPlan, P], R]) -> StageTask[P, R]:
    """Make a Prefect task of a stage's function, whose first parameter is `plan`.

    The task is named like the function, its runs like `train 2022-Q4`; one that finds the stage done ends in the
    state Cached.
    """
    return StageTask(fn)


def _spec(plan: RunPlan, inputs: Inputs, workers: int, attempt: int) -> JobSpec:
    return JobSpec(
        run_key=plan.run_key,
        span=plan.span,
        attempt=attempt,
        submitted_as=attempt,
        workspace=plan.workspace,
        workers=workers,
        config=plan.config,
        inputs=inputs,
    )


def _found(store: Store, plan: RunPlan, inputs: Inputs, workers: int, runner: Runner) -> JobSpec | None:
    """The spec of the last attempt, if it was for this very work and the runner can still wait for it."""
    spec = ledger.last_spec(store, plan.run_key, inputs.stage)
    if spec is None or not runner.found(spec):
        return None
    wanted = _spec(plan, inputs, workers, spec.attempt)
    return spec if same_work(spec, wanted) else None


def _attempt(store: Store, spec: JobSpec, outcome_type: type[O], runner: Runner, sinks: Sinks, budget: Budget) -> O:
    record, began = ledger.begin(store, spec), time.monotonic()
    tries = budget.left(spec.attempt)
    try:
        runner.run(spec, sinks, tries)
        outcome = _outcome(read_result(store, spec.run_key, spec.stage), outcome_type)
        if outcome is None:
            raise CodeError(
                f"{spec.stage}: the workers ended well but left no {store.uri}/{spec.stage_prefix}/result.json"
            )
    except BaseException as error:
        sinks.ended(classify(error))
        last = _record_failure(store, record, sinks, time.monotonic() - began, error)
        budget.use(last)
        sinks.log(f"{spec.stage} {spec.span.name}: attempt {last} ended with {classify(error)}: {error}")
        if isinstance(error, StageError) or not isinstance(error, Exception):
            raise
        raise ERRORS[classify(error)](f"{spec.stage}: {type(error).__name__}: {error}") from error
    sinks.ended()
    if sinks.tries:
        ledger.end_tries(store, record, sinks.tries)
    else:
        ledger.end(store, record, time.monotonic() - began)
    return outcome


def _record_failure(
    store: Store, record: ledger.LedgerRecord, sinks: Sinks, wall_seconds: float, error: BaseException
) -> int:
    """Close the records of all tries; returns the number of the last one."""
    told = sinks.tries
    try:
        ledger.end_tries(store, record, told)
        if told and told[-1].failure == classify(error):
            return told[-1].attempt
        # What is raised was told of no try: the one after those that were.
        last = record.model_copy(update={"attempt": told[-1].attempt + 1}) if told else record
        ledger.end(store, last, wall_seconds, error)
        return last.attempt
    except (OSError, StoreError) as unwritable:  # a full disk must not hide the first error
        logger().error(
            "the ledger record of %s attempt %d was not closed: %s", record.stage, record.attempt, unwritable
        )
        return told[-1].attempt if told else record.attempt


def _done(
    store: Store, plan: RunPlan, inputs: Inputs, outcome_type: type[O], sinks: Sinks, outputs_stay: bool
) -> O | None:
    try:
        result = read_result(store, plan.run_key, inputs.stage)
        if result is None:
            return None
        check_inputs(store, result, inputs)
        if outputs_stay:
            check_outputs(store, result.outcome)
        return _outcome(result, outcome_type)
    except StoreError as error:
        moved = quarantine(store, result_key(plan.run_key, inputs.stage))
        sinks.log(f"{inputs.stage}: its result can't be relied on and is in {moved} now; running again. {error}")
        return None


def _outcome(result: StageResult | None, outcome_type: type[O]) -> O | None:
    return result.outcome if result is not None and isinstance(result.outcome, outcome_type) else None


def _publish(plan: RunPlan, stage: str, value: Any) -> None:
    publish = _publisher.get()
    if publish is None:
        return
    try:
        publish(plan, stage, value)
    except Exception as error:  # what the work came to stays; a page is not worth more than it
        logger().warning("%s: its page could not be made: %s", stage, error)


def _with_state(fn: Callable[..., R]) -> Callable[..., R | State[R]]:
    """The body of the task: what was done before ends as Cached, a failure tells when no retry is left."""

    @functools.wraps(fn)
    def body(plan: RunPlan, *args: Any, **kwargs: Any) -> R | State[R]:
        token = _was_done.set(False)
        try:
            with structured.about_plan(plan, stage=fn.__name__):
                value = fn(plan, *args, **kwargs)
            if _was_done.get():
                where = f"runs/{plan.run_key}/{fn.__name__}"
                return Completed(name="Cached", message=f"done before: {where}", data=value)
            _publish(plan, fn.__name__, value)
            return value
        except StageError as error:
            if error.failure is not FailureClass.CANCELLED:  # whoever stopped it waits for its end, and knows why
                _publish(plan, fn.__name__, error)
            budget = _budget.get()
            if budget is None or not error.policy.transient or budget.used < budget.attempts:
                raise
            raise type(error)(
                f"{error} (That was try {budget.used} of {budget.attempts}, as retry.attempts allows. Running span "
                f"{plan.span.name} again goes on from here, with as many tries.)"
            ) from error.__cause__
        finally:
            _was_done.reset(token)

    return body
