"""Import foreign weights, control side: quick checks first, then a worker reads the file.

It is not a stage and does not use Prefect. Its attempt is in the ledger like any other.
"""

from pathlib import Path
from typing import NamedTuple

from configs.schema.config import Config
from infra.store.base import Store, sha256_of
from infra.store.records import place
from tasks.contracts.jobs import ImportInputs, stage_prefix
from tasks.contracts.kinds import lineage_lock
from tasks.contracts.outcomes import ImportOutcome
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Chore, compute_of
from tasks.foundation.errors import ConfigError
from tasks.planning.next_run import first_window, trainable
from tasks.planning.start import on_active
from tasks.running.lineage_lock import hold_lineage
from tasks.running.stage import run_stage
from tasks.running.stage_output import logger
from tasks.runs import lineage
from tasks.runs.plan import NEW_LINEAGE, plan_window
from tasks.runs.results import UnusableResult, read_result
from tasks.validate import validate


class Imported(NamedTuple):
    """The run whose new model has the weights, and the outcome of the import."""

    plan: RunPlan
    outcome: ImportOutcome


def import_checkpoint(store: Store, config: Config, file: Path, span: str | None = None) -> Imported:
    """Begin the configuration's lineage with the weights in `file`; a second call with the same file changes nothing.

    `span` is the last one of the first run's window, as in `plan_run`. Everything else of the new model, such as the
    tokenizer, is made from the rows of that window.

    Raises:
        ConfigError: the file doesn't exist, the lineage has begun, or the weights are of another model.
        DataError: the file can't be used, or the rows fail validation.
        Conflict: another process runs on this lineage.
        StageError: a worker failed, with its failure class.
    """
    path = _existing(file)
    with hold_lineage(store, lineage_lock(config.lineage), logger().warning):
        plan = plan_import(store, config, span)
        checksum = sha256_of(path)
        _check_begun_with(store, plan, checksum)
        rows = validate.fn(plan).rows
        elsewhere = compute_of(config, Chore.import_checkpoint) == "batch"
        folder = f"{stage_prefix(plan.run_key, Chore.import_checkpoint)}/weights-{checksum[:16]}"
        copy = f"{folder}/{path.name}" if elsewhere else None
        inputs = ImportInputs(file=str(path), copy_key=copy, sha256=checksum, rows=rows)
        if copy is not None:
            place(store, path, copy)
        outcome = run_stage(plan, inputs, ImportOutcome)
        store.delete(folder)
        return Imported(plan, outcome)


def plan_import(store: Store, config: Config, span: str | None = None) -> RunPlan:
    """Plan the first run of a new lineage, whose model gets imported weights.

    If the lineage already holds such an import and was not trained since, return the plan of that import.

    Raises:
        ConfigError: the lineage has begun in another way; or as `plan_run`.
        StoreError: as `plan_run`.
    """
    config = on_active(store, config)
    spans, wanted = trainable(store, config, span)
    plan = plan_window(store, config, first_window(store, config, spans, wanted), None)
    head = lineage.head(store, config.lineage)
    if head is None:
        if partial := lineage.partial(store, config.lineage):
            raise ConfigError(
                f"lineage {config.lineage} has begun: a run of it left {partial[-1]} and was not finished; "
                f"nothing is imported on top of that, so {NEW_LINEAGE}"
            )
    elif head[1].consumed or head[1].run_key != plan.run_key:
        state = "was trained already" if head[1].consumed else "holds imported weights already"
        raise ConfigError(
            f"lineage {config.lineage} {state} ({head[0].prefix}); weights are imported only into a lineage that has "
            f"not begun, so {NEW_LINEAGE}"
        )
    return plan


def _existing(file: Path) -> Path:
    path = file.expanduser().absolute()
    if path.is_dir():
        within = sorted(found.name for ending in ("*.safetensors", "*.bin", "*.pt") for found in path.glob(ending))
        found = f"; in it there is {', '.join(within)}" if within else ""
        raise ConfigError(f"{path} is a folder; give the file with the weights{found}")
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file")
    if not path.stat().st_size:
        raise ConfigError(f"{path} is empty")
    return path


def _check_begun_with(store: Store, plan: RunPlan, checksum: str) -> None:
    """Raise ConfigError if the lineage began with another file of weights."""
    head = lineage.head(store, plan.config.lineage)
    if head is None:
        return
    try:
        result = read_result(store, plan.run_key, Chore.import_checkpoint)
    except UnusableResult:
        return  # the import runs again with this file, and can't replace the checkpoint of another file
    before = result.outcome if result is not None else None
    if isinstance(before, ImportOutcome) and before.sha256 != checksum:
        raise ConfigError(
            f"lineage {plan.config.lineage} holds the weights of another file already ({head[0].prefix}); {NEW_LINEAGE}"
        )
