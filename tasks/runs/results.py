"""The results of finished stages: whether they exist, and whether they can still be used.

Only this module decides that a stage is done: `result.json` is readable and of the same work, and its folders are
complete.
"""

from collections.abc import Callable

from pydantic import Field

from infra.store.base import Store
from infra.store.manifest import MANIFEST, CorruptFolder, MissingFolder, check_sizes, quarantine
from infra.store.records import find_record, read_record, update_record
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
from tasks.contracts.jobs import Inputs, JobSpec
from tasks.contracts.outcomes import (
    EvaluateOutcome,
    ImportOutcome,
    Outcome,
    StageResult,
    TrainOutcome,
    ValidateOutcome,
    WarmupOutcome,
)
from tasks.contracts.search import Changes
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.workspace import CATALOGUE, CHANGED, RESULT, SPEC, VECTORS, VERDICTS
from tasks.foundation.errors import StoreError
from tasks.foundation.records import Record, decides

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


def check_inputs(store: Store, result: StageResult, inputs: Inputs, workers: int) -> None:
    """Check that a result was made from `inputs`, except inputs that a retry may find changed: champion, graphs,
    item feeds, golden set. The number of workers counts for graphs that training still needs.

    Raises:
        UnusableResult: it was made from other inputs, because an earlier stage had to run again, or has the graphs of
            another number of workers.
    """
    key = SPEC.key(run=result.run_key, stage=inputs.stage, attempt=result.attempt)
    made_by = read_record(store, key, JobSpec, "the inputs of the result are unknown", UnusableResult)
    if _decisive(made_by.inputs) != _decisive(inputs):
        raise UnusableResult(f"{store.uri}/{key} names other inputs than the stages before have now")
    compiled = result.outcome.compiled if isinstance(result.outcome, WarmupOutcome) else None
    if compiled and made_by.workers != workers and read_result(store, result.run_key, Stage.train) is None:
        raise UnusableResult(f"its graphs are those of {made_by.workers} workers, and {workers} will train now")


def check_outputs(store: Store, outcome: Outcome) -> None:
    """Check that every folder of an outcome is complete. Readers of the files check their checksums.

    Raises:
        MissingFolder: a folder is gone.
        CorruptFolder: a manifest is unreadable, a file is gone, or the weights differ from the outcome's. A folder
            damaged like this is moved to quarantine/, so that it can be made again, unless others name its files.
    """
    for prefix in outcome.outputs:
        try:
            manifest = check_sizes(store, prefix)
        except CorruptFolder as error:
            if any(kind.match(f"{prefix}/{MANIFEST}") for kind in (CATALOGUE, VECTORS)):
                raise  # other releases may name its files, so it stays, and what replaces it is made beside it
            raise CorruptFolder(f"{error}; the folder is in {quarantine(store, prefix)} now") from error
        if isinstance(outcome, WarmupOutcome) and not manifest.facts.get("complete"):
            raise CorruptFolder(f"{store.uri}/{prefix} lost compiled graphs since")
        if isinstance(outcome, TrainOutcome | ImportOutcome) and manifest.sha256 != outcome.checkpoint.sha256:
            raise CorruptFolder(f"{store.uri}/{prefix} is complete, but not the checkpoint that this run made")
    if isinstance(outcome, ValidateOutcome) and outcome.quarantine and not store.exists(outcome.quarantine):
        raise MissingFolder(f"{store.uri}/{outcome.quarantine} is gone")


def same_work(one: JobSpec, other: JobSpec) -> bool:
    """Return whether two specs are for the same work, as in `check_inputs`."""
    alike = {"inputs": _decisive(one.inputs), "config": other.config, "fences": other.fences}
    other = other.model_copy(update={"inputs": _decisive(other.inputs)})
    return one.config.same_work_as(other.config) and one.model_copy(update=alike) == other


def _decisive(inputs: Inputs) -> Inputs:
    """Return only the inputs that decide the outcome."""
    others = [name for name, field in type(inputs).model_fields.items() if not decides(field)]
    return inputs.model_copy(update=dict.fromkeys(others))
