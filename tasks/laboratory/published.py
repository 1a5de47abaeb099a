"""Figures of configs/published.yaml: speeds, scaling and fixed seconds that others published; the hosts' own work."""

import datetime as dt
import functools
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

import configs
from configs.keys import explain
from configs.yaml_files import read_yaml_file
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.preflight.encoder_size import Arithmetic, EncoderSize, Work

PUBLISHED = Path(configs.__file__).with_name("published.yaml")


class PublishedRow(Record):
    """A published speed of a known encoder."""

    name: str
    work: Work
    model: str = Field(description="one of `models`")
    instance: str = Field(description="one of configs/instances.yaml")
    nodes: int = Field(gt=0)
    batch: int = Field(gt=0, description="sequences of the global batch")
    batch_grows: bool = Field(description="true: each node keeps its batch; false: one batch is divided by all nodes")
    length: int = Field(gt=0, description="tokens of a sequence")
    length_varies: bool = Field(default=False, description="true: `length` is an assumed mean")
    precision: Arithmetic
    sequences_per_second: float = Field(gt=0)
    date: dt.date
    source: str


class Efficiency(Record):
    """A share of an ideal speed."""

    efficiency: float = Field(gt=0, le=1)
    source: str


class Scaling(Record):
    """The speed of several nodes as a share of one node's times their number."""

    nodes: int = Field(gt=1, description="number of nodes that both figures were measured on")
    same_batch_a_node: Efficiency
    same_batch: Efficiency
    all_reduce: Efficiency = Field(description="bandwidth of an all-reduce as a share of the network's")


class FixedSeconds(Record):
    """Seconds of a phase without a record of the workspace's own."""

    seconds: float = Field(gt=0)
    source: str


class Measured(Record):
    """A figure that was measured once, for all workspaces."""

    value: float = Field(gt=0)
    source: str


class HostFigures(Record):
    """The hosts' own work, for a stage without an attempt on record."""

    row: Measured = Field(description="seconds of one vCPU that validate takes for a row of its window, on one core")
    row_on_cores: Measured = Field(description="the same, of work that all cores share")
    earlier_row: Measured = Field(description="vCPU seconds in which validate compares a window with an earlier row")
    known_pair: Measured = Field(description="seconds in which validate learns the pair of a row, own or earlier")
    products: Measured = Field(description="multiplications and additions a second of one vCPU, in a search, fp32")
    accelerator_disk: Measured = Field(description="bytes a second of an accelerator machine's disk")
    cpu_disk: Measured = Field(description="bytes a second of the CPU queue's disk")


class Published(Record):
    """configs/published.yaml."""

    models: dict[str, EncoderSize]
    rows: tuple[PublishedRow, ...]
    scaling: Scaling
    fixed: dict[Literal["boot", "start", "compile", "work"], FixedSeconds]
    host: HostFigures


@functools.cache
def published() -> Published:
    """Return the published figures.

    Raises:
        ConfigError: the file is damaged; names the key.
    """
    try:
        return Published.model_validate(read_yaml_file(PUBLISHED))
    except ValidationError as error:
        raise ConfigError(f"{PUBLISHED}: {explain(error, Published)}") from error
