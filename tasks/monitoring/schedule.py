"""The times of a schedule, by Prefect's own reading of cron lines and time zones."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING

from tasks.foundation.errors import ConfigError

if TYPE_CHECKING:
    from prefect.server.schemas.schedules import CronSchedule

_DAYS_BACK = (1 / 24, 1, 8, 32, 367, 1500)  # the last one holds a 29th of February
_MOST = 500  # dates at once; Prefect looks at no more than 1,000


def check_schedule(cron: str, timezone: str) -> None:
    """Raise ConfigError for a cron line that Prefect does not understand."""
    _read(cron, timezone)


def last_fire(cron: str, timezone: str, at: dt.datetime) -> dt.datetime:
    """Return when the schedule last started a run, `at` included.

    Raises:
        ConfigError: the cron line is not understood, or has not fired for four years.
    """
    schedule = _read(cron, timezone)
    for days in _DAYS_BACK:
        start, last = at - dt.timedelta(days=days), None
        while dates := asyncio.run(schedule.get_dates(n=_MOST, start=start, end=at)):
            last, start = dates[-1], dates[-1] + dt.timedelta(seconds=1)
        if last is not None:
            return last
    raise ConfigError(f"schedule.cron {cron!r} has not fired for {_DAYS_BACK[-1]} days before {at}")


def next_fire(cron: str, timezone: str) -> dt.datetime:
    """Return when the schedule starts its next run. Raises what `check_schedule` does."""
    (date,) = asyncio.run(_read(cron, timezone).get_dates(n=1))
    return date


def _read(cron: str, timezone: str) -> CronSchedule:
    from prefect.server.schemas.schedules import CronSchedule  # a second of loading

    try:
        return CronSchedule(cron=cron, timezone=timezone)
    except ValueError as error:
        raise ConfigError(
            f"schedule.cron {cron!r} is not a cron line: minute, hour, day of the month, month, day of the week, "
            "as in '0 6 * * 1'"
        ) from error
