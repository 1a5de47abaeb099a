"""Waiting on somebody's behalf: in short sleeps with a pulse in between, and for trouble that time may heal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from infra.batch.errors import one_line
from tasks.errors import HostError

CONTACT_SECONDS = 600.0
_SLEEP_SECONDS = 1.0
_FIRST_DELAY, _LONGEST_DELAY = 0.25, 20.0
_SAY_AFTER_SECONDS = 5.0


@dataclass(frozen=True)
class Patience:
    """`pulse` may raise, which ends the waiting; `seconds` is how long trouble is borne, CONTACT_SECONDS if None."""

    pulse: Callable[[], None]
    say: Callable[[str], None]
    seconds: float | None = None

    def rest(self, seconds: float) -> None:
        """Sleep. Raises what `pulse` raises."""
        until = time.monotonic() + seconds
        while True:
            self.pulse()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _SLEEP_SECONDS))


class Trouble:
    """The trouble with one thing that is asked for again and again, until patience ends."""

    def __init__(self, patience: Patience, what: str) -> None:
        self._patience, self._what = patience, what
        self._until = time.monotonic() + (CONTACT_SECONDS if patience.seconds is None else patience.seconds)
        self._began = time.monotonic()
        self._delay = _FIRST_DELAY
        self._told = False

    def bear(self, error: Exception) -> None:
        """Wait before the next try, longer each time.

        Raises:
            HostError: it has gone on for too long.
        """
        now = time.monotonic()
        if now >= self._until:
            raise HostError(
                f"lost contact with {self._what}: no answer for {now - self._began:.0f} s ({one_line(error)}); a job "
                "that was started goes on, and running the span again finds it"
            ) from error
        if not self._told and now - self._began > _SAY_AFTER_SECONDS:
            self._told = True
            left = self._until - now
            self._patience.say(f"{self._what} gives no answer ({one_line(error)}); asking for {left:.0f} s more")
        pause = self._delay * random.uniform(0.5, 1.0)
        self._delay = min(2 * self._delay, _LONGEST_DELAY)
        self._patience.rest(min(pause, self._until - now))
