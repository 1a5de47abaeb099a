"""The results of finished stages, the judgement of a run by its gates, and the changes of its release."""

from collections.abc import Callable

from pydantic import Field

from infra.store.base import Store
from infra.store.records import find_record, update_record
from tasks.contracts.evaluation import (
    Decision,
    ForwardScore,
    Override,
    Question,
    Rules,
    SliceMetrics,
    Verdict,
    refusals,
    refused,
)
from tasks.contracts.outcomes import (
    EvaluateOutcome,
    StageResult,
)
from tasks.contracts.search import Changes
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.workspace import CHANGED, RESULT, VERDICTS
from tasks.foundation.errors import StoreError
from tasks.foundation.records import Record

_JUDGED_AGAIN = "move the file away, and give the same command again: the run is judged once more"


class UnusableResult(StoreError):
    """A stage has a result, but it can't be read or belongs to other work."""


class Judgement(Record):
    """`verdicts.json`: verdicts of the gates on an evaluation and, later, on its release.

    The newest judgement of the run; earlier ones, by other rules, are `verdicts-<number>.json`.
    """

    outcome: EvaluateOutcome
    verdicts: tuple[Verdict, ...]
    release_verdicts: tuple[Verdict, ...] = Field(default=(), description="empty until the release is judged")
    number: int = Field(ge=1, description="how often the run was judged")
    at: str = Field(description="time in UTC, ISO 8601")
    rules: Rules
    forward: ForwardScore | None = Field(
        default=None, description="score of the champion; null: no champion, or one that was trained on the newest span"
    )
    slices: tuple[SliceMetrics, ...] = Field(description="metrics by slice of challenger and champion")
    larger_class: float | None = Field(default=None, description="share of the larger class among rows with a class")
    auc_by_chance: float | None = Field(default=None, description="95 % upper bound of the AUC of a random classifier")
    without_skill: dict[str, float] = Field(
        default={}, description="metrics of labels with the best constant prediction"
    )
    wrong_spans: tuple[str, ...] = Field(
        default=(), description="spans whose rows seem wrong, since even the champion scores lower on them"
    )
    overrides: tuple[Override, ...] = Field(
        default=(), description="decisions of people to let the run pass nevertheless"
    )
    asked: Question | None = Field(default=None, description="the last question to a person; null: nobody was asked")
    decision: Decision | None = Field(default=None, description="answer to it; null: none yet")

    @property
    def all_verdicts(self) -> tuple[Verdict, ...]:
        return (*self.verdicts, *self.release_verdicts)

    @property
    def refused(self) -> bool:
        """True if a critical gate or a person refuses the model, and nobody lets it pass."""
        by_person = self.decision is not None and self.decision.answer == "reject"
        return (by_person or refused(self.all_verdicts)) and not self.overrides

    @property
    def asks(self) -> tuple[str, ...]:
        """The sentences of the undecided gates that a person has to answer; empty if nothing is left to answer."""
        if self.refused or self.overrides or self.decision is not None:
            return ()
        return tuple(verdict.sentence for verdict in self.verdicts if verdict.asks)

    @property
    def passes(self) -> bool:
        """True if the model may be released: nothing refuses it, and no question is open."""
        return not self.refused and not self.asks

    @property
    def refusals(self) -> tuple[str, ...]:
        """The sentences of the gates that refused, and of the person who rejected the model."""
        found = refusals(self.all_verdicts)
        if self.decision is None or self.decision.answer != "reject":
            return found
        return (*found, f"{self.decision.name} rejected it: {self.decision.reason}.")

    @property
    def why(self) -> str:
        """The same as one text."""
        return " ".join(self.refusals)


class Refusal(Record):
    """A release that the gates of `release` refused: it was not made."""

    verdicts: tuple[Verdict, ...]

    @property
    def all_verdicts(self) -> tuple[Verdict, ...]:
        return self.verdicts

    @property
    def why(self) -> str:
        """The sentences of the gates that refused."""
        return " ".join(refusals(self.verdicts))


def read_result(store: Store, run_key: str, stage: Stage | Chore) -> StageResult | None:
    """Return the result of a stage; None if it has not finished.

    Raises:
        UnusableResult: the file is damaged, or of another run or stage; names the file.
    """
    key = RESULT.key(run=run_key, stage=stage)
    result = find_record(store, key, StageResult, error=UnusableResult)
    if result is None:
        return None
    if result.run_key != run_key or result.outcome.stage is not stage:
        raise UnusableResult(f"{store.uri}/{key} is the result of {result.outcome.stage} of run {result.run_key}")
    return result


def read_judgement(store: Store, run_key: str) -> Judgement | None:
    """Return the judgement of a run; None if it was not judged yet.

    Raises:
        UnusableResult: the file is damaged; names it.
    """
    return find_record(store, VERDICTS.key(run=run_key), Judgement, _JUDGED_AGAIN, UnusableResult)


def change_judgement(
    store: Store, run_key: str, change: Callable[[Judgement | None], Judgement | None]
) -> Judgement | None:
    """Change the judgement of a run as `update_record` does: a person may let the run pass at the same moment.

    Raises:
        UnusableResult: the file is damaged; names it.
    """
    return update_record(store, VERDICTS.key(run=run_key), Judgement, change, error=UnusableResult)


def read_changes(store: Store, run_key: str, release: int | None) -> Changes | None:
    """Return the changes of a run's release; None if it was compared with no other release.

    Args:
        release: its number, which is not in the file, since the comparison came first; None if a gate refused it.

    Raises:
        UnusableResult: the file is damaged; names it.
    """
    changes = find_record(store, CHANGED.key(run=run_key), Changes, error=UnusableResult)
    return changes.model_copy(update={"after": release}) if changes is not None else None
