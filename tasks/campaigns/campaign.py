"""A campaign, as a record: its cells, which are runs beside a lineage, their stages, and how they ended.

What is left is planned anew at each start, from the results of the cells' runs; so a lost or stale record does no harm.
"""

from typing import Any, Literal, get_args

from pydantic import Field

from configs.schema.config import Config
from tasks.contracts.references import CheckpointRef, SpanRef
from tasks.contracts.spans import first_day
from tasks.foundation.clock import duration
from tasks.foundation.errors import FailureClass
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.runs.plan import listed

# The stages to choose from, in order. Cell has a field for each.
BackfillStage = Literal["train", "evaluate", "infer", "release"]
BACKFILL_STAGES: tuple[BackfillStage, ...] = get_args(BackfillStage)

# Lost: its process is gone and recorded no end; in the list alone
State = Literal["Planned", "Running", "Paused", "Done", "Released", "Rejected", "Failed", "Cancelled", "Lost"]
# run: to do, even if it is never reached; not asked: the stage was not requested; refused: the gates refused the model,
# so the stage is not run
Step = Literal["done", "run", "running", "failed", "not asked", "refused"]


class Cell(Record):
    """One run of a campaign, named after the last span of its window. Most windows have one span."""

    span: SpanRef
    window: tuple[SpanRef, ...]
    branch: str | None = Field(description="branch of its run; null: the lineage's own run, which is kept")
    run_key: str | None = Field(description="key of the run; null: not known until the checkpoint before it is made")
    trained: bool = Field(description="true: it was trained before this start")
    train: Step = Field(description="state of train")
    evaluate: Step = Field(description="state of evaluate")
    infer: Step = Field(description="state of infer")
    release: Step = Field(description="state of release")
    why: str = Field(description="reason in words")
    expected_seconds: float | None = Field(
        default=None,
        description="expected time of the stages left at the start, in sequence, in seconds; null: unknown",
    )
    expected_dollars: float | None = None
    failure: FailureClass | None = None
    message: str = ""
    flow_run: str = Field(default="", description="id of its flow run since the last start; empty: none")

    def step(self, stage: str) -> Step:
        """Return the state of a stage."""
        step: Step = getattr(self, stage)
        return step

    @property
    def steps(self) -> tuple[Step, ...]:
        """The states of all stages, in order."""
        return tuple(self.step(stage) for stage in BACKFILL_STAGES)

    @property
    def left(self) -> tuple[BackfillStage, ...]:
        """The stages left to run."""
        return tuple(stage for stage in BACKFILL_STAGES if self.step(stage) == "run")

    @property
    def unfinished(self) -> bool:
        """True if a stage other than release runs or is still to run."""
        return any(self.step(stage) in ("run", "running") for stage in BACKFILL_STAGES if stage != "release")


class CampaignSummary(Record):
    """A campaign without its cells. Times are ISO 8601 in UTC."""

    id: str
    lineage: str = Field(description="as given by the user")
    branch: str | None = Field(description="branch on which spans are trained; null: no span has to be trained")
    first: str
    last: str
    stages: tuple[BackfillStage, ...]
    reason: str
    state: State = "Planned"
    sentence: str = ""
    attempt: int = Field(default=0, ge=0, description="number of starts")
    page: str = ""
    began_at: str
    updated_at: str
    ended_at: str | None = None

    def only(self, kind: type["CampaignSummary"]) -> dict[str, Any]:
        """Return the fields that a summary or a campaign has, by name."""
        return {name: getattr(self, name) for name in kind.model_fields}


class Campaign(CampaignSummary):
    """The cells of a campaign, and how far they are."""

    version: Literal[1] = 1
    on: str = Field(description="lineage that runs of this name continue now: itself, or a branch adopted before")
    parallel: int = Field(description="spans evaluated and inferred at once")
    spans: tuple[Cell, ...]
    invalidated: tuple[SpanRef, ...] = Field(
        description="spans after the range, whose models descend from models that this backfill replaces"
    )
    expected_seconds: float | None = Field(description="wall time of all stages left at the start; null: not known")
    expected_dollars: float | None = Field(description="their cost, in dollars; null: not known")
    attempts_seen: int = Field(description="least number of earlier attempts per stage behind the estimate")
    flow_run: str = ""
    release: int | None = Field(default=None, description="number of the release that it made; null: none")

    @property
    def steps(self) -> tuple[int, int]:
        """The numbers of done and of all requested stages."""
        steps = [step for span in self.spans for step in span.steps if step not in ("not asked", "refused")]
        return sum(step == "done" for step in steps), len(steps)


class BackfillPlan(Campaign):
    """`campaigns/<id>.json`, from the first start on: the campaign with all that its runs begin from."""

    base: CheckpointRef | None = Field(description="checkpoint from which the branch starts; null: none, a new model")
    workspace: str
    config: Config
    serving: SpanRef | None = Field(description="span of the current release; null: no release yet")

    @property
    def to_do(self) -> tuple[Cell, ...]:
        """The spans with stages left to run, in order."""
        return tuple(span for span in self.spans if span.left)

    @property
    def refused(self) -> bool:
        """True if the gates refused the last span."""
        return self.spans[-1].release == "refused"

    @property
    def without_work(self) -> "BackfillPlan":
        """The end of a campaign that has nothing to do."""
        ended = {"state": "Rejected" if self.refused else "Done", "sentence": " ".join(self.sentences)}
        return self.model_copy(update=ended)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The plan in sentences: the work, the expected time, the release, and the spans after the range."""
        return tuple(filter(None, (self._work(), self._expected(), self._release(), self._beyond())))

    def _work(self) -> str:
        if not self.to_do:
            return f"Nothing to do: all requested stages are done for the {plural(len(self.spans), 'span')}."
        counts = [(stage, sum(span.step(stage) == "run" for span in self.spans)) for stage in self.stages]
        work = ", ".join(f"{stage} {count}" for stage, count in counts if count)
        done = len(self.spans) - len(self.to_do)
        summary = (
            f"{plural(len(self.spans), 'span')} from {self.first} to {self.last}: {done} done, "
            f"{len(self.to_do)} with work left ({work})."
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
            f"Expected: {duration(self.expected_seconds)}{cost}, with up to {plural(self.parallel, 'span')} evaluated "
            f"and inferred at once, from the last {plural(self.attempts_seen, 'successful attempt')} of each stage."
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
