"""A check of one share against two bounds: above the first it warns, above the second it stops the run."""

from configs.schema.gates import Severity
from configs.schema.stages import Bounds
from tasks.contracts.outcomes import Check


def check_share(
    name: str, share: float, bounds: Bounds, setting: str, sentence: str, advice: str = "", more: str = ""
) -> Check:
    """Return the check of a share.

    Args:
        setting: the key under validate: that holds the bounds.
        sentence: says what the share is of, with its numbers, without a full stop.
        advice: follows a failed check: what may have happened, and what to do.
        more: follows the bound, as in `at most 10 % more`, where the share is a rise.
    """
    stops = bounds.stop is not None and share > bounds.stop
    passed = not stops and (bounds.warn is None or share <= bounds.warn)
    severity: Severity = "critical" if stops or (passed and bounds.stop is not None) else "warning"
    allowed = bounds.stop if stops else bounds.warn
    expected = f"; at most {allowed:.2%} {more + ' ' * bool(more)}is expected" if allowed is not None else ""
    text = f"{sentence}{expected}."
    if not passed and advice:
        text += f" {advice}"
    if stops:
        text += f" If that is meant: --set validate.{setting}.stop=null for this run."
    return Check(name=name, passed=passed, severity=severity, observed=round(share, 6), sentence=text)


def not_judged(name: str, bounds: Bounds, why: str) -> Check:
    """Return the check of a share that is of too few."""
    severity: Severity = "critical" if bounds.stop is not None else "warning"
    return Check(name=name, passed=True, severity=severity, observed=None, sentence=f"Not judged: {why}.")
