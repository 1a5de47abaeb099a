"""The gates: the metric to judge, its rows, its baseline, and the confidence level."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from configs.schema.metrics import METRICS, Family, MetricName, names_of
from tasks.foundation.records import Record

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
        description="model to compare with: the `champion` (the current release), the release `previous` to it, "
        "the `first` or the `best` release, the `untrained` model; `none`: the number itself is "
        "compared"
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
        description="holdout rows of `unseen` queries, which no training row has, of `seen` queries, of `all`; `each`: "
        "both parts are judged apart, and both must pass",
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
        description="evaluate on the first N numbers of each vector (Matryoshka), ranking metrics only; null: on all",
    )
    confidence: Annotated[float, Field(gt=0.5, lt=1)] | None = Field(
        default=None,
        description="one-sided confidence level, for example 0.95; null: the number alone decides, even of few rows",
    )
    min_rows: int = Field(default=0, ge=0, description="least number of rows; with fewer the answer is undecided")
    undecided: Literal["accept", "refuse"] = Field(
        default="accept", description="effect of an undecided critical gate: `accept` with a warning, or `refuse`"
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
