"""Carrying out a backfill's plan: its locks, its record, its spans at work, and the release at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prefect.exceptions import Pause
from prefect.runtime import flow_run

from flows.backfill_page import Board
from flows.backfill_span import backfill_span
from flows.child_runs import asked_by
from flows.children import Crew
from flows.invoking import page_of
from flows.turns import in_turn
from infra.store import Conflict, Store
from tasks import backfill_state, releases
from tasks.alone import alone
from tasks.backfill_plan import BackfillPlan, SpanPlan
from tasks.backfill_runs import adopt, check_not_overtaken, locks, run_of
from tasks.backfill_state import BackfillState, State
from tasks.branches import begin
from tasks.errors import ERRORS, FailureClass, classify
from tasks.ledger import now
from tasks.plan import listed, save_plan
from tasks.sinks import logger

AGAIN_SECONDS = 2.0  # between two tries to have the lineage for the release


class Work:
    """What the flow asks for, in its order."""

    def __init__(self, store: Store, plan: BackfillPlan, board: Board, crew: Crew) -> None:
        self.store, self.plan, self.board, self._crew = store, plan, board, crew

    def start(self, span: SpanPlan) -> bool:
        """Start a span's flow run; where it trains, wait for that. False if the training failed."""
        run = run_of(self.store, self.plan, span)
        save_plan(self.store, run)
        self.board.key(span, run.run_key)
        parameters = {
            "workspace": self.store.uri,
            "backfill": self.plan.id,
            "span": span.span.name,
            "run_key": run.run_key,
            "stages": list(span.left),
        }
        key = f"backfill:{self.store.uri}:{self.plan.id}:{span.span.name}"
        self._crew.start(span, run, key, parameters, [f"backfill:{self.plan.id}", asked_by(str(flow_run.id))])
        return span.train != "run" or self._crew.trained(span)

    def finish(self) -> None:
        """Wait for all that was started, apart from the release."""
        self._crew.wait()

    @property
    def complete(self) -> bool:
        """Whether all is done but the release."""
        left = [span for span in self.board.state.spans if {"run", "running", "failed"} & {*span.steps[:3]}]
        return not left and not any(span.failure for span in self.board.state.spans)

    def release(self) -> None:
        """Have the last span released, while no run of the lineage goes on, and let the lineage continue the branch."""
        with self._alone_on_the_lineage():
            check_not_overtaken(self.store, self.plan)
            last = self.plan.to_do[-1]
            self._crew.let_release(last)
            if self.board.state.spans[-1].release == "done":
                adopt(self.store, self.plan)

    @contextlib.contextmanager
    def _alone_on_the_lineage(self) -> Iterator[None]:
        if self.plan.lineage in locks(self.plan):
            yield
            return
        with contextlib.ExitStack() as held:
            said = False
            while True:
                try:
                    held.enter_context(in_turn(self.store, self.plan.lineage))
                    break
                except Conflict as error:
                    if not said:
                        logger().warning("the release waits for a run of the lineage to end: %s", error)
                        said = True
                    self._crew.rest(AGAIN_SECONDS)
            yield


@contextlib.contextmanager
def carried_out(store: Store, plan: BackfillPlan) -> Iterator[Work]:
    """Work on a plan; at the end of the block nothing of it runs any more, however the end came.

    Raises:
        Conflict: another process works on the branch, or on the lineage where its own runs have work left.
    """
    with contextlib.ExitStack() as held:
        for name in locks(plan):
            mine = name == plan.branch
            held.enter_context(alone(store, f"lineages/{name}.run", logger().warning) if mine else in_turn(store, name))
        if plan.branch is not None:
            begin(store, plan.branch, plan.on, plan.base)
        for sentence in plan.sentences:
            logger().info("%s", sentence)
        board = Board(store, plan, backfill_state.begin(store, plan, flow_run.id or "", page_of(flow_run.id)))
        try:
            with Crew(backfill_span, plan.parallel, board) as crew:
                yield Work(store, plan, board, crew)
        except BaseException as error:
            _end_early(board, error)
            raise


def ended(work: Work) -> BackfillState:
    """Close the record of a backfill that came to its end.

    Raises:
        StageError: of the class of the first failure; says what failed, what was not reached, and how to go on.
    """
    board, plan = work.board, work.plan
    spans = board.state.spans
    failed = [span for span in spans if span.failure is not None]
    left = [span.span.name for span in spans if span.failure is None and {"run", "running"} & {*span.steps[:3]}]
    if failed or left:
        told = listed([f"{span.span.name} ({span.failure}: {span.message})" for span in failed], most=3)
        sentence = (
            f"{len(failed)} of {len(spans)} spans failed{': ' * bool(told)}{told}"
            + (f"; not reached: {listed(left)}" if left else "")
            + ". Nothing was released. What is done stays done: asked for again, the backfill goes on with the rest"
        )
        _close(board, "Failed", sentence)
        training = [span.failure for span in failed if span.train == "failed"]
        first = next(iter([*training, *(span.failure for span in failed)]), None) or FailureClass.CANCELLED
        raise ERRORS[first](f"backfill {plan.id}: {sentence}")
    if spans[-1].release == "refused":
        return _close(board, "Rejected", f"The gates refused {plan.last}: nothing was released, the champion stays.")
    release = next((one for one in releases.history(work.store) if one.run_key == spans[-1].run_key), None)
    if spans[-1].release == "done" and release is not None:
        board.update(release=release.number)
        goes_on = f"; runs of lineage {plan.lineage} continue {plan.branch}" if plan.branch else ""
        serving = releases.current(work.store)
        newer = serving is not None and serving.number != release.number
        serves = f"; release {serving.number} of {serving.span.name} serves on" if serving and newer else ""
        return _close(board, "Released", f"{plan.last} is released as {release.number}{serves}{goes_on}.")
    return _close(board, "Done", f"All that was asked for is done for the {len(spans)} spans.")


def _end_early(board: Board, error: BaseException) -> None:
    if isinstance(error, Pause):
        board.update(state="Paused", sentence="Suspended in Prefect; it goes on when it is resumed there.")
    elif classify(error) is FailureClass.CANCELLED:
        _close(board, "Cancelled", f"{error or 'Stopped'}; asked for again, it goes on with the rest.")
    else:
        _close(board, "Failed", f"{classify(error)}: {error}")


def _close(board: Board, state: State, sentence: str) -> BackfillState:
    return board.update(state=state, sentence=sentence, ended_at=now())
