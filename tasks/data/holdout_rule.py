"""The group by which a lineage holds rows out, which its first training fixes.

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
        ConfigError: the configuration has another group; says the ways out.
        StoreError: the plan of an earlier version's run is not readable.
    """
    group = HoldoutRule.of(config.evaluate).group
    if state is not None and state.consumed:
        before = _rule_of(store, state).group
        if config.evaluate.group is None:
            group = before
        if group != before:
            first, last = state.consumed[0].span.name, state.consumed[-1].span.name
            raise ConfigError(
                f"lineage {state.lineage} has trained with evaluate.group={before}, and the configuration has "
                f"evaluate.group={group}: rows that were trained on would be in the holdout. Restore the setting, "
                f"train all spans again with the new one (millrace backfill --from {first} --to {last}), or start a "
                "new lineage: --set lineage=NAME"
            )
    evaluate = config.evaluate.model_copy(update={"group": group})
    return config.model_copy(update={"evaluate": evaluate})


def _rule_of(store: Store, state: CheckpointState) -> HoldoutRule:
    if state.holdout is not None:
        return state.holdout
    plan = read_record(store, f"runs/{state.run_key}/plan.json", RunPlan, "restore it from a backup")
    return HoldoutRule.of(plan.config.evaluate)  # the group of a configuration without one is row_id
