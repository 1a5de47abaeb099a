"""Whether a failed attempt is tried again: evaluateOnExit, as AWS Batch documents it."""

from __future__ import annotations

import re

from tests.emulator.engine.aws import Document, ServiceError
from tests.emulator.engine.records import Container

_PATTERNS = {
    "onStatusReason": re.compile(r"[A-Za-z0-9.:\s]{0,512}\*?"),
    "onReason": re.compile(r"[A-Za-z0-9.:\s]{0,512}\*?"),
    "onExitCode": re.compile(r"[0-9]{0,512}\*?"),
}
_MOST_ATTEMPTS = 10
_MOST_RULES = 5


def check(strategy: Document) -> None:
    """Raises ServiceError: Batch would not take this retryStrategy."""
    rules = strategy.get("evaluateOnExit", [])
    if not 1 <= strategy.get("attempts", 1) <= _MOST_ATTEMPTS:
        raise ServiceError(f"retryStrategy attempts must be between 1 and {_MOST_ATTEMPTS}.")
    if len(rules) > _MOST_RULES:
        raise ServiceError(f"retryStrategy can have at most {_MOST_RULES} evaluateOnExit conditions.")
    if rules and "attempts" not in strategy:
        raise ServiceError("retryStrategy attempts must be specified when evaluateOnExit is.")
    for rule in rules:
        if rule.get("action", "").upper() not in ("RETRY", "EXIT"):
            raise ServiceError("evaluateOnExit action must be RETRY or EXIT.")
        if not rule.keys() & _PATTERNS:
            raise ServiceError("evaluateOnExit must have one of onStatusReason, onReason, onExitCode.")
        for key, pattern in _PATTERNS.items():
            if not pattern.fullmatch(rule.get(key, "")):
                raise ServiceError(f"evaluateOnExit {key} {rule[key]!r} is not a valid pattern.")


def again(strategy: Document, tried: int, main: Container) -> bool:
    """What the first rule that fits says; where none does, it is tried again."""
    if tried >= strategy.get("attempts", 1):
        return False
    had = {
        "onStatusReason": main.status_reason or "",
        "onReason": main.reason or "",
        "onExitCode": "" if main.exit_code is None else str(main.exit_code),
    }
    for rule in strategy.get("evaluateOnExit", []):
        if all(_fits(rule[key], had[key]) for key in _PATTERNS if key in rule):
            return rule["action"].upper() == "RETRY"
    return True


def _fits(pattern: str, text: str) -> bool:
    return text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern
