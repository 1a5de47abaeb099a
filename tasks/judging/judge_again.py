"""Judge a run again by changed rules, at any time, or let a person override its verdicts.

It needs no worker, and no stage runs again.
"""

from collections.abc import Sequence
from pathlib import PurePath

from configs.load import load_config
from configs.schema.config import BESIDE_THE_WORK, Config
from infra.store.base import Store
from tasks.contracts.evaluation import Override, Rules
from tasks.contracts.outcomes import EvaluateOutcome, InferOutcome, ReleaseOutcome
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import CONFIG
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError
from tasks.judging.judge_run import judge_evaluation, judge_release, rules_of
from tasks.runs import releases
from tasks.runs.plan import find_run, read_plan
from tasks.runs.results import Judgement, change_judgement, read_judgement, read_result


def plan_again(store: Store, run_key: str, config_file: PurePath | str | None, overrides: Sequence[str]) -> RunPlan:
    """Return the plan of a run with the rules to judge it by; everything else in it stays.

    Args:
        run_key: its first characters are enough.
        config_file: its gates and slices are the rules; None or empty: the settings of the run itself, except
            `publish`: no address or name of a secret is taken from the workspace.
        overrides: single settings on top of both. Without file and overrides, the newest judgement's rules apply.

    Raises:
        ConfigError: the run doesn't exist, several begin so, or the configuration is wrong.
        StoreError: a record of the run is not readable.
    """
    run_key = find_run(store, run_key)
    plan = read_plan(store, run_key)
    if not config_file and not overrides:
        judged = read_judgement(store, run_key)
        config = plan.config if judged is None else _with_rules(plan.config, judged.rules)
    else:
        given = load_config(config_file or store.local(CONFIG.key(run=run_key)), overrides)
        config = plan.config.model_copy(update={name: getattr(given, name) for name in BESIDE_THE_WORK})
        config = _with_rules(config, rules_of(given))
    if not config_file:
        own = load_config(None, [override for override in overrides if override.startswith("publish.")])
        config = config.model_copy(update={"publish": own.publish})
    return plan.model_copy(update={"workspace": store.uri, "config": config})


def judge_again(store: Store, plan: RunPlan) -> Judgement:
    """Judge the run's measurements by the rules of the plan; with unchanged rules, nothing is written.

    The caller holds the lock of the lineage.

    Raises:
        ConfigError: the run was not evaluated yet, or a rule names a column that its rows do not have.
        StoreError: the measurements are not readable.
    """
    evaluated = read_result(store, plan.run_key, Stage.evaluate)
    if evaluated is None or not isinstance(evaluated.outcome, EvaluateOutcome):
        raise ConfigError(
            f"run {plan.run_key} was not evaluated yet, so there is nothing to judge; "
            f"first: millrace run --span {plan.span.name}"
        )
    judgement = judge_evaluation(store, plan, evaluated.outcome)
    exported = read_result(store, plan.run_key, Stage.release)
    inferred = read_result(store, plan.run_key, Stage.infer)
    if exported is None or inferred is None:
        return judgement
    assert isinstance(exported.outcome, ReleaseOutcome)
    assert isinstance(inferred.outcome, InferOutcome)
    gates, least = plan.config.release.gates, plan.config.evaluate.min_shared
    verdicts = judge_release(exported.outcome, inferred.outcome.vectors, gates, least)
    if verdicts == judgement.release_verdicts:
        return judgement
    changed = change_judgement(
        store, plan.run_key, lambda there: (there or judgement).model_copy(update={"release_verdicts": verdicts})
    )
    assert changed is not None
    return changed


def let_pass(store: Store, plan: RunPlan, judgement: Judgement, name: str, reason: str) -> Judgement:
    """Record a person's override of a run that is refused, or that a gate asks about, with the reason.

    The caller holds the lock of the lineage.

    Raises:
        ConfigError: name or reason is empty, or no gate refuses the run or asks.
    """
    if not name.strip() or not reason.strip():
        raise ConfigError("an override needs a name and a reason: --override NAME --reason TEXT")
    if judgement.passes:
        raise ConfigError(f"no gate refuses run {plan.run_key}, so there is nothing to override")
    if (release := releases.of_run(store, plan.run_key)) is not None:
        raise ConfigError(f"run {plan.run_key} is release {release.number} already, so there is nothing to override")
    about = judgement.refusals or judgement.asks
    override = Override(name=name.strip(), reason=reason.strip(), at=now(), refusals=about)

    def passed(there: Judgement | None) -> Judgement:
        now_there = there or judgement
        return now_there.model_copy(update={"overrides": (*now_there.overrides, override)})

    changed = change_judgement(store, plan.run_key, passed)
    assert changed is not None
    return changed


def _with_rules(config: Config, rules: Rules) -> Config:
    judged = {
        "gates": rules.gates,
        "slices": rules.slices,
        "min_slice_rows": rules.min_slice_rows,
        "champion_loss": rules.champion_loss,
        "min_shared": rules.min_shared,
        "label_loss": rules.label_loss,
    }
    return config.model_copy(
        update={
            "evaluate": config.evaluate.model_copy(update=judged),
            "release": config.release.model_copy(update={"gates": rules.release_gates}),
        }
    )
