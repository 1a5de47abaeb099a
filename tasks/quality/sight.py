"""The smallest loss that a gate can see, before it judges."""

import math

from pydantic import Field

from configs.schema.gates import METRICS, Family, GateConfig, Severity
from tasks.contracts.evaluation import Verdict
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.quality.intervals import SHARES, Error, scaled, smallest_gap

STATED = 0.8  # value of a metric that was never measured, for the binomial bound
_SURE = 0.05  # a measured 0 or 1 is taken as this far from it: no rows show that a metric can't vary
_MEANS = ("accuracy", "multiclass_accuracy")  # apart from ranking metrics: means of numbers between 0 and 1


class Sight(Record):
    """A gate, and the smallest loss that it can tell from chance."""

    gate: str = Field(description="metric, with the baseline and the part of the rows")
    severity: Severity
    queries: int | None = Field(description="expected queries that it judges; null: it judges no queries")
    smallest: float | None = Field(
        description="smallest true loss that it refuses four times out of five, in units of the metric; null: not "
        "known, or the number alone decides"
    )
    sentence: str = Field(description="the same in words")
    basis: str = Field(description="basis of the number in words; empty: there is no number")


def of_parts(gate: GateConfig) -> tuple[GateConfig, ...]:
    """Return a gate for each part of the queries that it judges apart, unseen ones first."""
    parts = ("unseen", "seen") if gate.queries == "each" else (gate.queries,)
    return tuple(gate.model_copy(update={"queries": part}) for part in parts)


def sight(gate: GateConfig, queries: int | None, earlier: Verdict | None = None, value: float | None = None) -> Sight:
    """Return the smallest loss that a gate can see.

    Args:
        queries: expected queries with held-out pairs of the gate's part of the rows; None: not known.
        earlier: the gate's verdict in the last evaluation, whose standard error is scaled to these queries.
        value: the metric in the last evaluation; None: it was never measured.
    """
    against = "" if gate.baseline == "none" else f" against {gate.baseline}"
    part = ", ".join(
        filter(None, (gate.slice, gate.span, "golden" if gate.rows == "golden" else "", gate.narrowed, gate.of_queries))
    )
    whose = "the champion's " if gate.of == "champion" else ""
    name = f"{whose}{gate.metric}{against}{f' ({part})' if part else ''}"
    judged = queries if gate.of_rows else None
    if without := _without_number(gate, queries):
        return _sight(gate, name, judged, None, without)
    assert queries is not None, "else it has no number"
    assert gate.confidence is not None, "likewise"
    found = _expected(gate, queries, earlier, value)
    if found is None:
        return _sight(gate, name, judged, None, "not known before the first evaluation")
    error, level, basis = found
    gap = smallest_gap(error, gate.confidence)
    return _sight(gate, name, judged, *_seen(gate, queries, gap, level), basis)


def _sight(
    gate: GateConfig, name: str, queries: int | None, smallest: float | None, words: str, basis: str = ""
) -> Sight:
    return Sight(gate=name, severity=gate.severity, queries=queries, smallest=smallest, sentence=f"{name}: {words}",
                 basis=basis)  # fmt: skip


def _without_number(gate: GateConfig, queries: int | None) -> str:
    """Return the reason why a gate has no smallest loss; empty if it has one."""
    if not gate.of_rows:
        return "one number of all vectors; the number of rows does not matter"
    if gate.confidence is None:
        return "the number alone decides, even of few queries"
    if queries is None:
        return "each part has its own rows, which are not counted yet"
    least = max(1, gate.min_rows)
    return (
        f"undecided: about {plural(queries, 'query', 'queries')}, and it needs {plural(least, 'row')}"
        if queries < least
        else ""
    )


def _seen(gate: GateConfig, queries: int, gap: float, level: float) -> tuple[float, str]:
    """Return the smallest loss, and a sentence's end about it."""
    higher = gate.direction == "higher"
    if gate.baseline == "none":
        limit = f"{'below' if higher else 'above'} its limit {gate.threshold:g}"
        return gap, f"sees a value {gap:.2g} {limit}, with about {plural(queries, 'query', 'queries')}"
    allowed = (-gate.threshold if higher else gate.threshold) * (level if gate.relative else 1.0)
    smallest, over = gap + allowed, "drop" if higher else "rise"
    if higher and _is_mean(gate) and smallest >= level:
        return smallest, f"sees no {over} at all with about {plural(queries, 'query', 'queries')}"
    limit = f"allowed is {allowed:.2g}" if allowed > 0 else f"required is a gain of {-allowed:.2g}" if allowed else ""
    words = f"sees a {over} of {smallest:.2g} or more with about {plural(queries, 'query', 'queries')}"
    return smallest, f"{words}; {limit or 'none is allowed'}"


def _expected(
    gate: GateConfig, queries: int, earlier: Verdict | None, value: float | None
) -> tuple[Error, float, str] | None:
    """Return the expected error of what the gate judges, the level of its metric, and the basis of both."""
    if earlier is not None and earlier.standard_error and earlier.degrees and earlier.groups:
        level = earlier.baseline if earlier.baseline is not None else earlier.value
        basis = "by the spread of the last evaluation"
        error = scaled(Error(earlier.standard_error, earlier.degrees), queries / earlier.groups)
        least = 1 / queries if gate.metric in SHARES else 0.0  # no interval is narrower
        return error._replace(standard_error=max(error.standard_error, least)), abs(level or 0.0), basis
    if not _is_mean(gate):
        return None
    if value is not None and not math.isfinite(value):
        value = None
    level = STATED if value is None else value
    spread = min(max(level, _SURE), 1 - _SURE)
    models = 1 if gate.baseline == "none" else 2  # the worst case: their errors are independent
    at = "a metric of {}, since nothing was evaluated yet" if value is None else f"{gate.metric} {{}}"
    basis = f"by the binomial bound at {at.format(f'{level:.2g}')}"
    differ = models * spread * (1 - spread) * queries + 1  # the last is the query more that each interval counts
    return Error(math.sqrt(differ) / queries, 2 * differ), level, basis


def _is_mean(gate: GateConfig) -> bool:
    """Return True if the metric is a mean of numbers between 0 and 1, one of each row."""
    return METRICS[gate.metric].family is Family.ranking or gate.metric in _MEANS
