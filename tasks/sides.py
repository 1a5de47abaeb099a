"""The two sides of a parity comparison as runs of their own: the same spans from the same checkpoint, other devices.

Nothing of them reaches the lineage that they are about, nor the list of runs; the ledger has their attempts.
"""

from __future__ import annotations

from typing import NamedTuple, get_args

from configs.schema import Config
from infra.store import Store
from tasks.contracts import RunPlan
from tasks.errors import ConfigError
from tasks.plan import plan_work, run_key


class Sides(NamedTuple):
    """`common` is for what both share, the validated rows; `left` and `right` differ in accelerator and lineage."""

    lineage: str
    common: RunPlan
    left: RunPlan
    right: RunPlan

    @property
    def lock(self) -> str:
        """Key of the lock to be held: all comparisons of the same work share rows, and a side if they have it both."""
        return f"lineages/{self.common.config.lineage}.run"


def plan_sides(store: Store, config: Config, span: str, left: str, right: str) -> Sides:
    """Both sides' runs over `span`, whether or not the lineage has trained it; writes nothing.

    Both begin where the lineage's own run over the span did or would begin. `train.precision: auto` would be another
    precision on each side, so it is fp32 here. Lineages are named after the work, as in main-parity-4660d23f-xla, so
    no other settings or parent ever meet there. An accelerator may be compared with itself: it is trained twice.

    Raises:
        ConfigError: there is no such accelerator, or the span can't be trained next; says what can.
        StoreError: the lineage's head or an earlier plan is not readable.
    """
    known = get_args(Config.model_fields["accelerator"].annotation)
    for side in (left, right):
        if side not in known:
            raise ConfigError(f"accelerator {side!r} is unknown; there are {', '.join(known)}")
    work = plan_work(store, _same_precision(config), span)
    neutral = work.config.model_copy(update={"accelerator": known[0]})
    name = f"{config.lineage}-parity-{run_key(neutral, work.window, work.parent)[:8]}"
    again = "-again" if left == right else ""
    return Sides(
        lineage=config.lineage,
        common=_beside(work, name, known[0]),
        left=_beside(work, f"{name}-{left}", left),
        right=_beside(work, f"{name}-{right}{again}", right),
    )


def drop_checkpoints(store: Store, side: RunPlan) -> None:
    """Delete all that a side's training left in its lineage; what it measured is in its result."""
    store.delete(f"lineages/{side.config.lineage}")


def _same_precision(config: Config) -> Config:
    if config.train.precision != "auto":
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"precision": "fp32"})})


def _beside(work: RunPlan, lineage: str, accelerator: str) -> RunPlan:
    """The same work in another lineage."""
    config = work.config.model_copy(update={"lineage": lineage, "accelerator": accelerator})
    return work.model_copy(update={"config": config, "run_key": run_key(config, work.window, work.parent)})
