"""How much better one released model is than another: the differences that evaluations measured, added up.

An evaluation measures a challenger and the champion of then on the same rows. Values of two evaluations are of other
rows and of another catalogue and say nothing about each other, but their differences add up along the champions.
"""

import math
from collections.abc import Iterable

from infra.store.base import Store
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.runs.results import read_result

DECIMALS = 9  # of a sum of differences, so that equal models stay equal


def paired_difference(outcome: EvaluateOutcome, metric: str) -> float | None:
    """Return challenger minus champion on the same rows; None without a champion, or if it is not finite."""
    champion = outcome.champion or {}
    difference = outcome.challenger.get(metric, math.nan) - champion.get(metric, math.nan)
    return difference if math.isfinite(difference) else None


def worth_of_models(store: Store, made: Iterable[Release], than: Release, metric: str) -> dict[str, float]:
    """Return by how much the model of each release is above that of `than`, by model version; its own is 0.

    A release whose evaluation is gone, or was no comparison, is known through those that had it as their champion. What
    no chain of evaluations connects with `than` is left out.

    Args:
        made: releases with new models. Each one's evaluation is read, once.

    Raises:
        StoreError: an evaluation is not readable; names the file.
    """
    above: dict[str, list[tuple[str, float]]] = {}  # version -> others, and by how much they are above it
    for release in made:
        result = read_result(store, release.run_key, Stage.evaluate)
        if result is None or not isinstance(outcome := result.outcome, EvaluateOutcome):
            continue
        difference = paired_difference(outcome, metric)
        if difference is not None and outcome.champion_version is not None:
            above.setdefault(outcome.champion_version, []).append((release.model.version, difference))
            above.setdefault(release.model.version, []).append((outcome.champion_version, -difference))
    worth, waiting = {than.model.version: 0.0}, [than.model.version]
    for known in waiting:
        for version, difference in above.get(known, ()):
            if version not in worth:
                worth[version] = round(worth[known] + difference, DECIMALS)
                waiting.append(version)
    return worth
