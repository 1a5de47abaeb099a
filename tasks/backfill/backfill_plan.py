"""The plan of a backfill, as a record: the work for each span and stage, the expected time, and the consequences.

Spans are trained in sequence, and evaluated and inferred in parallel; the expected time and cost count on it.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from pydantic import Field

from configs.prices import sum_dollars
from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.references import CheckpointRef, SpanRef
from tasks.contracts.spans import first_day
from tasks.contracts.stages import BackfillPhase, stages_in
from tasks.contracts.workspace import RESULT
from tasks.foundation.records import Record
from tasks.monitoring.estimates import Past, work_cost
from tasks.runs.plan import listed, rows_of

# The stages to choose from, in order. SpanPlan and SpanState have a field for each.
BackfillStage = Literal["train", "evaluate", "infer", "release"]
BACKFILL_STAGES: tuple[BackfillStage, ...] = get_args(BackfillStage)

# not asked: the stage was not requested; refused: the gates refused the model, so the stage is not run
Action = Literal["done", "run", "not asked", "refused"]


class SpanPlan(Record):
    """One run of the backfill, named after the last span of its window. Most windows have one span."""

    span: SpanRef
    window: tuple[SpanRef, ...]
    branch: str | None = Field(description="branch of its run; null: the lineage's own run, which is kept")
    run_key: str | None = Field(description="key of the run; null: not known until the checkpoint before it is made")
    trained: bool
    train: Action = Field(description="state of train")
    evaluate: Action = Field(description="state of evaluate")
    infer: Action = Field(description="state of infer")
    release: Action = Field(description="state of release")
    why: str = Field(description="reason in words")
    expected_seconds: float | None = Field(
        description="expected time of the stages left, in sequence, in seconds; null: unknown"
    )
    expected_dollars: float | None

    def action(self, stage: str) -> Action:
        """Return the action for a stage."""
        action: Action = getattr(self, stage)
        return action

    @property
    def left(self) -> tuple[BackfillStage, ...]:
        """The stages left to run."""
        return tuple(stage for stage in BACKFILL_STAGES if self.action(stage) == "run")


class BackfillPlan(Record):
    """`backfills/<id>/plan.json`, from the first start of the backfill."""

    version: Literal[1] = 1
    id: str
    lineage: str = Field(description="as given by the user")
    on: str = Field(description="active branch of the lineage: itself, or an adopted branch")
    branch: str | None = Field(description="branch on which spans are trained; null: no span has to be trained")
    base: CheckpointRef | None = Field(description="checkpoint from which the branch starts; null: none, a new model")
    first: str
    last: str
    stages: tuple[BackfillStage, ...]
    parallel: int
    reason: str
    workspace: str
    config: Config
    spans: tuple[SpanPlan, ...]
    invalidated: tuple[SpanRef, ...] = Field(
        description="spans after the range, whose models descend from models that this backfill replaces"
    )
    serving: SpanRef | None = Field(description="span of the current release; null: no release yet")
    expected_seconds: float | None = Field(description="wall time of all stages left to run; null: not known")
    expected_dollars: float | None
    attempts_seen: int = Field(description="least number of earlier attempts per stage behind the estimate")

    @property
    def to_do(self) -> tuple[SpanPlan, ...]:
        """The spans with stages left to run, in order."""
        return tuple(span for span in self.spans if span.left)

    @property
    def refused(self) -> bool:
        """True if the gates refused the last span."""
        return self.spans[-1].release == "refused"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The plan in sentences: the work, the expected time, the release, and the spans after the range."""
        return tuple(filter(None, (self._work(), self._expected(), self._release(), self._beyond())))

    def _work(self) -> str:
        if not self.to_do:
            return f"Nothing to do: all requested stages are done for the {len(self.spans)} spans."
        counts = [(stage, sum(span.action(stage) == "run" for span in self.spans)) for stage in self.stages]
        work = ", ".join(f"{stage} {count}" for stage, count in counts if count)
        done = len(self.spans) - len(self.to_do)
        summary = (
            f"{len(self.spans)} spans from {self.first} to {self.last}: {done} done, {len(self.to_do)} with work left "
            f"({work})."
        )
        if self.branch is None:
            return f"{summary} Nothing is trained again: these are the runs of lineage {self.on}."
        base = f"from {self.base.prefix}" if self.base else "without an earlier checkpoint"
        return f"{summary} Spans are trained on branch {self.branch}, {base}; lineage {self.on} stays as it is."

    def _expected(self) -> str:
        if not self.to_do:
            return ""
        if self.expected_seconds is None:
            return "The expected time and cost are not known: the ledger has no run with all these stages yet."
        cost = "" if self.expected_dollars is None else f" and ${self.expected_dollars:.2f}"
        return (
            f"Expected: {duration(self.expected_seconds)}{cost}, with up to {self.parallel} spans evaluated and "
            f"inferred at once, from the last {self.attempts_seen} successful attempt(s) of each stage."
        )

    def _release(self) -> str:
        match self.spans[-1].release:
            case "not asked":
                adopts = f" and lineage {self.lineage} does not change" if self.branch else ""
                return f"Nothing is released{adopts}: release is not among the stages."
            case "refused":
                return f"The gates refused {self.last}: nothing is released, the champion stays."
            case "run":
                adopted = f", and runs of lineage {self.lineage} then continue the branch" if self.branch else ""
                release = f"When all else is done, {self.last} is released if the gates agree{adopted}."
                if self.serving is None or first_day(self.serving.name) <= first_day(self.last):
                    return release
                return f"{release} The release of {self.serving.name} keeps serving until these runs reach that span."
            case _:
                return f"{self.last} is released already."

    def _beyond(self) -> str:
        if not self.invalidated:
            return ""
        names = [span.name for span in self.invalidated]
        trained = f"{listed(names)}, after the range, were trained on what is replaced"
        if "release" not in self.stages:
            return f"{trained}; nothing changes for them until the branch is adopted."
        return (
            f"{trained}: once the branch is adopted, the next scheduled runs train them again, one by one. "
            f"To include them now: --to {names[-1]}."
        )


def duration(seconds: float) -> str:
    """Format seconds, as in `2 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


class BackfillEstimate(NamedTuple):
    """Each span with its estimate, and wall seconds and dollars of all spans; None if a stage is not known."""

    spans: list[SpanPlan]
    seconds: float | None
    dollars: float | None
    attempts_seen: int


class _SpanWork(NamedTuple):
    """The work left for one span: seconds of its phases, in order, and the dollars of all; None if not known."""

    seconds: tuple[float, float, float]
    dollars: float | None
    attempts_seen: int | None  # None: nothing is left


def estimate_backfill(
    store: Store, config: Config, past: Past, spans: Sequence[SpanPlan], parallel: int
) -> BackfillEstimate:
    """Estimate each span, and all spans together if `parallel` of them are evaluated and inferred at once."""
    works = [_span_work(store, config, past, span) for span in spans]
    estimated = [_with_estimate(span, work) for span, work in zip(spans, works, strict=True)]
    known = [work for work in works if work is not None]
    if len(known) < len(works):
        return BackfillEstimate(estimated, None, None, 0)
    wall = wall_seconds([work.seconds[:2] for work in known], parallel)
    return BackfillEstimate(
        estimated,
        seconds=wall + sum(work.seconds[2] for work in known),
        dollars=sum_dollars(work.dollars for work in known),
        attempts_seen=min((work.attempts_seen for work in known if work.attempts_seen is not None), default=0),
    )


def wall_seconds(work: Iterable[tuple[float, float]], parallel: int) -> float:
    """Return the time until all is done, for (training, evaluation and inference) seconds of each span, in order."""
    slots = [0.0] * parallel
    trained = 0.0
    for training, evaluation_and_inference in work:
        trained += training
        if evaluation_and_inference:
            heapq.heapreplace(slots, max(slots[0], trained) + evaluation_and_inference)
    return max(trained, *slots)


def _span_work(store: Store, config: Config, past: Past, span: SpanPlan) -> _SpanWork | None:
    rows = rows_of(store, span.window)
    key = span.run_key
    training = [
        stage
        for stage in stages_in(BackfillPhase.training)
        if span.train == "run" and (key is None or not store.exists(RESULT.key(run=key, stage=stage)))
    ]
    judging = [stage for stage in stages_in(BackfillPhase.judging) if span.action(stage) == "run"]
    releasing = [stage for stage in stages_in(BackfillPhase.release) if span.action(stage) == "run"]
    parts = [work_cost(past, config, stages, rows) for stages in (training, judging, releasing)]
    seconds = [part.seconds for part in parts if part.seconds is not None]
    if len(seconds) < len(parts):
        return None
    seen = [part.attempts_seen for part in parts if part.seconds]
    train, evaluate_and_infer, release = seconds
    dollars = sum_dollars(part.dollars for part in parts)
    return _SpanWork((train, evaluate_and_infer, release), dollars, min(seen, default=None))


def _with_estimate(span: SpanPlan, work: _SpanWork | None) -> SpanPlan:
    if work is None:
        return span
    return span.model_copy(update={"expected_seconds": round(sum(work.seconds), 3), "expected_dollars": work.dollars})
