"""The expectation of failures in a training: their rate and cost, and the goodput by number of nodes."""

from typing import Literal

from pydantic import Field

from tasks.foundation.records import Record


class Assumed(Record):
    """A number that the simulation rests on, with its source."""

    value: float
    source: str = Field(description="ledger, statement or publication that it is from")


class FailureModel(Record):
    """The failures of a training, and the time that one takes."""

    node_hours_between: Assumed = Field(description="hours between two failures of one node")
    save_seconds: Assumed = Field(description="stall of the training per checkpoint, in seconds")
    restart_seconds: Assumed = Field(description="seconds of booting, compiling and restoring before the first step")
    queued_seconds: Assumed = Field(description="seconds of waiting for machines after a failure; they cost nothing")
    hang_share: Assumed = Field(description="share of failures that are hangs")
    notice_seconds: Assumed = Field(description="seconds until a hang is noticed (train.watchdog_seconds)")


class AtNodes(Record):
    """A training on one number of nodes. Nulls: it never ends, since failures come faster than checkpoints."""

    nodes: int = Field(description="number of nodes")
    seconds_between_failures: float = Field(description="mean seconds between two failures of any node")
    interval_seconds: float = Field(description="interval between checkpoints that loses the least time")
    young_seconds: float = Field(description="sqrt(2 * save * seconds between failures), for comparison")
    goodput: float | None = Field(description="share of the paid time that is work which was kept")
    failures: float | None = Field(description="failures expected in the training")
    hours: float | None = Field(description="expected hours from the first boot to the end, with queues")
    dollars: float | None = Field(description="expected cost; null: also if the price is not known")


class Goodput(Record):
    """The expectation for a training of some hours without failures, by number of nodes."""

    version: Literal[1] = 1
    hours: float = Field(description="hours of the training without failures and checkpoints, on any number of nodes")
    model: FailureModel
    dollars_per_node_hour: float | None = Field(description="price of one node; null: not known")
    rows: tuple[AtNodes, ...]
