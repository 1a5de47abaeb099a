"""Seconds as people say them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """As in `42 s`, `1 min 20 s` or `3 h 05 min`."""
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
