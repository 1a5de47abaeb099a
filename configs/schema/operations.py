"""The configuration of operation: the schedule of runs, the decision before each, the age of vectors, addresses.

Prices of machines and the section `cost`: what an hour costs, since when, and who says so; budgets.
"""

import datetime as dt
import zoneinfo
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from tasks.foundation.records import Record


class ScheduleConfig(Record):
    """The schedule of the deployed pipeline. A run takes the last span that ended before its scheduled time."""

    cron: str = Field(
        pattern=r"^\S+( \S+){4}$",
        description="minute, hour, day of the month, month, day of the week",
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
        description="longest wait of an item for a release, in hours",
    )
    deadline_hours: Annotated[float, Field(gt=0)] = Field(
        description="longest time from a run's scheduled time, or its start, to its end, in hours"
    )


class DecideConfig(Record):
    """The decision before each scheduled run: train the span, train it longer, or let it wait for the next one.

    A point is 0.01 of recall@10 on the span after, which the model has not seen.
    """

    scheduled: bool = Field(
        default=False,
        description="true: scheduled runs follow the decision; false: they train each span",
    )
    scores: Annotated[int, Field(ge=1)] = Field(
        default=8, description="newest forward scores from which the gain of the next training is expected"
    )
    least_points: float = Field(
        default=0.5,
        description="points below which, with 0.95 confidence, a span waits",
    )
    least_points_per_dollar: float | None = Field(
        default=None,
        gt=0,
        description="least points for each dollar of a training; null, or unknown prices: points alone decide",
    )
    most_waiting: Annotated[int, Field(ge=0)] = Field(default=2, description="most spans that wait")
    longer_least_points: float | None = Field(
        default=None,
        gt=0,
        description="least points expected of twice the epochs; null: never longer",
    )


class PruneConfig(Record):
    """The releases that keep their files, beside the current one and the targets of a rollback."""

    delete: bool = Field(
        default=False,
        description="true: the deployed prune deletes each night; false: it only lists",
    )
    releases: Annotated[int, Field(ge=1)] = Field(default=5, description="newest releases that are kept")
    models: Annotated[int, Field(ge=1)] = Field(
        default=2, description="newest released models of which the newest release is kept"
    )
    days: Annotated[float, Field(ge=0)] = Field(
        default=3.0, description="age up to which each release is kept, in days"
    )

    @classmethod
    def newest(cls, releases: int) -> Self:
        """Return the policy that keeps these newest releases alone."""
        return cls(releases=releases, models=1, days=0.0)


class LinksConfig(Record):
    """Addresses for the pages of a run; null: the page shows the path or the command instead."""

    reports: str | None = Field(description="address of `millrace serve`, or of another server of the workspace")
    tensorboard: str | None = Field(description="address of TensorBoard; null: pages show the command instead")


ListBasis = Literal["on_demand", "spot", "paid", "capacity_block", "sagemaker"]
Basis = ListBasis | Literal["stated"]
LOCAL_WORKER = "local worker"  # the instance of a stage that runs on this machine


class Price(Record):
    """The price of one instance, with its basis, its date and its source; without them a figure can't be judged."""

    instance: str = Field(description="instance type, for example trn1.32xlarge; `local worker` for a local process")
    region: str = Field(description="AWS region, for example us-east-1; empty for a local worker")
    basis: Basis = Field(
        description="`on_demand`, `spot` (a quote), `paid` (from a bill), `capacity_block`, `sagemaker` (on demand "
        "times cost.sagemaker_factor), `stated` (a key of the configuration)"
    )
    dollars_per_hour: float = Field(gt=0, description="dollars an hour of one instance")
    date: dt.date = Field(description="day on which the price held")
    source: str = Field(min_length=1, description="page, file or bill that the price is from")

    def dollars(self, billable_seconds: float) -> float:
        """Return the cost in dollars of machine-seconds."""
        return billable_seconds / 3600 * self.dollars_per_hour

    @property
    def says(self) -> str:
        """The price in words: `$21.50/h on demand, us-east-1, 2026-07-20`."""
        where = f"{self.region}, " if self.region else ""
        return f"${self.dollars_per_hour:,.2f}/h {self.basis.replace('_', ' ')}, {where}{self.date}"


class Charge(Record):
    """Machine-seconds of one instance type at one price: of an attempt, or added up."""

    instance: str | None = Field(description="instance type; null: the configuration names none")
    price: Price | None = Field(description="price of one machine at that time; null: not known")
    billable_seconds: float = Field(description="seconds that machines were held, added up over the machines")

    @property
    def cost(self) -> float | None:
        """The cost in dollars; None if the price is not known."""
        return None if self.price is None else self.price.dollars(self.billable_seconds)


class PriceList(Record):
    """Prices of one basis, region, date and source."""

    basis: ListBasis = Field(description="basis of the prices: `spot` is a quote, `paid` is from a bill")
    region: str = Field(min_length=1, description="AWS region of the prices, for example us-east-1")
    date: dt.date = Field(description="day on which the prices held, for example 2026-07-20")
    source: str = Field(min_length=1, description="page, file or bill that the prices are from")
    dollars_per_hour: dict[str, float] = Field(
        min_length=1, description="dollars an hour of one instance, by instance type, as in {trn1.32xlarge: 21.50}"
    )

    @field_validator("dollars_per_hour")
    @classmethod
    def _no_free_machine(cls, prices: dict[str, float]) -> dict[str, float]:
        free = [name for name, price in prices.items() if price <= 0]
        if free:
            raise ValueError(f"{free[0]} costs {prices[free[0]]:g}; leave out a machine whose price is not known")
        return prices

    def price(self, instance: str) -> Price | None:
        """Return the price of an instance type; None if the list has none."""
        dollars = self.dollars_per_hour.get(instance)
        if dollars is None:
            return None
        return Price(
            instance=instance,
            region=self.region,
            basis=self.basis,
            dollars_per_hour=dollars,
            date=self.date,
            source=self.source,
        )


class CostConfig(Record):
    """Prices and budgets. A machine without a price has an unknown cost, which is not zero."""

    basis: ListBasis = Field(description="basis of the prices that runs are charged with")
    region: str = Field(min_length=1, description="AWS region of the prices, for example us-east-1")
    sagemaker_factor: float = Field(
        gt=0, description="price of an instance on SageMaker as a multiple of its on-demand price"
    )
    prices: tuple[PriceList, ...] = Field(
        description="own price lists, over configs/prices.yaml; in a file, their path"
    )
    dollars_per_worker_hour: float | None = Field(
        gt=0, description="price of one local worker, in dollars an hour; null: not known"
    )
    budget_dollars_per_run: float | None = Field(
        gt=0,
        description="most that a run, a refresh or a backfill's span may cost, in dollars; null: no limit",
    )
    budget_dollars_per_week: float | None = Field(
        gt=0, description="most that the work of an ISO week (UTC) may cost, in dollars; null: no limit"
    )
