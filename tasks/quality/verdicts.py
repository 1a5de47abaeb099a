"""The verdicts of the gates before a release, with their sentences, and the smallest loss that a gate can see.

tasks/quality/comparisons.py computes the numbers; here they are compared with limits. A failed gate is a result of
the run, never an exception.
"""

import math
from collections.abc import Sequence

from pydantic import Field

from configs.schema.gates import METRICS, Family, GateConfig, Severity
from tasks.contracts.evaluation import Answer, Verdict
from tasks.foundation.records import Record
from tasks.quality.comparisons import Comparison, Measured, compare
from tasks.quality.expectations import Limit
from tasks.quality.intervals import SHARES, Error, rows_needed, scaled, smallest_gap

DECIMALS = 9  # decimals of a difference, rounded so that a drop of exactly the threshold passes

_MODELS = {
    "untrained": "the untrained model's",
    "champion": "the champion's",
    "previous": "the previous release's",
    "first": "the first release's",
    "best": "the best release's",
}


def sentence(comparison: Comparison, suffix: str, answer: Answer | None, needed: int | None) -> str:
    """Return the verdict in words.

    Args:
        suffix: suffix of the metric's name.
        needed: rows that would decide an undecided gate; None: not known.
    """
    gate, value, baseline = comparison.gate, comparison.value, comparison.baseline
    name = gate.metric + suffix + (f" of {where}" if (where := comparison.where or _all_queries(comparison)) else "")
    name = f"the champion's {name}" if gate.of == "champion" else name
    if comparison.unknown:
        return f"{name} is undecided: {comparison.unknown}."
    if comparison.absent:
        return f"{name}{f' {_texts(value)[0]}' if math.isfinite(value) else ''}; {comparison.absent}."
    if comparison.unmeasured:
        return (
            f"{name} was not measured by the run's evaluation, which may be older than the metric; the next run "
            "measures it if its holdout has rows for it."
        )
    if not math.isfinite(value):
        return f"{name} is {value}: the evaluation gave no number to judge."
    if gate.baseline == "none" or baseline is None:
        bound = "at least" if gate.direction == "higher" else "at most"
        value_text, threshold = _texts(value, gate.threshold)
        return f"{name} {value_text}; {bound} {threshold} is required.{_sureness(comparison, answer, needed)}"
    whose = _MODELS[gate.baseline]
    if not math.isfinite(baseline):
        return f"{name} {_texts(value)[0]}; {whose} is {baseline}, which nothing can be compared with."
    return f"{_compared(comparison, name, whose)} {_allowed(comparison)}.{_sureness(comparison, answer, needed)}"


def _all_queries(comparison: Comparison) -> str:
    """Return the name of all rows, if they are of unseen and of seen queries; empty if no part can be meant."""
    ranked = METRICS[comparison.gate.metric].family is Family.ranking
    return "all held-out queries" if ranked and comparison.groups is not None else ""


def _compared(comparison: Comparison, name: str, whose: str) -> str:
    difference = round(comparison.judged, DECIMALS)
    value, baseline, size, _ = _texts(
        comparison.value, comparison.baseline or 0.0, abs(difference), abs(comparison.threshold)
    )
    if difference == 0:
        return f"{name} {value} equals {whose};"
    return f"{name} {value} is {size} {'above' if difference > 0 else 'below'} {whose} {baseline};"


def _allowed(comparison: Comparison) -> str:
    gate, threshold = comparison.gate, comparison.threshold
    worse, better = ("drop", "gain") if gate.direction == "higher" else ("rise", "drop")
    slack = -threshold if gate.direction == "higher" else threshold
    if slack == 0:
        return f"no {worse} is allowed"
    size = _texts(comparison.value, comparison.baseline or 0.0, abs(round(comparison.judged, DECIMALS)), abs(slack))[-1]
    share = f" ({abs(gate.threshold):.4g} of it)" if gate.relative else ""
    return f"allowed is a {worse} of {size}{share}" if slack > 0 else f"required is a {better} of {size}{share}"


def _sureness(comparison: Comparison, answer: Answer | None, needed: int | None) -> str:
    """Return a sentence about the interval; empty for a gate without one."""
    gate, interval = comparison.gate, comparison.interval
    if gate.confidence is None:
        return ""
    if interval is None:
        return " The number alone decides: the evaluation kept no answers to single rows."
    what = "it" if comparison.baseline is None else "the difference"
    low, high = (f"{bound:+.4f}" if comparison.baseline is not None else f"{bound:.4f}" for bound in interval[:2])
    sure = f" With {gate.confidence:.4g} confidence {what} is at least {low}, and at most {high}"
    over = f"{comparison.rows:,} rows{_commonest(comparison)}{f' {comparison.among}' if comparison.among else ''}"
    if answer != "undecided":
        return f"{sure}, over {over}."
    enough = f"about {needed:,} would tell" if needed else "more of them may tell"
    return f"{sure}: {over} can't tell, {enough}."


def _commonest(comparison: Comparison) -> str:
    """Return the shares of the rows that hang together most: ` (3 % about one item, 0.4 % of one query)`."""
    of_item, of_group = comparison.commonest_item, comparison.commonest_group
    if of_item is None or of_group is None:
        return ""
    return f" ({of_item * 100:.2g} % about one item, {of_group * 100:.2g} % of one {comparison.grouped})"


def _texts(*numbers: float) -> list[str]:
    """Format with four decimals, or more until different numbers look different."""
    rounded = {round(number, DECIMALS) for number in (*numbers, 0.0)}
    decimals = next(
        (d for d in range(4, DECIMALS) if len({f"{number:.{d}f}" for number in rounded}) == len(rounded)), DECIMALS
    )
    return [f"{number:.{decimals}f}" for number in numbers]


def judge(measured: Measured, gates: Sequence[GateConfig]) -> tuple[Verdict, ...]:
    """Return the verdicts of each gate, in the order of the configuration: one, or one for each of its slices or spans.

    A gate does not apply (`answer` is None) without its baseline. A metric that is not finite fails its gate, and so
    does a metric that could not be measured, for example the AUC of a holdout with one class.

    Raises:
        ConfigError: a gate names a column that the rows do not have.
    """
    found = [comparison for gate in gates for comparison in compare(measured, gate)]
    names = [f"gate {number}: {comparison.gate.metric}" for number, comparison in enumerate(found)]
    within = {
        name + bound: _limit(comparison).admits(round(number, DECIMALS))
        for name, comparison in zip(names, found, strict=True)
        for bound, number in _judged(comparison).items()
    }
    return tuple(_verdict(measured, c, _answer(c, name, within)) for name, c in zip(names, found, strict=True))


def _judged(comparison: Comparison) -> dict[str, float]:
    """Return the numbers to compare with the threshold: the number itself, or the two ends of its interval."""
    if comparison.absent or comparison.unknown:
        return {}
    if comparison.interval is None:
        return {"": comparison.judged}
    higher = comparison.gate.direction == "higher"
    low, high, _ = comparison.interval
    return {" surely": low if higher else high, " perhaps": high if higher else low}


def _limit(comparison: Comparison) -> Limit:
    threshold = round(comparison.threshold, DECIMALS)
    return Limit(threshold, None) if comparison.gate.direction == "higher" else Limit(None, threshold)


def _answer(comparison: Comparison, name: str, within: dict[str, bool]) -> Answer | None:
    if comparison.absent:
        return None
    if comparison.unknown:
        return "undecided"
    if comparison.interval is None:
        return "pass" if within[name] else "fail"
    if within[f"{name} surely"]:
        return "pass"
    return "undecided" if within[f"{name} perhaps"] else "fail"


def _verdict(measured: Measured, comparison: Comparison, answer: Answer | None) -> Verdict:
    gate, interval = comparison.gate, comparison.interval
    needed = None
    if answer == "undecided" and comparison.unknown:
        needed = gate.min_rows or None
    elif answer == "undecided" and interval is not None and comparison.rows and gate.confidence is not None:
        gap = comparison.judged - comparison.threshold
        needed = rows_needed(comparison.rows, interval.error, gap, gate.confidence)
    compared = None if comparison.baseline is None else _finite(comparison.judged)
    rows = comparison.rows
    return Verdict(
        metric=gate.metric + measured.suffix,
        severity=gate.severity,
        answer=answer,
        value=_finite(comparison.value),
        baseline=_finite(comparison.baseline),
        sentence=sentence(comparison, measured.suffix, answer, needed),
        of=gate.of,
        against="" if gate.baseline == "none" else gate.baseline,
        where=comparison.where,
        over="" if rows is None else f"{_counted(measured, gate, rows)} {comparison.among}".rstrip(),
        shared=comparison.shared,
        rows=rows,
        groups=comparison.groups,
        commonest_group=comparison.commonest_group,
        commonest_item=comparison.commonest_item,
        threshold=None if comparison.absent else _finite(comparison.threshold),
        difference=compared,
        low=interval and interval.low,
        high=interval and interval.high,
        standard_error=interval and interval.error.standard_error,
        degrees=interval and interval.error.degrees,
        confidence=gate.confidence if interval else None,
        rows_needed=needed,
        undecided_refuses=gate.undecided == "refuse" or comparison.refuses,
        undecided_asks=gate.undecided == "ask" and not comparison.refuses,
    )


def _counted(measured: Measured, gate: GateConfig, rows: int) -> str:
    """Return the rows of a verdict in words: `20,000 of 1,240,000 holdout rows, a sample by hash,`."""
    if gate.rows == "golden":
        return f"{rows:,} rows"
    if measured.sampled_from is None:
        return f"{rows:,} {measured.called}"
    if gate.slice or gate.span or gate.of_queries:
        return f"{rows:,} {measured.called} of a sample by hash,"
    return f"{rows:,} of {measured.sampled_from:,} {measured.called}, a sample by hash,"


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


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
    return f"undecided: about {queries:,} queries, and it needs {least:,} rows" if queries < least else ""


def _seen(gate: GateConfig, queries: int, gap: float, level: float) -> tuple[float, str]:
    """Return the smallest loss, and a sentence's end about it."""
    higher = gate.direction == "higher"
    if gate.baseline == "none":
        limit = f"{'below' if higher else 'above'} its limit {gate.threshold:g}"
        return gap, f"sees a value {gap:.2g} {limit}, with about {queries:,} queries"
    allowed = (-gate.threshold if higher else gate.threshold) * (level if gate.relative else 1.0)
    smallest, over = gap + allowed, "drop" if higher else "rise"
    if higher and _is_mean(gate) and smallest >= level:
        return smallest, f"sees no {over} at all with about {queries:,} queries"
    limit = f"allowed is {allowed:.2g}" if allowed > 0 else f"required is a gain of {-allowed:.2g}" if allowed else ""
    words = f"sees a {over} of {smallest:.2g} or more with about {queries:,} queries"
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
