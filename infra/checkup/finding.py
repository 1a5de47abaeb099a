"""What one look at one part of the surroundings came to, and how several are made at once.

A look that goes wrong is a finding like any other: nothing it raises gets out, and nothing waits for it for ever.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from tasks.errors import StageError
from tasks.records import Record

LOOK_SECONDS = 20.0  # a bucket or a mount that does not answer must not hold up what else there is to say

Outcome = Literal["ok", "warn", "FAIL"]


class Seen(NamedTuple):
    """What was found, and what to do about it; nothing to do about what is well."""

    outcome: Outcome
    found: str
    mend: str = ""


class Check(NamedTuple):
    """`look` is called once, in a thread of its own."""

    name: str
    look: Callable[[], Seen]


class Finding(Record):
    """One line of `millrace doctor`."""

    name: str
    outcome: Outcome
    found: str
    mend: str = Field(description="empty: nothing is to be done, or `found` says it")


def made(checks: Sequence[Check], seconds: float = LOOK_SECONDS) -> list[Finding]:
    """Make all checks at once; the findings are in their order."""
    answers: dict[int, Seen] = {}

    def look(number: int, check: Check) -> None:
        answers[number] = _isolated(check.look)

    # Daemons: one that hangs in the kernel does not keep the process.
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(look, number, check), daemon=True)
        for number, check in enumerate(checks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    silent = Seen("FAIL", f"no answer within {seconds:.0f} s", "look at what stands between: network, mount, address")
    return [_finding(check.name, answers.get(number, silent)) for number, check in enumerate(checks)]


def made_now(check: Check) -> Finding:
    """Make one check that others wait for."""
    return made([check])[0]


def _isolated(look: Callable[[], Seen]) -> Seen:
    try:
        return look()
    except StageError as error:  # its message has the way out
        return Seen("FAIL", _one_line(error))
    except Exception as error:
        return Seen("FAIL", f"{type(error).__name__}: {_one_line(error)}", "set right what this names, and look again")


def _finding(name: str, seen: Seen) -> Finding:
    return Finding(name=name, outcome=seen.outcome, found=seen.found, mend=seen.mend)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
