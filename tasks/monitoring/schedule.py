"""The times of a schedule: a cron line in a time zone, as Debian's cron reads it, days with another offset included.

Prefect starts the runs. Reports avoid its date search, which takes a second to load, and never ends in some nights when
clocks go forward.
"""

import datetime as dt
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from tasks.foundation.errors import ConfigError

_SECOND = dt.timedelta(seconds=1)


def check_schedule(cron: str, timezone: str) -> None:
    """Raise ConfigError for a cron line that Prefect does not understand, or this file."""
    from prefect.server.schemas.schedules import CronSchedule  # a second of loading

    try:
        CronSchedule(cron=cron, timezone=timezone)
    except ValueError as error:
        raise _not_understood(cron) from error
    next_fire(cron, timezone)


def last_fire(cron: str, timezone: str, at: dt.datetime) -> dt.datetime:
    """Return when the schedule last started a run, in UTC, `at` included.

    Raises:
        ConfigError: the cron line is not understood, or names a date that never comes, as the 30th of February.
    """
    return next(_times(cron, timezone, at + _SECOND, back=True)).astimezone(dt.UTC)


def next_fire(cron: str, timezone: str) -> dt.datetime:
    """Return the next start of the schedule. Raises as `last_fire`."""
    return next(_times(cron, timezone, dt.datetime.now(dt.UTC), back=False))


def _times(cron: str, timezone: str, since: dt.datetime, back: bool) -> CronSim:
    local = since.astimezone(dt.UTC).replace(microsecond=0).astimezone(ZoneInfo(timezone))
    try:
        return CronSim(cron, local, reverse=back)
    except CronSimError as error:
        raise _not_understood(cron) from error


def _not_understood(cron: str) -> ConfigError:
    return ConfigError(
        f"schedule.cron {cron!r} is not a cron line: minute, hour, day of the month, month, day of the week, "
        "as in '0 6 * * 1'"
    )
