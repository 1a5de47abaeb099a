"""Done stages: the result is readable and of the same work, and its folders are complete. Only this module decides."""

from infra.store.base import Store
from infra.store.manifest import MANIFEST, CorruptFolder, MissingFolder, check_sizes, quarantine
from tasks.contracts.jobs import Inputs, JobSpec
from tasks.contracts.outcomes import (
    ImportOutcome,
    Outcome,
    StageResult,
    TrainOutcome,
    ValidateOutcome,
    WarmupOutcome,
)
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import CATALOGUE, RESULT, SPEC, VECTORS
from tasks.foundation.records import decides
from tasks.runs.results import UnusableResult
from tasks.runs.run import Run


def usable_result(run: Run, inputs: Inputs, workers: int, outputs_stay: bool = True) -> StageResult | None:
    """Return the result of a stage that is done; None if it has not finished.

    Args:
        run: of a strict snapshot, which names records that can't be read.
        outputs_stay: False: its folders may have been deleted since, only its record is needed.

    Raises:
        StoreError: it has a result that can't be relied on, so it must run again; or no answer (NoAnswer).
    """
    result = run.stage(inputs.stage).result
    if result is not None:
        _check_inputs(run, result, inputs, workers)
        if outputs_stay:
            check_outputs(run.snapshot.store, result.outcome)
    return result


def _check_inputs(run: Run, result: StageResult, inputs: Inputs, workers: int) -> None:
    """Check that a result was made from `inputs`, except inputs that a retry may find changed: champion, graphs,
    item feeds, golden set. The number of workers counts for graphs that training still needs.

    Raises:
        UnusableResult: it is of another run or stage, or was made from other inputs, because an earlier stage had to
            run again, or has the graphs of another number of workers.
    """
    uri, stage = run.snapshot.store.uri, inputs.stage
    if result.run_key != run.run_key or result.outcome.stage is not stage:
        key = RESULT.key(run=run.run_key, stage=stage)
        raise UnusableResult(f"{uri}/{key} is the result of {result.outcome.stage} of run {result.run_key}")
    key = SPEC.key(run=run.run_key, stage=stage, attempt=result.attempt)
    made_by = run.snapshot.read(key, JobSpec)
    if made_by is None:
        raise UnusableResult(f"{uri}/{key} is missing, so the inputs of the result are unknown")
    if _decisive(made_by.inputs) != _decisive(inputs):
        raise UnusableResult(f"{uri}/{key} names other inputs than the stages before have now")
    compiled = result.outcome.compiled if isinstance(result.outcome, WarmupOutcome) else None
    if compiled and made_by.workers != workers and run.outcome(Stage.train) is None:
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
    """Return whether two specs are for the same work, as in `usable_result`."""
    alike = {"inputs": _decisive(one.inputs), "config": other.config, "fences": other.fences}
    other = other.model_copy(update={"inputs": _decisive(other.inputs)})
    return one.config.same_work_as(other.config) and one.model_copy(update=alike) == other


def _decisive(inputs: Inputs) -> Inputs:
    """Return only the inputs that decide the outcome."""
    others = [name for name, field in type(inputs).model_fields.items() if not decides(field)]
    return inputs.model_copy(update=dict.fromkeys(others))
