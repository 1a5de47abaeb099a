"""What can't work, found before a run begins and not a minute into it."""

from infra.store.base import Store
from tasks.contracts.runs import RunPlan
from tasks.preflight.columns import check_columns, check_labels
from tasks.preflight.encoder import check_encoder


def check_plan(store: Store, plan: RunPlan) -> None:
    """Check settings against the spans of a plan, and the encoder of a new lineage that begins on this machine.

    Raises:
        ConfigError: the pretrained folder can't be used, or a head has no labels.
        DataError: a span lacks a column that the settings name.
    """
    config = plan.config
    check_columns(store, config, plan.window)
    check_labels(store, config, plan.window)
    if plan.parent is None and (config.train.compute or config.compute) == "local":
        check_encoder(config)
