"""The profile of a span's rows, column by column, and its drift from earlier spans."""

from typing import Literal

from pydantic import Field

from configs.schema.gates import Severity
from tasks.foundation.records import Record

BAD_ROWS_KIND, WAITING_KIND = "quarantine", "waiting"  # kinds of folders
REASON, SPAN = "reason", "span"  # columns added to rows in quarantine; several reasons have SEPARATOR between them
SEPARATOR = "; "
INGESTED_IN = "ingested_in"  # column of waiting rows: the folder of the row's span

ColumnKind = Literal["number", "category", "text", "id", "time"]


class Shared(Record):
    """A value, and its share of the rows."""

    value: str = Field(description="value, or language as an ISO 639 code")
    share: float = Field(description="share of the rows or values, 0 to 1")


class Histogram(Record):
    """Shares of numbers between `edges`; the first and the last share hold the numbers beyond the outer edges too."""

    edges: tuple[float, ...] = Field(description="ascending, one more than `shares`")
    shares: tuple[float, ...] = Field(description="shares of the rows; nulls are in none")


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
    histogram: Histogram | None = Field(
        default=None, description="numbers, or text lengths in characters; null: too few distinct ones, or another kind"
    )
    top: tuple[Shared, ...] = Field(
        description="the commonest values, or languages of the texts; shares of all rows. Of numbers, if they are few"
    )


class KnownRelation(Record):
    """The values of one feature for the items that were known before a span."""

    items: int
    kept: float | None = Field(
        description="1: in the order, or of the category, of before; 0: no relation; null: one value"
    )


class SpanProfile(Record):
    """The clean rows of one span: `profiles/<span>.json` by their folder `rows/`."""

    span: str
    version: int
    rows: int
    sampled: int = Field(description="rows in the sample for shares and quantiles; all rows of a small span")
    columns: tuple[ColumnProfile, ...]
    times: dict[str, int] = Field(
        default={},
        description="clean rows by day in UTC, as 2026-11-20; by hour, as 2026-11-20T05, if the span is a day",
    )
    unseen: dict[str, float] = Field(
        default={}, description="share of rows, by feature, whose category the parent has never seen"
    )
    unknown_tokens: float | None = Field(
        default=None, description="share of tokens that the parent's tokenizer does not know; null: without a parent"
    )
    relations: dict[str, KnownRelation] = Field(
        default={}, description="relation of the known items' values to those before the span, by feature"
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
