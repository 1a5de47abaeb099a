"""What a backfill will do, as a record: span by span and stage by stage, what it takes, and what follows from it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from configs.schema import Config
from tasks.contracts import CheckpointRef, SpanRef
from tasks.plan import listed
from tasks.records import Record
from tasks.spans import first_day

Asked = Literal["train", "evaluate", "infer", "release"]
# refused: the gates have said no, so it is not done
Action = Literal["done", "run", "not asked", "refused"]


class SpanPlan(Record):
    """One run of the backfill. The last span of its window gives it its name, and mostly is the only one."""

    span: SpanRef
    window: tuple[SpanRef, ...]
    branch: str | None = Field(description="the branch that its run is on; null: the lineage's own run, left as it is")
    run_key: str | None = Field(description="null: it follows from a checkpoint that is still to be made")
    trained: bool
    train: Action
    evaluate: Action
    infer: Action
    release: Action
    why: str
    expected_seconds: float | None = Field(description="for what is left, one stage after the other; null: not known")
    expected_dollars: float | None

    def action(self, stage: str) -> Action:
        """What is to be done about a stage."""
        actions: dict[str, Action] = {
            "train": self.train,
            "evaluate": self.evaluate,
            "infer": self.infer,
            "release": self.release,
        }
        return actions[stage]

    @property
    def left(self) -> tuple[str, ...]:
        """The stages that are to be run."""
        return tuple(stage for stage in ("train", "evaluate", "infer", "release") if self.action(stage) == "run")


class BackfillPlan(Record):
    """`backfills/<id>/plan.json`, as it was when the backfill first began."""

    version: Literal[1] = 1
    id: str
    lineage: str = Field(description="as it was named")
    on: str = Field(description="the lineage that runs of this name continue now: itself, or a branch adopted before")
    branch: str | None = Field(description="where spans are trained; null: none has to be")
    base: CheckpointRef | None = Field(description="the checkpoint that the branch begins with; null: it begins anew")
    first: str
    last: str
    stages: tuple[Asked, ...]
    parallel: int
    reason: str
    workspace: str
    config: Config
    spans: tuple[SpanPlan, ...]
    invalidated: tuple[SpanRef, ...] = Field(description="trained on what is replaced, and beyond the range")
    serving: SpanRef | None = Field(description="of the current release; null before the first")
    expected_seconds: float | None = Field(description="wall time of all that is left; null: not known")
    expected_dollars: float | None
    attempts_seen: int = Field(description="earlier attempts that the expectation is told from; the fewest of a stage")

    @property
    def to_do(self) -> tuple[SpanPlan, ...]:
        """The spans of which something is left to do, in order."""
        return tuple(span for span in self.spans if span.left)

    @property
    def refused(self) -> bool:
        """Whether the gates have refused the last span."""
        return self.spans[-1].release == "refused"

    @property
    def sentences(self) -> tuple[str, ...]:
        """The plan for people: what is done, what will be, what it takes, what is released, what follows."""
        return tuple(filter(None, (self._work(), self._takes(), self._releases(), self._beyond())))

    def _work(self) -> str:
        if not self.to_do:
            return f"Nothing to do: all that was asked for is done for the {len(self.spans)} spans."
        counts = [(stage, sum(span.action(stage) == "run" for span in self.spans)) for stage in self.stages]
        work = ", ".join(f"{stage} {count}" for stage, count in counts if count)
        done = len(self.spans) - len(self.to_do)
        said = (
            f"{len(self.spans)} spans from {self.first} to {self.last}: {done} done, {len(self.to_do)} with work left "
            f"({work})."
        )
        if self.branch is None:
            return f"{said} Nothing is trained again: these are the runs of lineage {self.on}."
        base = f"from {self.base.prefix}" if self.base else "from nothing, as a new lineage does"
        return f"{said} Training goes on branch {self.branch}, {base}; lineage {self.on} stays as it is."

    def _takes(self) -> str:
        if not self.to_do:
            return ""
        if self.expected_seconds is None:
            return "How long it takes and what it costs is not known: the ledger has no run with all these stages yet."
        cost = f" and ${self.expected_dollars:.2f}" if self.expected_dollars is not None else ""
        return (
            f"Expected: {duration(self.expected_seconds)}{cost}, with up to {self.parallel} spans evaluated and "
            f"inferred at once, by the last {self.attempts_seen} successful attempt(s) of each stage."
        )

    def _releases(self) -> str:
        match self.spans[-1].release:
            case "not asked":
                adopts = f" and lineage {self.lineage} does not change" if self.branch else ""
                return f"Nothing is released{adopts}: release is not among the stages."
            case "refused":
                return f"The gates have refused {self.last}: nothing is released, the champion stays."
            case "run":
                adopted = f", and runs of lineage {self.lineage} then continue the branch" if self.branch else ""
                said = f"When all else is done, {self.last} is released if the gates agree{adopted}."
                if self.serving is None or first_day(self.serving.name) <= first_day(self.last):
                    return said
                return f"{said} Until those have come to {self.serving.name}, the release of that span serves on."
            case _:
                return f"{self.last} is released already."

    def _beyond(self) -> str:
        if not self.invalidated:
            return ""
        names = [span.name for span in self.invalidated]
        trained = f"{listed(names)} lie beyond the range and were trained on what is replaced"
        if "release" not in self.stages:
            return f"{trained}; nothing changes for them as long as the branch is not adopted."
        return (
            f"{trained}: once the branch is adopted, the next scheduled runs train them anew, one by one. "
            f"To do that now as well: --to {names[-1]}."
        )


def duration(seconds: float) -> str:
    """As in `2 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"
