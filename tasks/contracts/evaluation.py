"""Each model's measurements in an evaluation, the verdicts of the gates, and the usual number of rows of a span.

The results of each holdout row are in one Parquet file, `EvaluateOutcome.rows_key`. The workers write it; the gates
are judged from it, at once or later. Only this module names its columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from statistics import median
from typing import Literal

from pydantic import Field

from configs.schema.gates import METRICS, Family, GateConfig, Severity
from configs.schema.stages import Bounds
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record

# --- the row results --------------------------------------------------------------------------------------------

ROW_ID = "row_id"  # string, as in the rows of the span
SPAN = "span"  # string: the row's span; GOLDEN for a row of the golden set
QUERY_KEY = "query_key"  # int64: a hash of the normalised query
UNSEEN = "unseen"  # bool: all rows of the query are held out, in every span; false in the golden set
QUERY_TRAINED = "query_trained"  # bool: the query occurs in a training row of the run or of a span before it
GROUP = "group"  # int64: equal for rows of one user, else of one query, which hang together
ITEM_ID = "item_id"  # string
PAIR = "pair"  # bool: the row counts for the ranking metrics
LABEL_CLASS = "label_class"  # int8: 0, 1, or -1 without a class
COMPETITORS = "competitors"  # int32: items of the corpus among which the own item is ranked, without it
WHOLE_COMPETITORS = "competitors.whole"  # int32: the same of the whole catalogue, if the corpus is only a part of it
LABEL = "label."  # prefix of a column with the true label for a head, float64: label.multiclass; NaN: not known

GOLDEN = "(golden)"

COLUMN = "column."  # prefix of a column of the source, as in column.locale


class Role(StrEnum):
    """The role of a model in an evaluation. One model may have several."""

    challenger = "challenger"
    champion = "champion"  # the current release
    previous = "previous"  # the newest release of another model that was current before the champion
    untrained = "untrained"  # the lineage's initial weights
    first = "first"  # the first release
    best = "best"  # the best release so far, by the sum of the measured differences from release to release


def rank_of(role: Role) -> str:
    """Return the column with the rank of the row's own item in the corpus that all models share, int32 from 1.

    Other relevant items are ignored.
    """
    return f"{role}.rank"


def whole_rank_of(role: Role) -> str:
    """Return the column with the rank in the whole catalogue, int32; it exists if the corpus is only a part of it."""
    return f"{role}.whole"


def shared_rank_of(role: Role, baseline: Role) -> str:
    """Return the column with the rank among the items that challenger and baseline both hold, int32.

    Both roles have it for each baseline with released vectors, if the corpus is only a part of the catalogue.
    """
    return f"{role}.shared.{baseline}"


def shared_competitors_of(baseline: Role) -> str:
    """Return the column with the competitors of the row's own item among the items that both hold, int32."""
    return f"{COMPETITORS}.shared.{baseline}"


def narrow_rank_of(role: Role, width: int) -> str:
    """Return the column with the rank by vectors truncated to `width` dimensions and normalised again, int32.

    It exists for the widths in heads.contrastive.matryoshka and in gates that are below the model's own width.
    """
    return f"{rank_of(role)}.{width}"


def held_of(role: Role) -> str:
    """Return the bool column that is true if the role's release holds the row's item; only the champion has it."""
    return f"{role}.held"


def loss_of(role: Role) -> str:
    """Return the column with the cross entropy of the row's own item among the corpus, float32, in nats."""
    return f"{role}.loss"


def probability_of(role: Role) -> str:
    """Return the column with the probability of class 1, float32; it exists if the model has the head."""
    return f"{role}.probability"


def predicted_of(role: Role) -> str:
    """Return the column with the predicted class, int8; it exists if the model has the head."""
    return f"{role}.predicted"


def says_of(role: Role, head: str) -> str:
    """Return the column with a label head's predictions, float32: the number of a class, or a value."""
    return f"{role}.says.{head}"


MAIN = "recall@10"  # shown where a page, chart or line has room for one metric


def main_metric(measured: Iterable[str]) -> str | None:
    """Return MAIN if it was measured, else the first ranking metric, else the first metric; None for none."""
    names = list(measured)
    ranked = [name for name in names if METRICS[name].family is Family.ranking]
    return MAIN if MAIN in names else next(iter(ranked or names), None)


# --- results over all rows --------------------------------------------------------------------------------------


class Measurement(Record):
    """One model's metrics in an evaluation. Its results of each row are in the file of row results."""

    role: Role
    version: str
    release: int | None = Field(description="null for the challenger and the untrained model")
    metrics: dict[str, float] = Field(description="over all holdout rows, without the golden set")
    vectors: dict[str, float] = Field(description="metrics of its vectors of the corpus, for example effective_rank")
    recall_by_width: dict[int, float] = Field(
        default={},
        description="recall@10 over all holdout rows by truncated vectors, by width",
    )


Queries = Literal["unseen", "seen"]


class PartMetrics(Record):
    """A model's metrics on the holdout rows of unseen, or of seen, queries."""

    rows: int = Field(description="rows that are pairs, over which ranking metrics are")
    metrics: dict[str, float]
    low: float | None = Field(description="lower bound of recall@10; null: no rows")
    high: float | None = Field(description="upper bound of recall@10; both together with 95 % confidence")

    @property
    def main(self) -> float | None:
        return self.metrics.get(MAIN)


class ByQueries(Record):
    """A model's metrics on the holdout, apart for unseen queries (none of their rows is trained on) and seen ones."""

    unseen: PartMetrics
    seen: PartMetrics = Field(description="rows that are held out although other rows of their query may be trained on")
    seen_trained: float | None = Field(
        description="share of the seen rows whose query does occur in a training row; null: no seen rows"
    )

    @property
    def parts(self) -> dict[Queries, PartMetrics]:
        return {"unseen": self.unseen, "seen": self.seen}


class SpanMetrics(Record):
    """The metrics of each model on the holdout rows of one span."""

    span: str
    rows: int = Field(description="rows that are pairs, over which ranking metrics are; without a pair all rows")
    metrics: dict[Role, dict[str, float]]


class SliceMetrics(Record):
    column: str
    value: str = Field(description="value of the column")
    rows: int
    metrics: dict[str, float] = Field(description="metrics of the challenger")
    champion: dict[str, float] | None = Field(
        default=None, description="metrics of the champion; null: none, or not measured"
    )


class ForwardNumbers(Record):
    """The values of one metric by the champion and other models, on some holdout rows of a span."""

    rows: int = Field(description="rows that are pairs")
    value: float = Field(description="value of the release's model")
    previous_value: float | None = Field(description="value of the previous release's model")
    low: float | None = Field(description="lower bound of value - previous_value; null: not known")
    high: float | None = Field(description="upper bound of value - previous_value; both together with 95 % confidence")
    untrained: float | None = Field(description="value of the lineage's initial weights")
    challenger: float | None = Field(description="value of the model that was then trained on the span")


class ForwardScore(ForwardNumbers):
    """The champion's worth on the next span's holdout rows, before it is trained on: on all rows, and by queries."""

    release: int = Field(description="number of the release that first had the model")
    span: str = Field(description="next span, which the model has not seen")
    metric: str
    previous: int | None = Field(
        description="number of the previous release; null: none, or not measured, or it has seen the span"
    )
    unseen: ForwardNumbers | None = Field(default=None, description="over unseen queries alone; null: no such row")
    seen: ForwardNumbers | None = Field(default=None, description="over seen queries alone; null: no such row")

    @property
    def parts(self) -> dict[Queries, ForwardNumbers]:
        """The parts that have rows, unseen queries first."""
        found: dict[Queries, ForwardNumbers | None] = {"unseen": self.unseen, "seen": self.seen}
        return {name: numbers for name, numbers in found.items() if numbers is not None}


Answer = Literal["pass", "fail", "undecided"]


class Verdict(Record):
    """One gate's judgement of all rows, or of one slice or span, with its numbers."""

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
    shared: float | None = Field(
        default=None,
        description="share of the catalogue's items that both models hold, among which they were compared; null: "
        "among the same corpus",
    )
    rows: int | None = Field(default=None, description="rows that the metric is computed over")
    groups: int | None = Field(default=None, description="groups of rows that hang together: of one query, or one user")
    commonest_group: float | None = Field(default=None, description="share of the rows in the largest of the groups")
    commonest_item: float | None = Field(default=None, description="share of the rows about the commonest item")
    threshold: float | None = Field(default=None, description="limit of the value, or of the difference")
    difference: float | None = Field(default=None, description="value minus baseline")
    low: float | None = Field(default=None, description="lower bound of the value or difference, at `confidence`")
    high: float | None = Field(default=None, description="upper bound of the value or difference, at `confidence`")
    standard_error: float | None = Field(default=None, description="standard error of the value or difference")
    degrees: float | None = Field(default=None, description="degrees of freedom of the standard error")
    confidence: float | None = Field(
        default=None, description="one-sided confidence level; null: the number alone decided"
    )
    rows_needed: int | None = Field(default=None, description="rows that would decide an undecided gate, about")
    undecided_refuses: bool = Field(
        default=False,
        description="true: a critical gate refuses if it is undecided, by its setting, or since too few items are "
        "common or compete",
    )
    undecided_asks: bool = Field(default=False, description="true: a critical gate asks a person if it is undecided")

    @property
    def judges(self) -> str:
        """The metric, with the model unless that is the challenger, and with the part of the rows."""
        whose = "" if self.of == "challenger" else self.of
        return ", ".join(filter(None, (self.metric, whose, self.where)))

    @property
    def passed(self) -> bool | None:
        """True if the gate passed, False if it failed; None if it does not apply or is undecided."""
        return {"pass": True, "fail": False}.get(self.answer or "")

    @property
    def refuses(self) -> bool:
        """True if the gate stops the release."""
        refused = self.answer == "fail" or (self.answer == "undecided" and self.undecided_refuses)
        return refused and self.severity == "critical"

    @property
    def asks(self) -> bool:
        """True if a person should answer in place of the gate."""
        return self.answer == "undecided" and self.undecided_asks and self.severity == "critical"


def refused(verdicts: Sequence[Verdict]) -> bool:
    """Return True if a critical gate refuses. Warnings, and gates that do not apply, never do."""
    return any(verdict.refuses for verdict in verdicts)


def refusals(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the sentences of the gates that refused."""
    return tuple(verdict.sentence for verdict in verdicts if verdict.refuses)


def undecided(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Return the sentences of the undecided critical gates."""
    unsure = (verdict for verdict in verdicts if verdict.answer == "undecided")
    return tuple(verdict.sentence for verdict in unsure if verdict.severity == "critical")


class Question(Record):
    """A question to a person, about a model that undecided gates ask about. Times are ISO 8601 in UTC."""

    at: str = Field(description="time of the question")
    until: str = Field(description="time after which the model is rejected")
    flow_run: str = Field(description="id of the Prefect flow run that waits")
    page: str = Field(description="address of its page, with the form; empty: not known")


DecisionAnswer = Literal["accept", "reject", "hold"]


class Decision(Record):
    """A person's answer to a question."""

    answer: DecisionAnswer = Field(description="accept, reject, or hold: release it, and hold what serves")
    name: str = Field(description="person who answered; `nobody`: the time was over")
    reason: str
    at: str = Field(description="time in UTC, ISO 8601")
    about: tuple[str, ...] = Field(description="sentences of the undecided gates")


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
    min_shared: float
    champion_loss: Bounds
    label_loss: Bounds


USUAL_SPANS = 8  # the usual number of rows is the median of the newest 8 spans
ENOUGH_SPANS = 2  # earlier spans without which no number is usual


class FewRows(Record):
    """A span with far fewer rows than are usual."""

    span: str = Field(description="name of the span")
    rows: int = Field(description="its rows")
    usual: float = Field(description="median rows of the eight spans before it")

    @property
    def sentence(self) -> str:
        """The fact in one sentence without an end."""
        return (
            f"{self.span} has {plural(self.rows, 'row')}, {self.rows / self.usual:.1%} of the usual {self.usual:,.0f}"
        )


def usual_rows(earlier: Sequence[int]) -> float | None:
    """Return the usual number of rows after spans with these numbers, oldest first; None: too few spans, or no rows."""
    usual = median(earlier[-USUAL_SPANS:]) if len(earlier) >= ENOUGH_SPANS else None
    return usual or None


def few_rows(rows: Mapping[str, int], most_missing: float | None) -> list[FewRows]:
    """Return the spans that lack more of the usual rows than a share; none without a share.

    Args:
        rows: rows by span, oldest first.
        most_missing: `validate.before.missing.warn`.
    """
    numbers = [*rows.values()]
    found = []
    for place, (span, count) in enumerate(rows.items()):
        usual = usual_rows(numbers[:place])
        if usual is not None and most_missing is not None and 1 - count / usual > most_missing:
            found.append(FewRows(span=span, rows=count, usual=usual))
    return found
