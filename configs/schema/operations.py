"""The part of the configuration that is about operation: when runs start, how fresh vectors must be, where to look.

Nothing here changes what a run makes, so none of it is part of a run's key.
"""

import zoneinfo
from typing import Annotated, Self

from pydantic import Field, model_validator

from tasks.foundation.records import Record


class ScheduleConfig(Record):
    """When the deployed pipeline runs. A run takes the last span that was over by its scheduled time in `timezone`."""

    cron: str = Field(pattern=r"^\S+( \S+){4}$", description="minute, hour, day of the month, month, day of the week")
    timezone: str = Field(description="a name of the IANA database, as Europe/Berlin")

    @model_validator(mode="after")
    def _zone_exists(self) -> Self:
        try:
            zoneinfo.ZoneInfo(self.timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"unknown schedule.timezone {self.timezone!r}; write it as Europe/Berlin") from error
        return self


class FreshnessConfig(Record):
    """What the service was promised."""

    target_hours: Annotated[float, Field(gt=0)] = Field(
        description="from the end of the newest span in the released vectors until now, at most"
    )
    catalogue_target_hours: Annotated[float, Field(gt=0)] = Field(
        default=3.0,
        description="from the arrival of items, in feeds or validated rows, to their release, at most",
    )
    deadline_hours: Annotated[float, Field(gt=0)] = Field(
        description="from a run's scheduled time (or start, where none was scheduled) to its end, at most"
    )


class LinksConfig(Record):
    """Addresses for the pages of a run; null: the page shows the path or the command instead."""

    reports: str | None = Field(description="where `millrace serve`, or another server of the workspace, answers")
    tensorboard: str | None
