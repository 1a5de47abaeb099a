"""The report of one `millrace smoke`: its checks in order, up to the first failure."""

from typing import Literal

from pydantic import Field

from infra.store.base import Store
from tasks.foundation.clock import Moment
from tasks.foundation.errors import FailureClass
from tasks.foundation.records import Record


class Rung(Record):
    """The result of one check on a number of workers and machines."""

    name: str = Field(description="name of the check")
    workers: int
    machines: int
    passed: bool
    sentences: tuple[str, ...] = Field(description="observations, with their numbers; for a failure, its cause")
    numbers: dict[str, float] = Field(
        default={}, description="measured numbers by name: GB/s, microseconds, seconds, counts"
    )
    mend: str = Field(default="", description="first place to look at; empty: it passed")


class SmokeReport(Record):
    """`smoke/<key>.json`."""

    version: Literal[1] = 1
    key: str
    at: Moment
    accelerator: str
    machine: str | None = Field(description="kind of node (health.machine)")
    rungs: tuple[Rung, ...]
    failure: FailureClass | None = Field(description="failure class; null: every check passed")
    seconds: float
    dollars: float = Field(description="cost of the machines in dollars, by the configured prices; 0 without prices")

    @property
    def passed(self) -> bool:
        return self.failure is None


def write_report(store: Store, report: SmokeReport) -> None:
    """Write the report to the workspace."""
    store.write(f"smoke/{report.key}.json", report.to_json())
