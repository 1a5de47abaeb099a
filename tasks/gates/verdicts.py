"""The verdicts of the gates before a release: is the challenger good enough, alone and compared with the champion?

great-expectations checks the numbers; this module chooses the numbers and words the verdicts. A failed gate is a
result of the run, never an exception.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from configs.schema.stages import GateConfig
from tasks.contracts.evaluation import Verdict
from tasks.gates.expectations import Limit, judge_numbers

_DECIMALS = 9  # of a rounded difference, so that a drop of exactly the threshold passes


class Measured(NamedTuple):
    """The metrics of the challenger and, on the same rows, of the champion. `where`: follows the metrics' names."""

    challenger: Mapping[str, float]
    champion: Mapping[str, float] | None
    where: str = ""


def judge(measured: Measured, gates: Sequence[GateConfig]) -> tuple[Verdict, ...]:
    """Return one verdict for each gate, in the order of the configuration.

    A gate against the champion does not apply (`passed` is None) if there is no champion, or if the champion lacks the
    metric, for example after a head was added. A metric that is not finite fails its gate. So does a metric that could
    not be measured, for example the AUC of a holdout with one class.
    """
    compared = {
        f"gate {number}: {gate.metric}": gate
        for number, gate in enumerate(gates)
        if gate.baseline == "none" or _champions(measured, gate) is not None
    }
    passed = judge_numbers(
        {name: _judged(measured, gate) for name, gate in compared.items()},
        {name: _limit(gate) for name, gate in compared.items()},
    )
    return tuple(
        Verdict(
            metric=gate.metric + measured.where,
            severity=gate.severity,
            passed=passed.get(f"gate {number}: {gate.metric}"),
            value=_finite(_challengers(measured, gate)),
            baseline=_finite(_champions(measured, gate)),
            sentence=_sentence(measured, gate),
        )
        for number, gate in enumerate(gates)
    )


def refused(verdicts: Sequence[Verdict]) -> bool:
    """Return whether a critical gate failed. Warnings, and gates that do not apply, never refuse."""
    return any(verdict.severity == "critical" and verdict.passed is False for verdict in verdicts)


def refusals(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the sentences of the gates that refused."""
    return tuple(verdict.sentence for verdict in verdicts if refused([verdict]))


def _challengers(measured: Measured, gate: GateConfig) -> float:
    """Return the challenger's value; NaN if the holdout gave no value."""
    return measured.challenger.get(gate.metric, math.nan)


def _champions(measured: Measured, gate: GateConfig) -> float | None:
    """Return the champion's value if the gate needs it and there is one."""
    if gate.baseline == "none" or measured.champion is None:
        return None
    return measured.champion.get(gate.metric)


def _judged(measured: Measured, gate: GateConfig) -> float:
    """Return the number to compare with the threshold: the value, or its difference to the champion's."""
    return round(_challengers(measured, gate) - (_champions(measured, gate) or 0.0), _DECIMALS)


def _limit(gate: GateConfig) -> Limit:
    threshold = round(gate.threshold, _DECIMALS)
    return Limit(threshold, None) if gate.direction == "higher" else Limit(None, threshold)


def _finite(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None


def _sentence(measured: Measured, gate: GateConfig) -> str:
    value, champions, name = _challengers(measured, gate), _champions(measured, gate), gate.metric + measured.where
    if not math.isfinite(value):
        return f"{name} is {value}: the evaluation gave no number to judge."
    if gate.baseline == "none":
        bound = "at least" if gate.direction == "higher" else "at most"
        value_text, threshold = _texts(value, gate.threshold)
        return f"{name} {value_text}; {bound} {threshold} is required."
    if measured.champion is None:
        return f"{name} {_texts(value)[0]}; no champion yet to compare with."
    if champions is None:
        return f"{name} {_texts(value)[0]}; the champion gives no {gate.metric} to compare with."
    if not math.isfinite(champions):
        return f"{name} {_texts(value)[0]}; the champion's is {champions}, which nothing can be compared with."
    return _comparison(gate, name, value, champions)


def _comparison(gate: GateConfig, name: str, value: float, champions: float) -> str:
    difference = round(value - champions, _DECIMALS)
    value_text, champions_text, size, threshold = _texts(value, champions, abs(difference), abs(gate.threshold))
    if difference == 0:
        compared = f"{name} {value_text} equals the champion's"
    else:
        side = "above" if difference > 0 else "below"
        compared = f"{name} {value_text} is {size} {side} the champion's {champions_text}"
    worse, better = ("drop", "gain") if gate.direction == "higher" else ("rise", "drop")
    slack = -gate.threshold if gate.direction == "higher" else gate.threshold
    if slack == 0:
        return f"{compared}; no {worse} is allowed."
    return (
        f"{compared}; " + (f"allowed is a {worse} of" if slack > 0 else f"required is a {better} of") + f" {threshold}."
    )


def _texts(*numbers: float) -> list[str]:
    """Format with four decimals, or with more until different numbers look different."""
    rounded = {round(number, _DECIMALS) for number in (*numbers, 0.0)}
    decimals = next(
        (d for d in range(4, _DECIMALS) if len({f"{number:.{d}f}" for number in rounded}) == len(rounded)), _DECIMALS
    )
    return [f"{number:.{decimals}f}" for number in numbers]
