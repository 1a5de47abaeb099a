"""What can't work, found before a run begins and not a minute into it."""

from collections.abc import Sequence

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.planning.preflight_columns import check_columns, check_labels
from tasks.planning.preflight_encoder import check_encoder
from tasks.runs.results import result_key


def check_plan(store: Store, plan: RunPlan) -> None:
    """Check a run as `check_window` does. What is trained already needs no encoder, nor does a refresh."""
    begins = bool(plan.window) and plan.parent is None and not store.exists(result_key(plan.run_key, Stage.train))
    check_window(store, plan.config, plan.window, begins)


def check_window(store: Store, config: Config, window: Sequence[SpanRef], begins: bool) -> None:
    """Check settings against the spans of a run, and the encoder of a new model that is made on this machine.

    Args:
        begins: whether the run is trained from nothing.

    Raises:
        ConfigError: the pretrained folder can't be used, or a head has no labels.
        DataError: a span lacks a column that the settings name.
    """
    check_columns(store, config, window)
    check_labels(store, config, window)
    if begins and (config.train.compute or config.compute) == "local":
        check_encoder(config)
