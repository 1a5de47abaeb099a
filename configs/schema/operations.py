"""The configuration of operation: the schedule of runs, the decision before each, the age of vectors, addresses.

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


class DecideConfig(Record):
    """The decision before each scheduled run: train the span, train it longer, or let it wait for the next one.

    A point is 0.01 of recall@10 on the span after, which the model has not seen.
    """

    scheduled: bool = Field(
        default=False,
        description="true: scheduled runs follow the decision; false: they train each span, and only `millrace decide` "
        "shows it",
    )
    scores: Annotated[int, Field(ge=1)] = Field(
        default=8, description="newest forward scores from which the gain of the next training is expected"
    )
    least_points: float = Field(
        default=0.5,
        description="least points for which a span is trained; if the gain is below with 0.95 confidence, it waits for "
        "the next one",
    )
    least_points_per_dollar: float | None = Field(
        default=None,
        gt=0,
        description="least points for each dollar of a training, with the same confidence; null, or unknown prices: "
        "points alone decide",
    )
    most_waiting: Annotated[int, Field(ge=0)] = Field(
        default=2, description="most spans that wait; one more, and all are trained in any case"
    )
    longer_least_points: float | None = Field(
        default=None,
        gt=0,
        description="least points expected of twice the epochs, for which a training is longer; null: never",
    )


class LinksConfig(Record):
    """Addresses for the pages of a run; null: the page shows the path or the command instead."""

    reports: str | None = Field(
        description="address of `millrace serve`, or of another server of the workspace; null: pages show the "
        "path or the command instead"
    )
    tensorboard: str | None = Field(description="address of TensorBoard; null: pages show the command instead")
