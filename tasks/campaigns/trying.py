"""Begin experiments: one span trained again with other settings and judged, on a branch that no run continues.

An experiment is a backfill of the stages train and evaluate with a name. Its record is `experiments/<name>.json`.
"""

import contextlib

from configs.load import changed
from configs.schema.config import Config
from infra.store.base import Conflict, Store
from infra.store.records import read_record, settle
from tasks.campaigns.campaign import BackfillPlan, BackfillStage
from tasks.campaigns.planner import plan_backfill
from tasks.contracts.jobs import JobSpec
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import EXPERIMENT, RESULT, SPEC
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, StoreError
from tasks.runs import branches, lineage
from tasks.runs.done import check_outputs
from tasks.runs.experiments import LONGEST_NAME, Experiment, TriedSetting, find, is_name
from tasks.runs.plan import read_plan
from tasks.runs.results import read_result

STAGES: tuple[BackfillStage, ...] = ("train", "evaluate")
# Settings of `train` that validate reads too; all other ones of that section come after the rows are written.
_OF_ROWS = ("train.row_weight", "train.batch_by", "train.max_tokens.", "train.sequence_tokens")


def plan_experiment(store: Store, config: Config, span: str, name: str, given: bool) -> tuple[BackfillPlan, Experiment]:
    """Plan an experiment over a span. Writes nothing.

    Args:
        given: True if a person chose the name. Another name gets a suffix if it is taken.

    Raises:
        ConfigError: the name can't be used or belongs to another experiment, nothing differs from the lineage's own
            run, or the span can't be trained, as in `plan_backfill`.
        StoreError: a checkpoint, plan or result is not readable.
    """
    if not is_name(name):
        raise ConfigError(
            f"--name {name!r}: begin with a letter or digit, go on with letters, digits and . = , + - _, and use at "
            f"most {LONGEST_NAME} characters"
        )
    plan = plan_backfill(store, config, span, span, STAGES, f"experiment {name}", parallel=1)
    own = own_run(store, plan.on, span)
    (work,) = plan.spans
    if plan.branch is None or work.run_key is None:
        raise ConfigError(
            f"nothing to try: run {own} over {span} has exactly these settings; change one, as in --set "
            f"train.learning_rate=3e-5. Other gates need no training: millrace gate --run {own}"
        )
    before = changed(read_plan(store, own).config, plan.config) if own is not None else {}
    settings = tuple(TriedSetting(key=key, before=old, now=new) for key, (old, new) in before.items())
    experiment = Experiment(
        name=name,
        span=work.span,
        lineage=plan.lineage,
        branch=plan.branch,
        backfill=plan.id,
        run_key=work.run_key,
        beside=own,
        settings=tuple(each for each in settings if each.key != "lineage"),
        at=now(),
    )
    there = find(store, name)
    if there is None or there.backfill == plan.id:
        return plan, there or experiment
    if given:
        raise ConfigError(
            f"experiment {name} is another one, over {there.span.name} with {_settings(there)}; choose another --name"
        )
    return plan_experiment(store, config, span, f"{name[: LONGEST_NAME - 5]}-{plan.id[:4]}", given=True)


def begin(store: Store, experiment: Experiment) -> None:
    """Write the record of an experiment, unless it exists, and reuse the rows that its lineage validated.

    Raises:
        ConfigError: another process has just begun another experiment of this name.
        StoreError: the record is not readable; names the file.
    """
    try:
        store.create(EXPERIMENT.key(experiment=experiment.name), experiment.to_json())
    except Conflict:
        there = read_record(store, EXPERIMENT.key(experiment=experiment.name), Experiment, "move the file away")
        if there.backfill != experiment.backfill:
            raise ConfigError(
                f"experiment {experiment.name} was just begun by another process, with {_settings(there)}; choose "
                "another --name"
            ) from None
    if experiment.beside is not None and not any(map(_decides_rows, experiment.settings)):
        _reuse_rows(store, experiment.beside, experiment.run_key)


def own_run(store: Store, name: str, span: str) -> str | None:
    """Return the key of the run with which a lineage trained a span; None if it has trained none of this name.

    Raises:
        StoreError: a checkpoint is not readable.
    """
    chain = lineage.newest_first(store, name)
    return next((state.run_key for _, state in chain if state.consumed and state.consumed[-1].span.name == span), None)


def newest_trained(store: Store, name: str) -> str | None:
    """Return the span that the runs of a lineage trained last; None if they have trained none. Raises StoreError."""
    head = lineage.head(store, branches.active(store, name))
    return head[1].consumed[-1].span.name if head is not None and head[1].consumed else None


def _settings(experiment: Experiment) -> str:
    return ", ".join(f"{each.key}={each.now}" for each in experiment.settings) or "other settings"


def _decides_rows(setting: TriedSetting) -> bool:
    return not setting.key.startswith("train.") or setting.key.startswith(_OF_ROWS)


def _reuse_rows(store: Store, own: str, run_key: str) -> None:
    """Give a run the validated rows, the holdout and the catalogue of another run over the same span.

    Does nothing if the run has validated rows, or the other run's are gone.
    """
    with contextlib.suppress(StoreError):  # the stage validate then does the work itself
        result = read_result(store, own, Stage.validate)
        if result is None or store.exists(RESULT.key(run=run_key, stage=Stage.validate)):
            return
        check_outputs(store, result.outcome)
        key = SPEC.key(run=own, stage=Stage.validate, attempt=result.attempt)
        spec = read_record(store, key, JobSpec).model_copy(update={"run_key": run_key})
        settle(store, SPEC.of(spec), spec.to_json())
        copied = result.model_copy(update={"run_key": run_key}).to_json()
        store.create(RESULT.key(run=run_key, stage=Stage.validate), copied)
