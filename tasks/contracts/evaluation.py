"""What an evaluation measures of each model, and what the gates say about it.

The answers to each holdout row are one Parquet file, `EvaluateOutcome.rows_key`. The workers write it; the gates are
judged from it, at once or later. Its columns are named here and nowhere else.
"""

from enum import StrEnum

from pydantic import Field

from configs.schema.stages import Severity
from tasks.foundation.records import Record

# --- the row results --------------------------------------------------------------------------------------------

ROW_ID = "row_id"  # string, as in the rows of the span
SPAN = "span"  # string: the span that the row is from; GOLDEN for a row of the golden set
QUERY_KEY = "query_key"  # int64: a hash of the normalised query; rows with one query are resampled together
ITEM_ID = "item_id"  # string
PAIR = "pair"  # bool: the row counts for the ranking metrics
LABEL_CLASS = "label_class"  # int8: 0, 1, or -1 without a class

GOLDEN = "(golden)"

COLUMN = "column."  # begins the name of a column of the source, as in column.locale


class Role(StrEnum):
    """Which model gave an answer. One model may have several roles."""

    challenger = "challenger"
    champion = "champion"  # the current release
    untrained = "untrained"  # the weights with which the lineage began
    first = "first"  # the first release
    best = "best"  # the release with the highest value so far


def rank_of(role: Role) -> str:
    """Return the column with the rank of the row's own item, int32 from 1, among all items that are not as right."""
    return f"{role}.rank"


def loss_of(role: Role) -> str:
    """Return the column with the cross entropy of the row's own item among the corpus, float32, in nats."""
    return f"{role}.loss"


def probability_of(role: Role) -> str:
    """Return the column with the probability of class 1, float32; it is there if the model has the head."""
    return f"{role}.probability"


# --- of all rows ------------------------------------------------------------------------------------------------


class Measurement(Record):
    """One model on the rows of an evaluation. Its answers to each row are in the file of row results."""

    role: Role
    version: str
    release: int | None = Field(description="null for the challenger and the untrained model")
    metrics: dict[str, float] = Field(description="over all holdout rows, without the golden set")
    vectors: dict[str, float] = Field(description="of its vectors of the corpus: metrics of the families of vectors")


class SpanMetrics(Record):
    """Each model on the holdout rows of one span."""

    span: str
    rows: int
    metrics: dict[Role, dict[str, float]]


class SliceMetrics(Record):
    column: str
    value: str
    rows: int
    metrics: dict[str, float]


class Verdict(Record):
    """One gate's judgement."""

    metric: str
    severity: Severity
    passed: bool | None = Field(description="null where the gate does not apply, as without a champion")
    value: float | None
    baseline: float | None
    sentence: str
