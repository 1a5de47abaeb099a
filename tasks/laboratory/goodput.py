"""Failures simulated before a run: goodput, dollars and the best interval between checkpoints, by number of nodes.

Failures of nodes are independent and as frequent at any time. One stops the training on all nodes. Their rate and the
time that one takes are by the ledger of a lineage, by a person's statement, or by a publication.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from pydantic import Field

from configs.prices import price_of
from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.stages import Stage, compute_of, instance_of
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.planning.start import on_active
from tasks.runs import lineage
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot


class Assumed(Record):
    """A number that the simulation rests on, with its source."""

    value: float
    source: str = Field(description="ledger, statement or publication that it is from")


class FailureModel(Record):
    """The failures of a training, and the time that one takes."""

    node_hours_between: Assumed = Field(description="hours between two failures of one node")
    save_seconds: Assumed = Field(description="stall of the training per checkpoint, in seconds")
    restart_seconds: Assumed = Field(description="seconds of booting, compiling and restoring before the first step")
    queued_seconds: Assumed = Field(description="seconds of waiting for machines after a failure; they cost nothing")
    hang_share: Assumed = Field(description="share of failures that are hangs")
    notice_seconds: Assumed = Field(description="seconds until a hang is noticed (train.watchdog_seconds)")


class AtNodes(Record):
    """A training on one number of nodes. Nulls: it never ends, since failures come faster than checkpoints."""

    nodes: int = Field(description="number of nodes")
    seconds_between_failures: float = Field(description="mean seconds between two failures of any node")
    interval_seconds: float = Field(description="interval between checkpoints that loses the least time")
    young_seconds: float = Field(description="sqrt(2 * save * seconds between failures), for comparison")
    goodput: float | None = Field(description="share of the paid time that is work which was kept")
    failures: float | None = Field(description="failures expected in the training")
    hours: float | None = Field(description="expected hours from the first boot to the end, with queues")
    dollars: float | None = Field(description="expected cost; null: also if the price is not known")


class Goodput(Record):
    """The expectation for a training of some hours without failures, by number of nodes."""

    version: Literal[1] = 1
    hours: float = Field(description="hours of the training without failures and checkpoints, on any number of nodes")
    model: FailureModel
    dollars_per_node_hour: float | None = Field(description="price of one node; null: not known")
    rows: tuple[AtNodes, ...]


NEWEST_RUNS = 20  # newest trainings of the lineage that are read
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
    keys = list(dict.fromkeys(rows.run_key for rows in head[1].consumed))[-NEWEST_RUNS:] if head else []
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
    seen = f"the ledger has {plural(len(failed), 'failure')} in {hours:,.1f} node hours"
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
    many = plural(len(found), of)
    return Assumed(value=round(statistics.median(found), 3), source=f"ledger: median of {many}")


NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
SEED = 20_260  # fixed, so that the same question has the same answer
RUNS = 400  # simulated trainings
STEADY = 100  # failures of a training by which intervals are compared
OCTAVES = 1  # intervals are sought from half of Young's to twice it
STEPS = 4  # intervals to an octave
MOST_ATTEMPTS = 20_000  # a training that needs more is taken never to end
MOST_MEANS = 50  # times the mean time between failures; nothing that takes longer is ever done without one


class Simulated(NamedTuple):
    """Means over simulated trainings, in seconds."""

    paid: float
    queued: float
    failures: float


def expect_goodput(
    hours: float, model: FailureModel, dollars_per_node_hour: float | None, nodes: Iterable[int] = NODES
) -> Goodput:
    """Return the expectation for each number of nodes, with the best interval for each."""
    rows = tuple(_at(each, hours * 3600, model, dollars_per_node_hour) for each in nodes)
    return Goodput(hours=hours, model=model, dollars_per_node_hour=dollars_per_node_hour, rows=rows)


def young(save_seconds: float, seconds_between: float) -> float:
    """Return Young's interval in seconds (doi:10.1145/361147.361115)."""
    return math.sqrt(2 * save_seconds * seconds_between)


def closed_form(work: float, interval: float, save: float, restart: float, between: float) -> float:
    """Return the expected paid seconds of `work` seconds without hangs (Daly 2006, doi:10.1016/j.future.2004.11.016).

    It is exact if failures are noticed at once and `interval` divides `work`; the first boot is not in it.
    """
    return between * math.exp(restart / between) * math.expm1((interval + save) / between) * work / interval


def simulate(work: float, interval: float, between: float, model: FailureModel, runs: int = RUNS) -> Simulated | None:
    """Simulate trainings of `work` seconds; None if they need more than MOST_ATTEMPTS attempts, by the closed form.

    An attempt restarts, then works and saves in turns. A failure loses the work since the last whole checkpoint; one
    during the restart loses nothing but time. The last checkpoint is at the end.

    Args:
        interval: seconds of work between two checkpoints.
        between: mean seconds between failures of the whole training.
    """
    random = np.random.default_rng(SEED)
    save, restart = model.save_seconds.value, model.restart_seconds.value
    if max(interval + save, restart) > MOST_MEANS * between:
        return None
    if closed_form(work, interval, save, restart, between) > MOST_ATTEMPTS * between:
        return None
    left = np.full(runs, work)  # float64 (runs,), as the next three
    paid, queued, failures = np.zeros(runs), np.zeros(runs), np.zeros(runs)
    going = np.arange(runs)
    while len(going):
        until, hangs = random.exponential(between, runs)[going], random.random(runs)[going]
        whole = restart + left[going] + np.ceil(left[going] / interval) * save
        ends = until >= whole
        kept = np.maximum(0.0, np.floor((until - restart) / (interval + save))) * interval
        noticed = np.where(hangs < model.hang_share.value, model.notice_seconds.value, 0.0)
        paid[going] += np.where(ends, whole, until + noticed)
        queued[going] += np.where(ends, 0.0, model.queued_seconds.value)
        failures[going] += ~ends
        left[going] = np.where(ends, 0.0, left[going] - kept)
        going = going[~ends]
    return Simulated(float(paid.mean()), float(queued.mean()), float(failures.mean()))


def best_interval(between: float, model: FailureModel) -> float:
    """Return the seconds of work between checkpoints for which simulated trainings take the least time."""
    first = young(model.save_seconds.value, between)
    if first <= 0:
        return 0.0
    long = STEADY * between
    tried = [first * 2 ** (step / STEPS) for step in range(-OCTAVES * STEPS, OCTAVES * STEPS + 1)]
    taken = [simulate(long, each, between, model, runs=max(1, RUNS // 10)) for each in tried]
    known = [(one.paid, each) for one, each in zip(taken, tried, strict=True) if one is not None]
    return min(known)[1] if known else min(tried)


def _at(nodes: int, work: float, model: FailureModel, price: float | None) -> AtNodes:
    between = model.node_hours_between.value * 3600 / nodes
    interval = min(best_interval(between, model), work)
    found = simulate(work, interval, between, model)
    paid = None if found is None else found.paid
    return AtNodes(
        nodes=nodes,
        seconds_between_failures=round(between, 1),
        interval_seconds=round(interval, 1),
        young_seconds=round(young(model.save_seconds.value, between), 1),
        goodput=None if paid is None else work / paid,
        failures=None if found is None else found.failures,
        hours=None if found is None else (found.paid + found.queued) / 3600,
        dollars=None if paid is None or price is None else paid / 3600 * price * nodes,
    )
