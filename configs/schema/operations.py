"""The configuration of operation: the schedule of runs, the age of vectors, addresses of pages.

Nothing here changes a run's model or vectors, so none of it is part of a run's key.
"""

import zoneinfo
from typing import Annotated, Self

from pydantic import Field, model_validator

from tasks.foundation.records import Record


class ScheduleConfig(Record):
    """The schedule of the deployed pipeline. A run takes the last span that ended before its scheduled time."""

    cron: str = Field(
        pattern=r"^\S+( \S+){4}$",
        description="five fields of cron: minute, hour, day of the month, month, day of the week",
    )
    timezone: str = Field(description="time zone of the schedule by its IANA name, as in Europe/Berlin")

    @model_validator(mode="after")
    def _zone_exists(self) -> Self:
        try:
            zoneinfo.ZoneInfo(self.timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError) as error:
            raise ValueError(f"unknown schedule.timezone {self.timezone!r}; write it as Europe/Berlin") from error
        return self


class FreshnessConfig(Record):
    """The service's promised limits of age and time."""

    target_hours: Annotated[float, Field(gt=0)] = Field(
        description="greatest age of the released vectors' data, in hours from the end of their newest span"
    )
    catalogue_target_hours: Annotated[float, Field(gt=0)] = Field(
        default=3.0,
        description="longest wait of an item for a release, in hours from its arrival in a feed or a span",
    )
    deadline_hours: Annotated[float, Field(gt=0)] = Field(
        description="longest time from a run's scheduled time (its start if it has none) to its end, in hours"
    )


class LinksConfig(Record):
    """Addresses for the pages of a run; null: the page shows the path or the command instead."""

    reports: str | None = Field(
        description="address of `millrace serve`, or of another server of the workspace; null: pages show the "
        "path or the command instead"
    )
    tensorboard: str | None = Field(description="address of TensorBoard; null: pages show the command instead")
