"""Trainings that others published, from configs/published_trainings.yaml, at the prices of a configuration."""

import datetime as dt
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError

from configs import prices
from configs.prices import price_of
from configs.schema.prices import Basis, CostConfig, Price
from configs.wrong_values import explain
from configs.yaml_files import read_yaml_file
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record

PUBLISHED = Path(prices.__file__).with_name("published_trainings.yaml")


class PublishedTraining(Record):
    """The time of a whole training, to its end or to a target quality."""

    name: str
    instance: str = Field(description="instance type, for example p4de.24xlarge")
    nodes: int = Field(gt=0, description="machines that it held")
    seconds: float = Field(gt=0, description="seconds by the clock")
    basis: Basis | None = Field(default=None, description="basis of its prices, as in `sagemaker`; null: cost.basis")
    date: dt.date = Field(description="day of publication")
    source: str = Field(description="page, file or log that the figures are from")


class PublishedLine(Record):
    """A published training at a price that is looked up."""

    training: PublishedTraining
    billable_seconds: float = Field(description="machine-seconds")
    price: Price | None = Field(description="price of one node with basis, region and date; null: not known")
    dollars: float | None = Field(description="dollars of the whole training; null: no price")


def published_lines(cost: CostConfig) -> tuple[PublishedLine, ...]:
    """Return the published trainings at the prices of a configuration, on SageMaker at SageMaker's.

    Raises:
        ConfigError: the file is damaged; names the key.
    """
    try:
        found = TypeAdapter(tuple[PublishedTraining, ...]).validate_python(read_yaml_file(PUBLISHED))
    except ValidationError as error:
        raise ConfigError(f"{PUBLISHED}: {explain(error, tuple[PublishedTraining, ...])}") from None
    return tuple(_line(cost, training) for training in found)


def _line(cost: CostConfig, training: PublishedTraining) -> PublishedLine:
    price = price_of(training.instance, cost.model_copy(update={"basis": training.basis or cost.basis}))
    held = training.seconds * training.nodes
    return PublishedLine(
        training=training,
        billable_seconds=held,
        price=price,
        dollars=price.dollars(held) if price is not None else None,
    )
