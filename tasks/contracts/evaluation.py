"""What an evaluation measures of each model, and what the gates say about it.

The answers to each holdout row are one Parquet file, `EvaluateOutcome.rows_key`. The workers write it; the gates are
judged from it, at once or later. Its columns are named here and nowhere else.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from pydantic import Field

from configs.schema.gates import GateConfig, Severity
from configs.schema.stages import Bounds
from tasks.foundation.records import Record

# --- the row results --------------------------------------------------------------------------------------------

ROW_ID = "row_id"  # string, as in the rows of the span
SPAN = "span"  # string: the span that the row is from; GOLDEN for a row of the golden set
QUERY_KEY = "query_key"  # int64: a hash of the normalised query
GROUP = "group"  # int64: rows of one user, else of one query, are resampled together
ITEM_ID = "item_id"  # string
PAIR = "pair"  # bool: the row counts for the ranking metrics
LABEL_CLASS = "label_class"  # int8: 0, 1, or -1 without a class
LABEL = "label."  # begins the name of what a head should say of a row, float64: label.multiclass; NaN: not known

GOLDEN = "(golden)"

COLUMN = "column."  # begins the name of a column of the source, as in column.locale


class Role(StrEnum):
    """Which model gave an answer. One model may have several roles."""

    challenger = "challenger"
    champion = "champion"  # the current release
    previous = "previous"  # the newest release of another model that was current before the champion
    untrained = "untrained"  # the weights with which the lineage began
    first = "first"  # the first release
    best = "best"  # the best release so far, in sums of the differences that evaluations measured


def rank_of(role: Role) -> str:
    """Return the column with the rank of the row's own item, int32 from 1, among the corpus of all models.

    Items that are as right don't count.
    """
    return f"{role}.rank"


def whole_rank_of(role: Role) -> str:
    """Return the column with the same rank among the whole catalogue, int32; it is there if the corpus is a part."""
    return f"{role}.whole"


def shared_rank_of(role: Role, baseline: Role) -> str:
    """Return the column with the same rank among the items that challenger and baseline both hold, int32.

    It is there of both, for each baseline with released vectors, if the corpus is a part of the catalogue.
    """
    return f"{role}.shared.{baseline}"


def narrow_rank_of(role: Role, width: int) -> str:
    """Return the column with the same rank by the first `width` numbers of the vectors alone, normalised again, int32.

    It is there for the widths of heads.contrastive.matryoshka and of gates that are below the model's own.
    """
    return f"{rank_of(role)}.{width}"


def held_of(role: Role) -> str:
    """Return the column that says whether the role's release holds the row's item, bool; the champion's alone."""
    return f"{role}.held"


def loss_of(role: Role) -> str:
    """Return the column with the cross entropy of the row's own item among the corpus, float32, in nats."""
    return f"{role}.loss"


def probability_of(role: Role) -> str:
    """Return the column with the probability of class 1, float32; it is there if the model has the head."""
    return f"{role}.probability"


def predicted_of(role: Role) -> str:
    """Return the column with the class that the model names, int8; it is there if the model has the head."""
    return f"{role}.predicted"


def says_of(role: Role, head: str) -> str:
    """Return the column with what a head says of each row, float32: a class by its number, or a number."""
    return f"{role}.says.{head}"


# --- of all rows ------------------------------------------------------------------------------------------------


class Measurement(Record):
    """One model on the rows of an evaluation. Its answers to each row are in the file of row results."""

    role: Role
    version: str
    release: int | None = Field(description="null for the challenger and the untrained model")
    metrics: dict[str, float] = Field(description="over all holdout rows, without the golden set")
    vectors: dict[str, float] = Field(description="of its vectors of the corpus: metrics of the families of vectors")
    recall_by_width: dict[int, float] = Field(
        default={},
        description="recall@10 over all holdout rows, by the first numbers of its vectors alone, normalised again",
    )


class SpanMetrics(Record):
    """Each model on the holdout rows of one span."""

    span: str
    rows: int
    metrics: dict[Role, dict[str, float]]


class SliceMetrics(Record):
    column: str
    value: str = Field(description="value of the column")
    rows: int
    metrics: dict[str, float] = Field(description="metrics of the challenger")
    champion: dict[str, float] | None = Field(
        default=None, description="metrics of the champion; null: none, or not measured"
    )


class ForwardScore(Record):
    """The champion on the holdout rows of the span after it, before that span is trained; other models on the same."""

    release: int = Field(description="number of the release that first had the model")
    span: str = Field(description="span after it, which it has not seen")
    rows: int
    metric: str
    value: float = Field(description="value of the release's model")
    previous: int | None = Field(
        description="number of the release before it; null: none, or not measured, or it has seen the span"
    )
    previous_value: float | None = Field(description="value of the previous release's model")
    low: float | None = Field(description="lower bound of value - previous_value; null: not known")
    high: float | None = Field(description="upper bound of value - previous_value; both together with 95 % confidence")
    untrained: float | None = Field(description="value of the weights that the lineage began with")
    challenger: float | None = Field(description="value of the model that was then trained on the span")


Answer = Literal["pass", "fail", "undecided"]


class Verdict(Record):
    """One gate's judgement, of all rows or of one slice or span, with the numbers that it is made of."""

    metric: str
    severity: Severity
    answer: Answer | None = Field(
        description="answer of the gate; null: it does not apply, for example without a champion"
    )
    value: float | None
    baseline: float | None = Field(description="value of the baseline; null: the gate has none")
    sentence: str
    of: Literal["challenger", "champion"] = Field(default="challenger", description="model that the value belongs to")
    against: str = Field(default="", description="name of the baseline")
    where: str = Field(default="", description="width, slice, span or golden set that was judged; empty: all rows")
    over: str = Field(default="", description="rows and corpus in words, for people")
    rows: int | None = Field(default=None, description="rows that the metric is computed over")
    groups: int | None = Field(
        default=None, description="groups of rows that are resampled together, for example all rows of one query"
    )
    threshold: float | None = Field(default=None, description="limit of the value, or of the difference")
    difference: float | None = Field(default=None, description="value minus baseline")
    low: float | None = Field(default=None, description="lower bound of the value or difference, at `confidence`")
    high: float | None = Field(default=None, description="upper bound of the value or difference, at `confidence`")
    standard_error: float | None = Field(default=None, description="standard error of the value or difference")
    confidence: float | None = Field(
        default=None, description="one-sided confidence level; null: the number alone decided"
    )
    rows_needed: int | None = Field(default=None, description="rows that would decide an undecided gate, about")
    undecided_refuses: bool = Field(default=False, description="true: a critical gate refuses if it is undecided")

    @property
    def judges(self) -> str:
        """The metric, with the model unless that is the challenger, and with the part of the rows."""
        whose = "" if self.of == "challenger" else self.of
        return ", ".join(filter(None, (self.metric, whose, self.where)))

    @property
    def passed(self) -> bool | None:
        """Whether the gate passed or failed; None where it does not apply or is undecided."""
        return {"pass": True, "fail": False}.get(self.answer or "")

    @property
    def refuses(self) -> bool:
        """Whether it stops the release."""
        refused = self.answer == "fail" or (self.answer == "undecided" and self.undecided_refuses)
        return refused and self.severity == "critical"


def refused(verdicts: Sequence[Verdict]) -> bool:
    """Return whether a critical gate refuses. Warnings, and gates that do not apply, never do."""
    return any(verdict.refuses for verdict in verdicts)


def refusals(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the sentences of the gates that refused."""
    return tuple(verdict.sentence for verdict in verdicts if verdict.refuses)


def undecided(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the sentences of the critical gates that could not tell; nothing hangs on the others."""
    unsure = (verdict for verdict in verdicts if verdict.answer == "undecided")
    return tuple(verdict.sentence for verdict in unsure if verdict.severity == "critical")


class Override(Record):
    """A human's decision that a refused run passes."""

    name: str = Field(min_length=1, description="person who decided")
    reason: str = Field(min_length=1)
    at: str = Field(description="time in UTC, ISO 8601")
    refusals: tuple[str, ...] = Field(description="sentences of the gates that refused")


class Rules(Record):
    """The settings that an evaluation was judged by."""

    gates: tuple[GateConfig, ...]
    slices: tuple[str, ...]
    min_slice_rows: int
    release_gates: tuple[GateConfig, ...]
    champion_loss: Bounds
