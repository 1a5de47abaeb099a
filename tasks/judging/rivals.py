"""The released models that an evaluation measures besides challenger and champion: previous, first and best.

First and best are fixed references: they show a slow decay, of which each step passes the comparison with the champion.
On a new span the previous release shows the gain of the champion's training. That gain is the forward score: the
champion's metric on the newest span before training on it, next to the previous release's. A model's holdout
metric measures the week that it was trained on; the forward score measures the next week.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from configs.schema.config import Config
from configs.schema.gates import METRICS, NEWEST, Family, GateConfig
from infra.store.base import Store
from infra.store.manifest import MissingFolder, read_manifest
from tasks.contracts.evaluation import MAIN, ForwardNumbers, ForwardScore, Queries, Role
from tasks.contracts.jobs import Rival
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.references import CheckpointRef, ModelRef, SpanRef
from tasks.contracts.runs import Release
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import CHECKPOINT
from tasks.quality.common_items import CommonItems
from tasks.quality.comparisons import Measured, compare
from tasks.runs import branches, lineage, releases
from tasks.runs.results import read_result

DECIMALS = 9  # differences are rounded, so that equal models stay equal


def paired_difference(outcome: EvaluateOutcome, metric: str, min_shared: float) -> float | None:
    """Return challenger minus champion on the same rows.

    None without a champion, if it is not finite, or if both hold less than `min_shared` of the catalogue.
    """
    held = outcome.shared_items.get(Role.champion)
    if held is not None and CommonItems(held, outcome.catalogue_items).few(min_shared):
        return None
    champion = outcome.champion or {}
    difference = outcome.challenger.get(metric, math.nan) - champion.get(metric, math.nan)
    return difference if math.isfinite(difference) else None


def worth_of_models(
    store: Store, made: Iterable[Release], than: Release, metric: str, min_shared: float
) -> dict[str, float]:
    """Return the metric of each release's model minus that of `than`, by model version.

    A release without a comparison of its own is compared through the evaluations in which it was the champion. A model
    that no chain of evaluations connects with `than` is left out.

    Args:
        made: releases with new models. Each one's evaluation is read once.
        min_shared: the setting evaluate.min_shared; a comparison on fewer items does not count.

    Raises:
        StoreError: an evaluation is not readable; names the file.
    """
    above: dict[str, list[tuple[str, float]]] = {}  # version -> other versions, and their metric minus its own
    for release in made:
        result = read_result(store, release.run_key, Stage.evaluate)
        if result is None or not isinstance(outcome := result.outcome, EvaluateOutcome):
            continue
        difference = paired_difference(outcome, metric, min_shared)
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


def rivals_for(store: Store, config: Config, challenger: ModelRef) -> tuple[Rival, ...]:
    """Return the releases that an evaluation of the challenger measures. Raises as `compared_with`."""
    return tuple(
        Rival(
            role=role,
            release=release.number,
            model=release.model,
            vectors=release.vectors_prefix if release.catalogue else None,
        )
        for role, release in compared_with(store, config, challenger).items()
    )


def compared_with(store: Store, config: Config, challenger: ModelRef | None = None) -> dict[Role, Release]:
    """Return the release before the champion, the lineage's first, and its best by the first ranking gate's metric.

    A release whose checkpoint was deleted can't be measured: it is not the best, and any other role of it stays empty.
    A model with several roles is read with the vectors of the first of them here.

    Args:
        challenger: model whose releases are left out.

    Raises:
        StoreError: a release, its evaluation, or the record of a branch, is not readable; names the file.
    """
    own = branches.root(store, config.lineage)
    root_of = functools.cache(lambda name: branches.root(store, name))
    every = list(releases.with_new_models(store))
    made = [
        release
        for release in every
        if (challenger is None or release.model.version != challenger.version)
        and root_of(release.model.checkpoint.lineage) == own
    ]
    chosen: dict[Role, Release] = {}
    if (previous := _previous(store, challenger)) is not None:
        chosen[Role.previous] = previous
    if made and not lineage.is_pruned(store, made[-1].model.checkpoint):
        chosen[Role.first] = made[-1]
    if made and (best := _best(store, every, made, config)) is not None:
        chosen[Role.best] = best
    return chosen


def begun_with(store: Store, config: Config) -> CheckpointRef | None:
    """Return the imported weights with which the lineage began; None if it began with a new model, or they are gone."""
    name = config.lineage
    while (branch := branches.branch_of(store, name)) is not None:
        if branch.base is None:
            break
        name = branch.of
    prefix = CHECKPOINT.key(lineage=name, step=0)
    try:
        return CheckpointRef(prefix=prefix, step=0, sha256=read_manifest(store, prefix).sha256)
    except MissingFolder:
        return None


def _previous(store: Store, challenger: ModelRef | None) -> Release | None:
    """Return the newest release of another model that was current before the champion, with its newest vectors."""
    own = challenger.version if challenger is not None else None
    others = (each for each in releases.current_and_before(store) if each.model.version != own)
    found = champion = next(others, None)
    while found is not None and champion is not None:
        if found.model.version not in (champion.model.version, own):
            return None if lineage.is_pruned(store, found.model.checkpoint) else found
        brought = releases.origin(store, found.model.version)  # skips the hourly refreshes since then
        found = releases.read(store, brought.previous) if brought is not None and brought.previous else None
    return None


def _best(store: Store, every: Sequence[Release], made: Sequence[Release], config: Config) -> Release | None:
    """Return the best release among those connected by evaluations with the serving, or last serving, release.

    Args:
        every: releases of all lineages, which may have been champions.
        made: the lineage's own releases, newest first; at least one.
    """
    by_version = {release.model.version: release for release in reversed(made)}
    served = (by_version.get(release.model.version) for release in releases.current_and_before(store))
    serving = next((release for release in served if release is not None), made[0])
    metric = ranking_metric(config)
    worth = worth_of_models(store, every, serving, metric, config.evaluate.min_shared)
    sign = METRICS[metric].sign
    known = [release for release in made if release.model.version in worth]
    # The newest of equal ones, which has seen most data.
    best_first = sorted(known, key=lambda release: (sign * worth[release.model.version], release.number), reverse=True)
    return next((each for each in best_first if not lineage.is_pruned(store, each.model.checkpoint)), None)


def ranking_metric(config: Config) -> str:
    """Return the metric of the first ranking gate; without one, MAIN."""
    gated = [gate.metric for gate in config.evaluate.gates if METRICS[gate.metric].family is Family.ranking]
    return next(iter(gated), MAIN)


# Each bound is one-sided, so the interval holds in 95 of 100 cases.
_WORTH = GateConfig(
    metric="recall@10", of="champion", baseline="previous", span=NEWEST, direction="higher", threshold=0.0,
    confidence=0.975, severity="warning",
)  # fmt: skip


def judged_releases(store: Store, outcome: EvaluateOutcome) -> dict[Role, Release]:
    """Return the releases of the champion's model and of the previous one, if they exist.

    Raises:
        StoreError: a release is not readable; names the file.
    """
    versions = {each.role: each.version for each in outcome.measured if each.role in (Role.champion, Role.previous)}
    found = {role: releases.origin(store, version) for role, version in versions.items()}
    return {role: release for role, release in found.items() if release is not None}


def seen_by(found: Mapping[Role, Release], span: SpanRef) -> frozenset[Role]:
    """Return the roles whose releases were trained on this span, in any version, or on a later one."""
    began = first_day(span.name)
    return frozenset(role for role, release in found.items() if first_day(release.span.name) >= began)


def forward_score(found: Mapping[Role, Release], outcome: EvaluateOutcome, measured: Measured) -> ForwardScore | None:
    """Return the champion's score; None without a champion or holdout rows of the span, or if it has seen the span."""
    spans, champion, metric = outcome.spans, found.get(Role.champion), _WORTH.metric
    if champion is None or Role.champion in measured.seen_by or not spans or spans[-1].span != measured.newest:
        return None
    values = {role: each.get(metric) for role, each in spans[-1].metrics.items()}
    whole = _numbers(measured, _WORTH, values, spans[-1].rows)
    if whole is None:
        return None
    (difference,) = compare(measured, _WORTH)
    previous = None if difference.absent else found.get(Role.previous)
    return ForwardScore(
        **whole.model_dump(),
        release=champion.number,
        span=measured.newest,
        metric=metric,
        previous=previous.number if previous else None,
        unseen=_part(measured, "unseen"),
        seen=_part(measured, "seen"),
    )


def _part(measured: Measured, queries: Queries) -> ForwardNumbers | None:
    """Return the numbers on the newest span's unseen, or seen, queries; None without such a row."""
    rows = measured.rows
    if rows is None:
        return None
    of_part = rows.unseen if queries == "unseen" else ~rows.unseen
    among = of_part & (rows.span == measured.newest)
    values = {role: rows.metrics(role, among).get(_WORTH.metric) for role in rows.roles}
    return _numbers(measured, _WORTH.model_copy(update={"queries": queries}), values, int((among & rows.pair).sum()))


def _numbers(
    measured: Measured, gate: GateConfig, values: Mapping[Role, float | None], rows: int
) -> ForwardNumbers | None:
    """Return each model's value with the interval of the gate's difference; None without the champion's value.

    Args:
        rows: number of rows that the values are of; a difference has none if there is no previous release.
    """
    value = values.get(Role.champion)
    if value is None:
        return None
    (difference,) = compare(measured, gate)
    interval = difference.interval
    return ForwardNumbers(
        rows=rows,
        value=value,
        previous_value=None if difference.absent else values.get(Role.previous),
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        untrained=values.get(Role.untrained),
        challenger=values.get(Role.challenger),
    )
