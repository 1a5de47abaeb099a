"""Judge the gates before a release: is the challenger good enough, alone and compared with other models?

tasks/quality/comparisons.py computes the numbers; here they are compared with limits. A failed gate is a result of the
run, never an exception.
"""

import math
from collections.abc import Sequence

from configs.schema.gates import GateConfig
from tasks.contracts.evaluation import Answer, Verdict
from tasks.quality.comparisons import Comparison, Measured, compare
from tasks.quality.intervals import rows_needed
from tasks.quality.limits import Limit
from tasks.quality.sentences import DECIMALS, sentence


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
