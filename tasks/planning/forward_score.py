"""The forward score: the champion's metric on the newest span before training on it, next to the previous release's.

A model's holdout metric measures the week that it was trained on; the forward score measures the next week.
"""

from collections.abc import Mapping

from configs.schema.gates import NEWEST, GateConfig
from infra.store.base import Store
from tasks.contracts.evaluation import ForwardNumbers, ForwardScore, Queries, Role
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import Release
from tasks.contracts.spans import first_day
from tasks.quality.comparisons import Measured, compare
from tasks.runs import releases

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
    whole = _numbers(measured, _WORTH, {role: each.get(metric) for role, each in spans[-1].metrics.items()})
    if whole is None:
        return None
    (difference,) = compare(measured, _WORTH)
    previous = None if difference.absent else found.get(Role.previous)
    return ForwardScore(
        **whole.model_dump() | {"rows": spans[-1].rows},
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
    return _numbers(measured, _WORTH.model_copy(update={"queries": queries}), values)


def _numbers(measured: Measured, gate: GateConfig, values: Mapping[Role, float | None]) -> ForwardNumbers | None:
    """Return each model's value with the interval of the gate's difference; None without the champion's value."""
    value = values.get(Role.champion)
    if value is None:
        return None
    (difference,) = compare(measured, gate)
    interval = difference.interval
    return ForwardNumbers(
        rows=difference.rows or 0,
        value=value,
        previous_value=None if difference.absent else values.get(Role.previous),
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        untrained=values.get(Role.untrained),
        challenger=values.get(Role.challenger),
    )
