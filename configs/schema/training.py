"""The configuration of the heads and of training: every key, its meaning, unit and bounds."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from configs.schema.compute import Positive
from configs.schema.retention import AveragingConfig, DecayConfig, KeepBestConfig
from configs.schema.stages import WorkersConfig
from configs.schema.train.checkpoints import Every, with_interval
from configs.schema.train.label_heads import LabelHead, MulticlassHead, RegressionHead
from tasks.foundation.records import Record

LARGEST_SCALE = 100.0  # of a scale that is learnt: with a larger one, training is known to become unstable


class NegativesConfig(Record):
    """Hard negatives: items that the released model finds near a query, as extra items of each batch.

    They are mined from the vectors of the current release; a lineage without one has none yet.
    """

    per_query: Positive = Field(description="items for each pair, so many more items are embedded at each step")
    max_share: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="only items that score below this share of the pair's own item, since nearer ones are often right",
    )


class ContrastiveHead(Record):
    """In-batch negatives: each query against all items of the global batch."""

    weight: float = Field(ge=0)
    scale: float = Field(gt=0, description="inverse temperature of the softmax over cosine similarities")
    positives_only: bool = Field(description="only rows of the positive class are pairs")
    # The others have defaults, since configurations of earlier runs lack them.
    symmetric: bool = Field(
        default=False, description="the mean of two losses: each query finds its item, and each item its query"
    )
    temperature: Literal["fixed", "learnt"] = Field(
        default="fixed", description="learnt: the scale is a weight of the model, which begins at `scale`"
    )
    negatives: NegativesConfig | None = Field(default=None, description="null: the other items of the batch alone")
    logq: bool = Field(
        default=False,
        description="other items of the batch count as if all were drawn equally often: popular ones less, rare ones "
        "more, by their share of the run's rows; hard negatives count as they are",
    )
    matryoshka: tuple[Positive, ...] = Field(
        default=(),
        description="widths below the embedding's, narrowest first: the first so many numbers of each vector, "
        "normalised again, are trained as well (arXiv:2205.13147)",
    )

    @model_validator(mode="after")
    def _scale_can_be_learnt(self) -> Self:
        if self.temperature == "learnt" and not 1 < self.scale < LARGEST_SCALE:
            raise ValueError(
                f"heads.contrastive.scale {self.scale:g} is where a learnt scale begins, which is between 1 and "
                f"{LARGEST_SCALE:g}; choose one between, or temperature: fixed"
            )
        return self

    @model_validator(mode="after")
    def _widths_grow(self) -> Self:
        if list(self.matryoshka) != sorted(set(self.matryoshka)):
            raise ValueError(f"the widths of heads.contrastive.matryoshka must grow, got {list(self.matryoshka)}")
        return self


class ClassificationHead(Record):
    """Two classes from the label: at most `negative_max` is 0, at least `positive_min` is 1, between is unlabelled."""

    weight: float = Field(ge=0)
    input: Literal["query", "pair"] = Field(description="judge the query alone, or query and item together")
    negative_max: float
    positive_min: float
    # Configurations of earlier runs lack the keys below.
    loss: Literal["plain", "balanced", "focal"] = Field(
        default="plain",
        description="plain: cross entropy; balanced: rows count by the inverse of their class's share; focal: rows "
        "that are judged right already count little",
    )
    learning_rate_factor: float = Field(
        default=1.0, gt=0, description="the head's own rate is train.learning_rate times this; an encoder's is too low"
    )
    refit_rows: Positive | None = Field(
        default=None,
        description="after the last step the head is solved on so many of the newest training rows with a class, "
        "calibrated, and gets a threshold; null: it stays as the steps left it",
    )

    @model_validator(mode="after")
    def _classes_apart(self) -> Self:
        if self.negative_max >= self.positive_min:
            raise ValueError("heads.classification.negative_max must be below positive_min")
        return self


class HeadsConfig(Record):
    """What the embedding is trained for; one head or several."""

    contrastive: ContrastiveHead | None
    classification: ClassificationHead | None
    # Configurations of earlier runs lack the heads below.
    multiclass: MulticlassHead | None = None
    regression: RegressionHead | None = None

    @model_validator(mode="after")
    def _some_head(self) -> Self:
        heads = list(type(self).model_fields)
        if all(getattr(self, head) is None for head in heads):
            raise ValueError(f"give at least one of {', '.join(f'heads.{head}' for head in heads)}")
        if self.contrastive and self.contrastive.positives_only and self.classification is None:
            raise ValueError("heads.contrastive.positives_only needs heads.classification to say what is positive")
        return self

    @property
    def of_labels(self) -> dict[str, LabelHead]:
        """The heads that learn one value of each row from a column, by name, in the order of their fields."""
        heads = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: head for name, head in heads.items() if isinstance(head, LabelHead)}

    @property
    def learnt_scale(self) -> float | None:
        """Where the model's own scale of the contrastive softmax begins; None: it has none."""
        head = self.contrastive
        return head.scale if head is not None and head.temperature == "learnt" else None

    @property
    def matryoshka(self) -> tuple[int, ...]:
        """The widths that are trained besides the whole embedding's."""
        return self.contrastive.matryoshka if self.contrastive else ()

    def check_widths(self, width: int) -> None:
        """Check the Matryoshka widths. Raises ValueError: one is not below `width`, the embedding's."""
        if self.matryoshka and self.matryoshka[-1] >= width:
            raise ValueError(
                f"heads.contrastive.matryoshka has {self.matryoshka[-1]}, and the embedding is {width} wide; name "
                "narrower widths, the whole embedding is always trained"
            )


class TokenLimits(Record):
    """Where training cuts texts, in tokens."""

    query: Positive
    item: Positive


class TrainConfig(WorkersConfig):
    """The optimisation; everything that is counted in steps counts global steps along the lineage."""

    batch_rows: Positive = Field(description="rows of the global batch")
    max_tokens: TokenLimits
    sequence_tokens: Positive = Field(description="the texts of a batch are packed into sequences of so many tokens")
    sequences: Positive | None = Field(
        description="of the global batch; null: as many as the first rows of the run need. A number keeps the compiled "
        "graphs from span to span; a text that finds no room loses its last tokens"
    )
    chunks: Positive = Field(
        default=1,  # configurations of earlier runs lack it
        description="parts in which the sequences of a worker's batch are encoded, twice each: a large batch then "
        "needs the memory of one part, and about a third more time",
    )
    homogeneous: str | None = Field(
        default=None,
        description="features.entity or one of features.categorical, such as a locale: batches have rows of one of its "
        "values where that is possible, so that negatives differ in more than it",
    )
    row_weight: str | None = Field(
        default=None,
        min_length=1,
        description="a column that says what each row counts in all losses, a number from 0 on; only the proportions "
        "matter, since weights are divided by the mean over the run; null: all rows count the same",
    )
    epochs: Positive = Field(description="passes over the rows of one run")
    learning_rate: float = Field(gt=0, description="the peak, reached after warmup_steps")
    warmup_steps: int = Field(ge=0)
    decay_steps: Positive = Field(description="steps after warmup until the rate has fallen to 1/sqrt(2) of the peak")
    learning_rate_floor: float = Field(
        ge=0, le=1, description="the part of the peak that the rate never falls below, however old the lineage is"
    )
    weight_decay: float = Field(ge=0)
    max_gradient_norm: float = Field(gt=0)
    precision: Literal["auto", "bf16", "bf16-weights", "fp32"] = Field(
        description="bf16: the whole encoder computes in it, what lies between its products too; weights, pooling, "
        "heads and losses stay fp32; bf16-weights: the encoder's weights are bf16 too, rounded stochastically; auto: "
        "bf16 where the device is fast at it, else fp32"
    )
    after_rejection: Literal["accepted", "challenger"] = Field(
        default="accepted",  # configurations of earlier runs lack it
        description="what the next span is trained from: the last accepted checkpoint, with the rejected spans in its "
        "window, or the rejected challenger's",
    )
    # Configurations of earlier runs lack the next four.
    replay: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of a run's pairs that come from the spans before, by a stable hash; 0: none",
    )
    averaging: AveragingConfig | None = Field(default=None, description="null: the last weights are released")
    keep_best: KeepBestConfig | None = Field(default=None, description="null: the last step is kept")
    decay_before_release: DecayConfig | None = Field(default=None, description="null: the schedule alone")
    on_new_graph: Literal["fail", "warn"] = Field(description="what a graph that warmup has not compiled does")
    evaluate_every_steps: Positive
    evaluate_rows: Positive = Field(description="holdout rows that the in-loop evaluation looks at, at most")
    checkpoint_every: Every = Field(
        description="when a checkpoint to go on from is written: `50 steps`; `300 seconds`, at the next step whose "
        "losses are read; or `auto`, as often as pays off by the measured write time and the failures on record"
    )
    log_every_steps: Positive
    hang_seconds: Positive = Field(description="without a step for so long an attempt is ended; longer than any step")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch_rows % self.workers:
            raise ValueError(f"train.batch_rows {self.batch_rows} must be a multiple of train.workers {self.workers}")
        if self.sequences is not None and self.sequences % (self.workers * self.chunks):
            times = f"train.workers {self.workers}" + (f" times train.chunks {self.chunks}" if self.chunks > 1 else "")
            raise ValueError(f"train.sequences {self.sequences} must be a multiple of {times}")
        longest = max(self.max_tokens.query, self.max_tokens.item)
        if longest > self.sequence_tokens:
            raise ValueError(
                f"train.max_tokens {longest} is longer than train.sequence_tokens {self.sequence_tokens}: a text "
                "is packed into one sequence"
            )
        return self

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_run(cls, values: Any) -> Any:
        """Read the configuration of an earlier run: a ladder of padded shapes, checkpoints counted in steps alone."""
        values = with_interval(values)
        if isinstance(values, dict) and "shapes" in values and "max_tokens" not in values:
            shapes = values["shapes"]
            limits = {side: shapes[side][-1] for side in ("query", "item")}
            rest = {key: value for key, value in values.items() if key != "shapes"}
            return rest | {"max_tokens": limits, "sequence_tokens": max(limits.values()), "sequences": None}
        return values

    @model_validator(mode="after")
    def _decays_before_it_ends(self) -> Self:
        if self.decay_before_release and self.keep_best and self.keep_best.patience:
            raise ValueError(
                "train.keep_best.patience may end a run before train.decay_before_release has begun; "
                "set patience to null, or decay_before_release"
            )
        return self
