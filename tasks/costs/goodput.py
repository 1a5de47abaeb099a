"""Failures simulated before a run: goodput, dollars and the best interval between checkpoints, by number of nodes.

Failures of nodes are independent and as frequent at any time. One stops the training on all nodes. Their rate and the
time that one takes are from failure_model.py.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from tasks.contracts.goodput import AtNodes, FailureModel, Goodput

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
