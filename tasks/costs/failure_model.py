"""The rate and the cost of failures: by the ledger of a lineage, by a person's statement, or by a publication."""

import statistics
from collections.abc import Sequence

from configs.prices import price_of
from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.goodput import Assumed, FailureModel
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.stages import Stage, compute_of, instance_of
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.planning.start import on_active
from tasks.runs import lineage
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

RUNS = 20  # newest trainings of the lineage that are read
ENOUGH = 3  # failures; with fewer, their mean says little
# The Llama 3 Herd of Models, arXiv 2407.21783, section 3.3.4: 419 unexpected interruptions in 54 days of training on
# 16,384 H100, which are 2,048 nodes.
PUBLISHED_HOURS = 54 * 24 * 2048 / 419
PUBLISHED = "419 interruptions of 2,048 nodes in 54 days (Llama 3, arXiv 2407.21783)"
ASSUMED_SAVE = 1.0  # seconds, as train.checkpoint_every=auto takes until one is measured
ASSUMED_RESTART = 360.0  # seconds: five minutes for a node with its image, one for graphs and weights
ASSUMED_QUEUE = 300.0  # seconds until a lost node is replaced


def price_of_node(config: Config) -> float | None:
    """Return the dollars an hour of one node that trains; None if its price is not known."""
    price = price_of(instance_of(config, Stage.train), config.cost)
    if price is None:
        return None
    local = compute_of(config, Stage.train) == "local"
    return price.dollars_per_hour * (config.train.workers if local else 1)


def failure_model(store: Store, config: Config, node_hours_between: float | None = None) -> FailureModel:
    """Return the failures that the trainings of a lineage should expect, each number with its source.

    Args:
        node_hours_between: hours between two failures of one node, stated by a person; None: by the ledger, or if it
            has fewer than ENOUGH failures by a publication.

    Raises:
        StoreError: the lineage's head is not readable.
    """
    head = lineage.head(store, on_active(store, config).lineage)
    snapshot = Snapshot(store)
    keys = list(dict.fromkeys(rows.run_key for rows in head[1].consumed))[-RUNS:] if head else []
    runs = [Run(snapshot, key) for key in keys]
    ended = [one for run in runs for one in run.stage(Stage.train).attempts if one.ended_at is not None]
    failed = [one for one in ended if one.failure is not None and POLICIES[one.failure].loses_work]
    done = [one for one in ended if one.failure is None]
    queues = [one.seconds.queued for one in ended if one.seconds.queued]
    return FailureModel(
        node_hours_between=_stated(node_hours_between) or _rate(config, ended, failed),
        save_seconds=_saves(runs),
        restart_seconds=_median(
            [one.seconds.booting + one.seconds.compiling + one.seconds.restoring for one in done], ASSUMED_RESTART
        ),
        queued_seconds=_median(queues, 0.0 if compute_of(config, Stage.train) == "local" else ASSUMED_QUEUE),
        hang_share=_hangs(failed),
        notice_seconds=Assumed(value=config.train.watchdog_seconds, source="train.watchdog_seconds"),
    )


def _stated(hours: float | None) -> Assumed | None:
    return None if hours is None else Assumed(value=hours, source="stated")


def _rate(config: Config, ended: Sequence[LedgerRecord], failed: Sequence[LedgerRecord]) -> Assumed:
    """Return the hours between failures of a node; workers of a local training are on one node."""
    local = compute_of(config, Stage.train) == "local"
    hours = sum(one.seconds.paid / 3600 * (1 if local else one.machines) for one in ended)
    if len(failed) >= ENOUGH and hours:
        source = f"ledger: {len(failed)} failures in {hours:,.1f} node hours of {len(ended)} attempts"
        return Assumed(value=hours / len(failed), source=source)
    seen = f"the ledger has {len(failed)} failure{'s' * (len(failed) != 1)} in {hours:,.1f} node hours"
    return Assumed(value=PUBLISHED_HOURS, source=f"{PUBLISHED}; {seen}, too few")


def _saves(runs: Sequence[Run]) -> Assumed:
    found: list[float] = []
    for run in runs:
        outcome = run.outcome(Stage.train)
        if isinstance(outcome, TrainOutcome) and (use := outcome.checkpoints) is not None and use.written:
            found.append(use.stalled_seconds / use.written)
    return _median(found, ASSUMED_SAVE, "training")


def _hangs(failed: Sequence[LedgerRecord]) -> Assumed:
    if len(failed) < ENOUGH:
        return Assumed(value=0.0, source="assumed: too few failures on record")
    hangs = sum(one.failure is FailureClass.HANG for one in failed)
    return Assumed(value=hangs / len(failed), source=f"ledger: {hangs} of {len(failed)} failures")


def _median(found: Sequence[float], otherwise: float, of: str = "attempt") -> Assumed:
    if not found:
        return Assumed(value=otherwise, source="assumed: none on record")
    many = f"{len(found)} {of}{'s' * (len(found) != 1)}"
    return Assumed(value=round(statistics.median(found), 3), source=f"ledger: median of {many}")
