"""Checks of the environment, which run in parallel.

An error inside a check becomes a finding, and a check that hangs is abandoned after a time limit.
"""

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from tasks.foundation.errors import FailureClass, StageError, one_line
from tasks.foundation.records import Record

CHECK_SECONDS = 20.0  # a bucket or mount that does not answer must not hold up the other checks

Outcome = Literal["ok", "warn", "FAIL"]


class CheckResult(NamedTuple):
    """The result of a check, and the repair; `mend` is empty if none is needed."""

    outcome: Outcome
    found: str
    mend: str = ""


class Check(NamedTuple):
    """`run` is called once, in its own thread."""

    name: str
    run: Callable[[], CheckResult]


class Finding(Record):
    """One line of `millrace doctor`."""

    name: str = Field(description="name of the check")
    outcome: Outcome = Field(description="ok, warn or FAIL")
    found: str
    mend: str = Field(description="repair; empty: not needed, or in `found`")
    failure: FailureClass | None = Field(default=None, description="failure class of a deep check; null: it has none")


def run_checks(checks: Sequence[Check], seconds: float = CHECK_SECONDS) -> list[Finding]:
    """Run all checks in parallel; return their findings in order."""
    results: dict[int, CheckResult] = {}

    def run(number: int, check: Check) -> None:
        results[number] = _isolated(check.run)

    # Daemon threads: a check that hangs does not keep the process alive.
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(run, number, check), daemon=True)
        for number, check in enumerate(checks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    silent = CheckResult("FAIL", f"no answer within {seconds:.0f} s", "check the network, the mount and the address")
    return [Finding(name=check.name, **results.get(number, silent)._asdict()) for number, check in enumerate(checks)]


def run_check(check: Check) -> Finding:
    """Run one check, and wait for it."""
    return run_checks([check])[0]


def _isolated(run: Callable[[], CheckResult]) -> CheckResult:
    try:
        return run()
    except StageError as error:  # its message has the repair
        return CheckResult("FAIL", one_line(error))
    except Exception as error:
        return CheckResult(
            "FAIL", f"{type(error).__name__}: {one_line(error)}", "repair what this names, and run again"
        )
