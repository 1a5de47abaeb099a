"""Waiting that can be interrupted, and longer and longer pauses between calls that fail."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tasks.foundation.errors import HostError, one_line

CONTACT_SECONDS = 600.0
_SLEEP_SECONDS = 1.0
_FIRST_DELAY, _LONGEST_DELAY = 0.25, 20.0
_SAY_AFTER_SECONDS = 5.0


@dataclass(frozen=True)
class WaitPolicy:
    """How to wait. `pulse` is called every second and may raise; `seconds` limits repeated calls."""

    pulse: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda line: None
    seconds: float | None = None

    def sleep(self, seconds: float) -> None:
        """Sleep, with a pulse every second. Raises what `pulse` raises."""
        until = time.monotonic() + seconds
        while True:
            self.pulse()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _SLEEP_SECONDS))


class Backoff:
    """The pauses between repeated calls that fail, each longer than the last, until a time limit."""

    def __init__(self, policy: WaitPolicy, what: str) -> None:
        self._policy, self._what = policy, what
        self._until = time.monotonic() + (CONTACT_SECONDS if policy.seconds is None else policy.seconds)
        self._began = time.monotonic()
        self._delay = _FIRST_DELAY
        self._said = False

    def wait_after(self, error: Exception) -> None:
        """Wait before the next call. Raises HostError: the time limit is over."""
        now = time.monotonic()
        if now >= self._until:
            raise HostError(
                f"lost contact with {self._what}: no answer for {now - self._began:.0f} s ({one_line(error)}); a job "
                "that was started keeps running, and running the span again finds it"
            ) from error
        if not self._said and now - self._began > _SAY_AFTER_SECONDS:
            self._said = True
            left = self._until - now
            self._policy.say(f"{self._what} gives no answer ({one_line(error)}); asking for {left:.0f} s more")
        pause = self._delay * random.uniform(0.5, 1.0)
        self._delay = min(2 * self._delay, _LONGEST_DELAY)
        self._policy.sleep(min(pause, self._until - now))
