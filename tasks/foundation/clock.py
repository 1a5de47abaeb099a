"""The clock of this process, and time as text: as records store it, and as people read it.

Code whose order of steps matters between processes waits and tells the time here alone: locks, leases, fences, stages.
So a simulation can put its own clock in place (`keep_time_by`).
"""

import contextlib
import datetime as dt
import functools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Protocol

from pydantic import AfterValidator


class Repeating(Protocol):
    """A function that is called again and again beside the caller."""

    def stop(self, patience_seconds: float) -> bool:
        """End the calls; return False if one is still under way after `patience_seconds`."""
        ...


class Clock:
    """The clock of the operating system."""

    def seconds(self) -> float:
        """Return the seconds since 1970, by a clock that people and servers set."""
        return time.time()

    def uptime(self) -> float:
        """Return the seconds since boot: a clock that nobody sets and that runs while the machine sleeps.

        All processes of one boot share it.
        """
        return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))

    def boot(self) -> str:
        """Return the kernel's id of this boot; empty if the system has none."""
        return _boot()

    def sleep(self, seconds: float) -> None:
        """Stop the caller for this long."""
        time.sleep(seconds)

    def repeat(self, act: Callable[[], None], every_seconds: float, name: str) -> Repeating:
        """Call `act` again and again, for the first time after `every_seconds`, in a thread of this name."""
        return _Thread(act, every_seconds, name)


class _Thread:
    def __init__(self, act: Callable[[], None], every_seconds: float, name: str) -> None:
        self._act, self._every_seconds, self._left = act, every_seconds, threading.Event()
        self._thread = threading.Thread(target=self._go_on, name=name, daemon=True)
        self._thread.start()

    def _go_on(self) -> None:
        while not self._left.wait(self._every_seconds):
            self._act()

    def stop(self, patience_seconds: float) -> bool:
        self._left.set()
        self._thread.join(patience_seconds)
        return not self._thread.is_alive()


@functools.cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


_clock = Clock()


@contextlib.contextmanager
def keep_time_by(clock: Clock) -> Iterator[None]:
    """Let this process keep time by another clock inside the block."""
    global _clock
    before, _clock = _clock, clock
    try:
        yield
    finally:
        _clock = before


def seconds() -> float:
    """Return the seconds since 1970."""
    return _clock.seconds()


def uptime() -> float:
    """Return the seconds since boot."""
    return _clock.uptime()


def boot() -> str:
    """Return the kernel's id of this boot."""
    return _clock.boot()


def sleep(seconds: float) -> None:
    """Stop the caller for this long."""
    _clock.sleep(seconds)


def repeat(act: Callable[[], None], every_seconds: float, name: str) -> Repeating:
    """Call `act` again and again beside the caller, until the result is stopped."""
    return _clock.repeat(act, every_seconds, name)


def duration(seconds: float) -> str:
    """Return `42 s`, `1 min 20 s` or `3 h 05 min`."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def old(hours: float) -> str:
    """Return the age of data, or its limit: `36 h` up to three days, then `3.5 days`."""
    return f"{hours:.0f} h" if hours <= 72 else f"{hours / 24:,.1f}".removesuffix(".0") + " days"


def now() -> str:
    """Return the time in UTC, ISO 8601 with microseconds; such strings sort by time."""
    return dt.datetime.fromtimestamp(seconds(), dt.UTC).isoformat(timespec="microseconds")


def _checked(text: str) -> str:
    if dt.datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time must name its zone, as in 2026-11-20T07:00:00+00:00")
    return text


# The type of a record's time field; a damaged time fails when the record is read.
Moment = Annotated[str, AfterValidator(_checked)]
