"""Which rows a lineage holds out: a rule that its first training fixes.

After a change of it, rows that were trained on would be in the holdout.
"""

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.records import read_record
from tasks.contracts.checkpoints import CheckpointState, HoldoutRule
from tasks.contracts.runs import RunPlan
from tasks.foundation.errors import ConfigError


def with_rule_of(store: Store, config: Config, state: CheckpointState | None) -> Config:
    """Return the configuration with the group that decides what is held out after this state of a lineage.

    Args:
        state: that training would continue from; None, or one without spans, leaves the choice to the configuration.

    Raises:
        ConfigError: the configuration has another share or group; says the ways out.
        StoreError: the plan of an earlier version's run is not readable.
    """
    wanted = HoldoutRule.of(config.evaluate)
    if state is not None and state.consumed:
        rule = _rule_of(store, state)
        if config.evaluate.group is None:
            wanted = wanted.model_copy(update={"group": rule.group})
        if wanted != rule:
            first, last = state.consumed[0].span.name, state.consumed[-1].span.name
            raise ConfigError(
                f"lineage {state.lineage} has trained with {_settings(rule)}, and the configuration has "
                f"{_settings(wanted)}: rows that were trained on would be in the holdout. Restore the settings, train "
                f"all spans again with the new ones (millrace backfill --from {first} --to {last}), or start a new "
                "lineage: --set lineage=NAME"
            )
    evaluate = config.evaluate.model_copy(update={"group": wanted.group})
    return config.model_copy(update={"evaluate": evaluate})


def _rule_of(store: Store, state: CheckpointState) -> HoldoutRule:
    if state.holdout is not None:
        return state.holdout
    plan = read_record(store, f"runs/{state.run_key}/plan.json", RunPlan, "restore it from a backup")
    return HoldoutRule.of(plan.config.evaluate)  # the group of a configuration without one is row_id


def _settings(rule: HoldoutRule) -> str:
    return f"evaluate.holdout_share={rule.share:g} and evaluate.group={rule.group}"
