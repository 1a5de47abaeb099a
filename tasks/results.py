"""What finished stages left in the workspace, and whether it can still be relied on.

"Done" is decided here and by nothing else: a readable `result.json` of the same work, whose folders are complete.
"""

from __future__ import annotations

from pydantic import ValidationError

from infra.manifest import CorruptFolder, MissingFolder, quarantine, read_manifest
from infra.store import Store
from tasks.contracts import (
    Chore,
    EvaluateOutcome,
    ImportOutcome,
    InferOutcome,
    Inputs,
    JobSpec,
    Outcome,
    ReleaseOutcome,
    Stage,
    StageResult,
    TrainOutcome,
    ValidateOutcome,
    Verdict,
    WarmupOutcome,
    stage_prefix,
)
from tasks.errors import StoreError
from tasks.records import Record


class UnusableResult(StoreError):
    """A stage's result is there, but it can't be read or is not of this work."""


class Judgement(Record):
    """`verdicts.json`: what the gates said about one evaluation."""

    outcome: EvaluateOutcome
    verdicts: tuple[Verdict, ...]


def result_key(run_key: str, stage: Stage | Chore) -> str:
    return f"{stage_prefix(run_key, stage)}/result.json"


def judgement_key(run_key: str) -> str:
    return f"{stage_prefix(run_key, Stage.evaluate)}/verdicts.json"


def read_result(store: Store, run_key: str, stage: Stage | Chore) -> StageResult | None:
    """The result of a stage; None where it has not finished.

    Raises:
        UnusableResult: the file is damaged, or of another run or stage; names the file.
    """
    key = result_key(run_key, stage)
    try:
        result = StageResult.model_validate_json(store.read(key))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise UnusableResult(f"{store.uri}/{key} is not a result: {error.errors()[0]['msg']}") from error
    if result.run_key != run_key or result.outcome.stage is not stage:
        raise UnusableResult(f"{store.uri}/{key} is the result of {result.outcome.stage} of run {result.run_key}")
    return result


def read_judgement(store: Store, run_key: str) -> Judgement | None:
    """What the gates said; None where they have not been asked.

    Raises:
        UnusableResult: the file is damaged; names it.
    """
    key = judgement_key(run_key)
    try:
        return Judgement.model_validate_json(store.read(key))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise UnusableResult(f"{store.uri}/{key} is not a judgement: {error.errors()[0]['msg']}") from error


def check_inputs(store: Store, result: StageResult, inputs: Inputs) -> None:
    """Check that a result was made from `inputs`.

    The champion may have changed since, it is taken as it was then; and graphs may have been compiled again.

    Raises:
        UnusableResult: it was made from something else, because an earlier stage had to run again.
    """
    key = f"{stage_prefix(result.run_key, inputs.stage)}/attempt-{result.attempt}/spec.json"
    try:
        made_from = JobSpec.model_validate_json(store.read(key)).inputs
    except (FileNotFoundError, ValidationError) as error:
        raise UnusableResult(
            f"{store.uri}/{key} is gone or damaged, so what the result stands on is unknown"
        ) from error
    if _decisive(made_from) != _decisive(inputs):
        raise UnusableResult(f"{store.uri}/{key} names other inputs than the stages before have now")


def check_outputs(store: Store, outcome: Outcome) -> None:
    """Check that every folder of an outcome is complete. Checksums of the files are checked by those who read them.

    Raises:
        MissingFolder: a folder is gone.
        CorruptFolder: a manifest is unreadable, a file is gone, or the weights are not those of the outcome; a
            folder damaged like this is moved to quarantine/, so that it can be made again.
    """
    for prefix in _outputs(outcome):
        try:
            manifest = read_manifest(store, prefix)
            present = set(store.list(prefix))
            if lost := [entry.name for entry in manifest.files if f"{prefix}/{entry.name}" not in present]:
                raise CorruptFolder(f"{store.uri}/{prefix}/{lost[0]} is gone, though the manifest names it")
        except CorruptFolder as error:
            raise CorruptFolder(f"{error}; the folder is in {quarantine(store, prefix)} now") from error
        if isinstance(outcome, WarmupOutcome) and not manifest.facts["complete"]:
            raise CorruptFolder(f"{store.uri}/{prefix} lost compiled graphs since")
        if isinstance(outcome, TrainOutcome | ImportOutcome) and manifest.sha256 != outcome.checkpoint.sha256:
            raise CorruptFolder(f"{store.uri}/{prefix} is complete, but not the checkpoint that this run made")
    if isinstance(outcome, ValidateOutcome) and outcome.quarantine and not store.exists(outcome.quarantine):
        raise MissingFolder(f"{store.uri}/{outcome.quarantine} is gone")


def vectors_made(store: Store) -> int:
    """Vectors that the infer stages of all runs made."""
    suffix = f"/{Stage.infer.value}/result.json"
    results = (read_result(store, key.split("/")[1], Stage.infer) for key in store.list("runs") if key.endswith(suffix))
    return sum(
        result.outcome.vectors for result in results if result is not None and isinstance(result.outcome, InferOutcome)
    )


def same_work(one: JobSpec, other: JobSpec) -> bool:
    """Whether two specs ask for the same: all but the champion and the compiled graphs, as in `check_inputs`."""
    alike = {"inputs": _decisive(one.inputs), "config": other.config}
    other = other.model_copy(update={"inputs": _decisive(other.inputs)})
    return one.config.same_work_as(other.config) and one.model_copy(update=alike) == other


def _decisive(inputs: Inputs) -> Inputs:
    """The part of the inputs that decides the outcome."""
    beside = {"champion", "compiled"} & set(type(inputs).model_fields)
    return inputs.model_copy(update=dict.fromkeys(beside))


def _outputs(outcome: Outcome) -> list[str]:
    match outcome:
        case ValidateOutcome():
            return [rows.prefix for rows in outcome.rows]
        case WarmupOutcome():
            return [outcome.compiled.prefix] if outcome.compiled else []
        case TrainOutcome() | ImportOutcome():
            return [outcome.checkpoint.prefix]
        case InferOutcome():
            return [outcome.prefix]
        case ReleaseOutcome():
            return [outcome.model]
        case _:
            return []
