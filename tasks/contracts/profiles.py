"""The profile of a span's rows, column by column, and its drift from earlier spans."""

from typing import Literal

from pydantic import Field

from configs.schema.gates import Severity
from tasks.foundation.records import Record

ColumnKind = Literal["number", "category", "text", "id", "time"]


class Shared(Record):
    """A value, and its share of the rows."""

    value: str = Field(description="value, or language as an ISO 639 code")
    share: float = Field(description="share of the rows or values, 0 to 1")


class ColumnProfile(Record):
    """One column of a span. Shares and quantiles are taken from the profile's sample."""

    name: str
    kind: ColumnKind
    type: str = Field(description="type in Parquet")
    null_share: float
    distinct: int = Field(description="distinct values in the whole span; an estimate above a few thousand")
    quantiles: dict[str, float] = Field(
        description="quantiles of numbers, or of text lengths in characters; empty for other kinds"
    )
    top: tuple[Shared, ...] = Field(description="the commonest values, or languages of the texts; shares of all rows")


class SpanProfile(Record):
    """The clean rows of one span: `profiles/<span>.json` by their folder `rows/`."""

    span: str
    version: int
    rows: int
    sampled: int = Field(description="rows in the sample for shares and quantiles; all rows of a small span")
    columns: tuple[ColumnProfile, ...]
    unseen: dict[str, float] = Field(
        default={}, description="share of rows, by feature, whose category the parent has never seen"
    )
    unknown_tokens: float | None = Field(
        default=None, description="share of tokens that the parent's tokenizer does not know; null: without a parent"
    )


class Bin(Record):
    """One bar of a distribution, earlier and now."""

    label: str
    earlier: float
    now: float


class ColumnDrift(Record):
    """The drift of one column: `psi` is the population stability index, `limit` the most that chance and rule allow."""

    name: str
    psi: float
    limit: float
    severity: Severity
    bins: tuple[Bin, ...]


class SampleRow(Record):
    """A bad row for people to read; long values are cut."""

    reason: str
    span: str
    values: dict[str, str]
