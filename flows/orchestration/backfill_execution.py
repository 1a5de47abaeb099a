"""The execution of a backfill's plan: its locks, its record, its span runs, and the release at the end."""

import contextlib
from collections.abc import Iterator

from prefect.exceptions import Pause
from prefect.runtime import flow_run

from flows.orchestration.backfill_page import StatusPage
from flows.orchestration.child_runs import SpanRunPool, started_by_tag
from flows.orchestration.lineage_queue import lineage_turn
from flows.orchestration.recorded_invocation import page_of
from flows.orchestration.span_flow import backfill_span
from infra.store.base import Conflict, Store
from tasks.campaigns import stored
from tasks.campaigns.campaign import BackfillPlan, Campaign, Cell, State
from tasks.campaigns.stored import adopt, check_not_overtaken, locks, run_of
from tasks.contracts.kinds import lineage_lock
from tasks.foundation.clock import now
from tasks.foundation.errors import ERRORS, FailureClass, classify
from tasks.foundation.nouns import plural
from tasks.running.lineage_lock import hold_lineage
from tasks.running.stage_output import logger
from tasks.runs import releases
from tasks.runs.branches import begin
from tasks.runs.plan import listed, save_plan

AGAIN_SECONDS = 2.0  # between two attempts to lock the lineage for the release
_CONTINUE = "To continue with the rest, start the same backfill again"


class BackfillExecution:
    """The steps of the flow. Call them in this order: start each span, finish, release."""

    def __init__(self, store: Store, plan: BackfillPlan, page: StatusPage, pool: SpanRunPool) -> None:
        self.store, self.plan, self.page, self._pool = store, plan, page, pool

    def start(self, span: Cell) -> bool:
        """Start a span's flow run. If it trains, wait for the training; return False if that failed."""
        run = run_of(self.store, self.plan, span)
        save_plan(self.store, run)
        self.page.update_span(span, run_key=run.run_key)
        parameters = {
            "workspace": self.store.uri,
            "backfill": self.plan.id,
            "span": span.span.name,
            "run_key": run.run_key,
            "stages": list(span.left),
        }
        key = f"backfill:{self.store.uri}:{self.plan.id}:{span.span.name}"
        tags = [f"backfill:{self.plan.id}", started_by_tag(str(flow_run.id))]
        return self._pool.start(span, run, key, parameters, tags)

    def finish(self) -> None:
        """Wait for all started spans, except for the release."""
        self._pool.wait()

    @property
    def complete(self) -> bool:
        """True if everything but the release is done."""
        return not any(span.failure or span.unfinished for span in self.page.state.spans)

    def release(self) -> None:
        """Release the last span while the lineage is locked; then runs of the lineage continue the branch."""
        with self._lineage_locked():
            check_not_overtaken(self.store, self.plan)
            last = self.plan.to_do[-1]
            self._pool.release(last)
            if self.page.state.spans[-1].release == "done":
                adopt(self.store, self.plan)

    @contextlib.contextmanager
    def _lineage_locked(self) -> Iterator[None]:
        if self.plan.lineage in locks(self.plan):
            yield
            return
        with contextlib.ExitStack() as held:
            warned = False
            while True:
                try:
                    held.enter_context(lineage_turn(self.store, self.plan.lineage, patience_seconds=0.0))
                    break
                except Conflict as error:
                    if not warned:
                        logger().warning("the release waits for a run of the lineage to end: %s", error)
                        warned = True
                    self._pool.sleep(AGAIN_SECONDS)
            yield


@contextlib.contextmanager
def executing(store: Store, plan: BackfillPlan) -> Iterator[BackfillExecution]:
    """Execute a plan inside the block. After the block, even after an error, none of its spans runs.

    Raises:
        Conflict: another process works on the branch, or on the lineage if its own runs have work left.
    """
    with contextlib.ExitStack() as locked:
        for name in locks(plan):
            lock = hold_lineage(store, lineage_lock(name), logger().warning)
            locked.enter_context(lock if name == plan.branch else lineage_turn(store, name))
        if plan.branch is not None:
            begin(store, plan.branch, plan.on, plan.base)
        for sentence in plan.sentences:
            logger().info("%s", sentence)
        page = StatusPage(store, plan, stored.begin(store, plan, flow_run.id or "", page_of(flow_run.id)))
        try:
            with SpanRunPool(backfill_span, plan.parallel, page) as pool:
                yield BackfillExecution(store, plan, page, pool)
        except BaseException as error:
            _end_early(page, error)
            raise


def conclude(execution: BackfillExecution) -> Campaign:
    """Close the record of a backfill at its end.

    Raises:
        StageError: a span failed; raised with the class of the first failure. The message names the failed and the
            unreached spans, and the way to continue.
    """
    page, plan = execution.page, execution.plan
    spans = page.state.spans
    failed = [span for span in spans if span.failure is not None]
    left = [span.span.name for span in spans if span.failure is None and span.unfinished]
    if failed or left:
        failures = listed([f"{span.span.name} ({span.failure}: {span.message})" for span in failed], most=3)
        sentence = (
            f"{len(failed)} of {plural(len(spans), 'span')} failed{': ' * bool(failures)}{failures}"
            + (f"; not reached: {listed(left)}" if left else "")
            + f". Nothing was released. What is done stays done. {_CONTINUE}"
        )
        _close(page, "Failed", sentence)
        training = [span.failure for span in failed if span.train == "failed"]
        first = next(iter([*training, *(span.failure for span in failed)]), None) or FailureClass.CANCELLED
        raise ERRORS[first](f"backfill {plan.id}: {sentence}")
    if spans[-1].release == "refused":
        return _close(page, "Rejected", f"The gates refused {plan.last}: nothing was released, the champion stays.")
    last = spans[-1]
    release = releases.of_run(execution.store, last.run_key) if last.run_key and last.release == "done" else None
    if release is not None:
        page.update(release=release.number)
        adopted = f"; runs of lineage {plan.lineage} continue {plan.branch}" if plan.branch else ""
        serving = releases.current(execution.store)
        newer = serving is not None and serving.number != release.number
        serves = f"; release {serving.number} of {serving.span.name} serves on" if serving and newer else ""
        hold = releases.hold_of(execution.store)
        waits = f" It waits. {hold.sentence}" if hold is not None else ""
        return _close(page, "Released", f"{plan.last} is released as {release.number}{serves}{adopted}.{waits}")
    return _close(page, "Done", f"All requested stages are done for the {plural(len(spans), 'span')}.")


def _end_early(page: StatusPage, error: BaseException) -> None:
    if isinstance(error, Pause):
        page.update(state="Paused", sentence="Suspended in Prefect; it continues when it is resumed there.")
    elif classify(error) is FailureClass.CANCELLED:
        _close(page, "Cancelled", f"{error or 'Stopped'}. {_CONTINUE}.")
    else:
        _close(page, "Failed", f"{classify(error)}: {error}")


def _close(page: StatusPage, state: State, sentence: str) -> Campaign:
    return page.update(state=state, sentence=sentence, ended_at=now())
