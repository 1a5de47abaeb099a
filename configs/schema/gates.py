"""The metrics in one table of names and needs, and the gates: metric, rows, baseline and confidence level.

The computations are in tasks/quality: row_metrics.py, label_metrics.py and vector_metrics.py.
"""

import enum
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, WithJsonSchema, field_validator, model_validator

from tasks.foundation.records import Record


class Family(enum.StrEnum):
    """Kinds of metric, by the data that they are computed from."""

    ranking = "ranking"  # the rank of each query's own item; other relevant items are ignored
    likelihood = "likelihood"  # the cross entropy of each query's own item among the same items
    classification = "classification"  # the class of each row
    label = "label"  # the value of each row in a head's column
    vectors = "vectors"  # a model's vectors of the corpus; one number for each model
    compatibility = "compatibility"  # the challenger's vectors next to the champion's; one number

    @property
    def of_rows(self) -> bool:
        """True: the number is computed row by row, so it exists for any choice of rows."""
        return self in (Family.ranking, Family.likelihood, Family.classification, Family.label)


class Metric(NamedTuple):
    """One metric of an evaluation. `head`: the section of `heads` without which it is not measured."""

    family: Family
    better: Literal["higher", "lower"] = "higher"
    head: Literal["contrastive", "classification", "multiclass", "regression"] | None = None

    @property
    def sign(self) -> Literal[1, -1]:
        """1 if higher is better, else -1: the better of two values has the larger product with it."""
        return 1 if self.better == "higher" else -1


METRICS = {
    "recall@1": Metric(Family.ranking),
    "recall@10": Metric(Family.ranking),
    "recall@100": Metric(Family.ranking),
    "mrr@10": Metric(Family.ranking),
    "ndcg@10": Metric(Family.ranking),
    "loss": Metric(Family.likelihood, better="lower", head="contrastive"),
    "accuracy": Metric(Family.classification, head="classification"),
    "macro_f1": Metric(Family.classification, head="classification"),
    "auc": Metric(Family.classification, head="classification"),
    "log_loss": Metric(Family.classification, better="lower", head="classification"),
    "calibration_error": Metric(Family.classification, better="lower", head="classification"),
    "multiclass_accuracy": Metric(Family.label, head="multiclass"),
    "multiclass_macro_f1": Metric(Family.label, head="multiclass"),
    "mae": Metric(Family.label, better="lower", head="regression"),
    "rmse": Metric(Family.label, better="lower", head="regression"),
    "pearson": Metric(Family.label, head="regression"),
    "effective_rank": Metric(Family.vectors),
    "mean_cosine": Metric(Family.vectors, better="lower"),
    "nan_share": Metric(Family.vectors, better="lower"),
    "duplicate_share": Metric(Family.vectors, better="lower"),
    "same_item_cosine": Metric(Family.compatibility),
    "neighbour_overlap@10": Metric(Family.compatibility),
}


def least_competitors(metric: str) -> int:
    """Return the fewest items that must compete with a row's own item; a row with fewer does not count.

    That is the k of a ranking metric, as in recall@k: among k items any model has the own one among the first k. The
    loss needs one.
    """
    family = METRICS[metric].family
    if family is Family.ranking:
        return int(metric.partition("@")[2] or 1)
    return 1 if family is Family.likelihood else 0


def names_of(family: Family) -> tuple[str, ...]:
    """Return the names of a family's metrics."""
    return tuple(name for name, metric in METRICS.items() if metric.family is family)


def _known(name: str) -> str:
    if name not in METRICS:
        raise ValueError(f"unknown metric; use one of {', '.join(METRICS)}")
    return name


MetricName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(METRICS)})]


Severity = Literal["critical", "warning"]
Baseline = Literal["none", "untrained", "champion", "previous", "first", "best"]

NEWEST, EACH = "newest", "each"  # spans that a gate may name apart from a span's own name


class GateConfig(Record):
    """One condition on a metric. With a baseline, the threshold limits the difference to it."""

    metric: MetricName = Field(description="metric that is judged, for example `recall@10`")
    direction: Literal["higher", "lower"] = Field(description="better values: `higher` or `lower`")
    threshold: float = Field(
        description="limit of the metric, or of its difference to the baseline: -0.005 allows a drop of 0.005"
    )
    baseline: Baseline = Field(
        description="model to compare with: `champion` is the current release; `none`: the number alone"
    )
    severity: Severity = Field(description="`critical`: a refusal stops the release; `warning`: it is reported")
    of: Literal["challenger", "champion"] = Field(
        default="challenger",
        description="model whose number is judged; `champion` on the newest span, which it has not seen, is the "
        "forward score",
    )
    relative: bool = Field(
        default=False, description="the threshold is a share of the baseline's value: -0.005 allows a loss of 0.5 %"
    )
    rows: Literal["holdout", "golden"] = Field(
        default="holdout", description="rows that are measured: the `holdout`, or the `golden` set of evaluate.golden"
    )
    queries: Literal["all", "seen", "unseen", "each"] = Field(
        default="all",
        description="holdout rows of `unseen` queries, of `seen` queries, of `all`; `each`: both parts must pass",
    )
    slice: str | None = Field(
        default=None,
        description="rows of one value, as in `locale=de`, or of each value of a column with "
        "evaluate.min_slice_rows rows, as in `locale`; null: all rows",
    )
    span: str | None = Field(
        default=None, description="rows of one span by name, of the `newest`, or of `each`; null: of all spans"
    )
    width: Annotated[int, Field(gt=0)] | None = Field(
        default=None,
        description="first N numbers of each vector, by ranking metrics only; null: all",
    )
    confidence: Annotated[float, Field(gt=0.5, lt=1)] | None = Field(
        default=None,
        description="one-sided confidence level, for example 0.95; null: the number alone decides, even of few rows",
    )
    min_rows: int = Field(default=0, ge=0, description="least number of rows; with fewer the answer is undecided")
    undecided: Literal["accept", "refuse", "ask"] = Field(
        default="accept",
        description="effect of an undecided critical gate: `accept` with a warning, `refuse`, or `ask` a person",
    )

    @property
    def of_rows(self) -> bool:
        """True: the metric is computed from rows, so a gate can choose rows; False: from all vectors of a model."""
        return METRICS[self.metric].family.of_rows

    @property
    def slice_column(self) -> str | None:
        return None if self.slice is None else self.slice.partition("=")[0]

    @property
    def slice_value(self) -> str | None:
        """The value of the column; None if each value is judged."""
        _, sign, value = (self.slice or "").partition("=")
        return value if sign else None

    @property
    def of_queries(self) -> str:
        """The queries in words, as in `unseen queries`; empty: all queries of the rows."""
        return {"all": "", "each": "unseen and seen queries apart"}.get(self.queries, f"{self.queries} queries")

    @property
    def narrowed(self) -> str:
        """The truncated width in words, as in `the first 64 numbers`; empty: the whole vectors."""
        return "" if self.width is None else f"the first {self.width} numbers"

    @field_validator("slice")
    @classmethod
    def _slice_has_a_column(cls, text: str | None) -> str | None:
        if text is not None and not text.partition("=")[0]:
            raise ValueError("name a column and a value, as in locale=de, or a column alone for each of its values")
        return text

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        if self.of == "champion" and self.baseline == "champion":
            raise ValueError(f"the gate on {self.metric} compares the champion with itself; name another baseline")
        if self.of == "champion" and METRICS[self.metric].family is Family.compatibility:
            raise ValueError(
                f"{self.metric} is of the challenger next to the champion, so its gate is not of a champion"
            )
        shares = METRICS[self.metric].family in (Family.ranking, Family.classification)
        if shares and abs(self.threshold) > 1:
            raise ValueError(
                f"the gate on {self.metric} has the threshold {self.threshold:g}, and the metric is from 0 to 1; write "
                "90 % as 0.9"
            )
        if self.relative and self.baseline == "none":
            raise ValueError(f"the gate on {self.metric} is relative, so it needs a baseline: relative to what?")
        if self.rows == "golden" and (self.slice is not None or self.span is not None or self.queries != "all"):
            raise ValueError(
                f"the gate on {self.metric}: rows of the golden set have neither slice nor span nor queries"
            )
        if self.width is not None and METRICS[self.metric].family is not Family.ranking:
            names = ", ".join(names_of(Family.ranking))
            raise ValueError(f"the gate on {self.metric}: only ranking metrics are measured by width: {names}")
        chosen = self.rows != "holdout" or self.queries != "all" or self.slice is not None or self.span is not None
        if not self.of_rows and (chosen or self.confidence is not None or self.min_rows):
            raise ValueError(
                f"{self.metric} is computed over all vectors at once: remove rows, queries, slice, span, confidence "
                "and min_rows from its gate"
            )
        return self
