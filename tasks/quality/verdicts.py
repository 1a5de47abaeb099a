"""The verdicts of the gates before a release, with their sentences.

tasks/quality/comparisons.py computes the numbers; here they are compared with limits. A failed gate is a result of
the run, never an exception.
"""

import math
from collections.abc import Sequence

from configs.schema.gates import METRICS, Family, GateConfig
from tasks.contracts.evaluation import Answer, Verdict
from tasks.foundation.nouns import plural
from tasks.quality.comparisons import Comparison, Measured, compare
from tasks.quality.expectations import Limit
from tasks.quality.intervals import rows_needed

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
    over = plural(comparison.rows or 0, "row") + _commonest(comparison)
    over += f" {comparison.among}" if comparison.among else ""
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
        needed = rows_needed(comparison.rows, interval.error, comparison.judged, comparison.threshold, gate.confidence)
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
        return plural(rows, "row")
    if measured.sampled_from is None:
        return f"{rows:,} {measured.called}"
    if gate.slice or gate.span or gate.of_queries:
        return f"{rows:,} {measured.called} of a sample by hash,"
    return f"{rows:,} of {measured.sampled_from:,} {measured.called}, a sample by hash,"


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
