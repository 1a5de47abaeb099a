"""The time as records store it."""

import datetime as dt
from typing import Annotated

from pydantic import AfterValidator


def now() -> str:
    """Return the time in UTC, ISO 8601 with microseconds; such strings sort as times do."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")


def _checked(text: str) -> str:
    if dt.datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time must name its zone, as in 2026-11-20T07:00:00+00:00")
    return text


# The field of a record that is read as a time, so that a damaged one is found where the record is read.
Moment = Annotated[str, AfterValidator(_checked)]
