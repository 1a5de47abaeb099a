"""The configuration of the heads and of training, with its checkpoints and its means against forgetting.

Every key has its meaning, unit and bounds. The learning rate follows from them over the global steps of a lineage: a
schedule without an end, and a decay at the end of a run.
"""

import math
import re
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, field_validator, model_validator

from configs.schema.compute import Positive
from configs.schema.gates import Family, MetricName, names_of
from configs.schema.model import LabelHead, MulticlassHead, RegressionHead
from configs.schema.stages import WorkersConfig
from tasks.foundation.records import Record, beside

MEASURED_IN_THE_LOOP = tuple(
    name for family in (Family.ranking, Family.classification, Family.label) for name in names_of(family)
)

Inside = Annotated[float, Field(gt=0.0, lt=1.0)]


class AveragingConfig(Record):
    """The averaged weights that are evaluated and released: an EMA, or a mean with the parent."""

    ema_half_life_steps: float | None = Field(
        default=None,
        gt=0,
        description="half-life of the moving average of the weights (EMA), in steps along the lineage",
    )
    merge_with_parent: Inside | None = Field(
        default=None,
        description=(
            "share of the parent's weights in the mean that is released, and that the next run continues from"
        ),
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.ema_half_life_steps is None) is (self.merge_with_parent is None):
            raise ValueError(
                "train.averaging takes one of ema_half_life_steps and merge_with_parent; null averages nothing"
            )
        return self


class KeepBestConfig(Record):
    """Early stopping: a run keeps the weights of its best step on development rows, split off the training rows."""

    metric: MetricName = Field(description="metric that chooses the best step; of ranking, classes or labels")
    rows: Positive = Field(
        description="development rows, split off the run's rows and not trained on; a tenth of them at most"
    )
    patience: Positive | None = Field(
        description="number of evaluations without a gain after which the run ends; null: never"
    )

    @field_validator("metric")
    @classmethod
    def _measured_in_the_loop(cls, metric: str) -> str:
        if metric not in MEASURED_IN_THE_LOOP:
            raise ValueError(f"train.keep_best: {metric} is not measured in training; use one of {_NAMES}")
        return metric


class DecayConfig(Record):
    """Linear learning-rate decay at the end of a run; the next run resumes the schedule."""

    share: Annotated[float, Field(gt=0.0, le=1.0)] = Field(
        description="share of the run's steps in which the rate falls linearly"
    )
    floor: Inside = Field(description="rate of the last step, as a share of the schedule's")


_NAMES = ", ".join(MEASURED_IN_THE_LOOP)


AUTO = "auto"

_INTERVAL = re.compile(r"[1-9][0-9]* (steps|seconds)")


def _checked(every: Any) -> Any:
    if every != AUTO and not (isinstance(every, str) and _INTERVAL.fullmatch(every)):
        raise ValueError(f"write it as '50 steps', '300 seconds' or '{AUTO}'")
    return every


_AS_TEXT = {"type": "string", "pattern": rf"^({_INTERVAL.pattern}|{AUTO})$"}
Every = Annotated[str, BeforeValidator(_checked), WithJsonSchema(_AS_TEXT)]


class Interval(NamedTuple):
    """A number of steps or seconds."""

    number: int
    unit: Literal["steps", "seconds"]


def interval_of(every: str) -> Interval | None:
    """Return the interval of `50 steps` or `300 seconds`; None for `auto`."""
    if every == AUTO:
        return None
    number, _, unit = every.partition(" ")
    return Interval(int(number), "steps" if unit == "steps" else "seconds")


LARGEST_SCALE = 100.0  # larger learnt scales are known to make training unstable


class NegativesConfig(Record):
    """Hard negatives: items near a query by the current release's vectors, as extra items of each batch.

    A lineage without a release has none yet.
    """

    per_query: Positive = Field(description="hard negatives of each pair")
    max_share: float = Field(
        default=0.95,
        gt=0,
        le=1,
        description="greatest score of a hard negative, as a share of the own item's score",
    )


class ContrastiveHead(Record):
    """In-batch negatives: each query against all items of the global batch."""

    weight: float = Field(ge=0, description="weight of its loss in the sum of all heads")
    scale: float = Field(gt=0, description="inverse temperature of the softmax over cosine similarities")
    positives_only: bool = Field(description="pairs: rows of the positive class only")
    symmetric: bool = Field(default=False, description="true: each item finds its query, too")
    temperature: Literal["fixed", "learnt"] = Field(
        default="fixed", description="`fixed`, or `learnt`, beginning at `scale`"
    )
    negatives: NegativesConfig | None = Field(
        default=None,
        description="hard negatives, found in the current release; null: the other items of the batch alone",
    )
    logq: bool = Field(
        default=False,
        description="correction of in-batch negatives by their frequency (logQ): popular items count less",
    )
    matryoshka: tuple[Positive, ...] = Field(
        default=(),
        description="narrower widths that are trained as well, narrowest first, as in [64, 128] (arXiv:2205.13147)",
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
    """Two classes from the label: 0 up to `negative_max`, 1 from `positive_min`; labels between are not used."""

    weight: float = Field(ge=0, description="weight of its loss in the sum of all heads")
    input: Literal["query", "pair"] = Field(description="`query` alone, or the `pair` of query and item")
    negative_max: float = Field(description="greatest label of class 0; labels between the classes are not used")
    positive_min: float = Field(description="smallest label of class 1")
    loss: Literal["plain", "balanced", "focal"] = Field(
        default="plain",
        description="`plain` cross entropy; `balanced`: rows weigh by the inverse share of their class; `focal`: "
        "correctly classified rows weigh little",
    )
    learning_rate_factor: float = Field(
        default=1.0,
        gt=0,
        description="factor of train.learning_rate for the head alone",
    )
    refit_rows: Positive | None = Field(
        default=None,
        description=(
            "number of newest training rows with a class on which the head is solved after the last step; null: it "
            "stays as trained"
        ),
    )

    @model_validator(mode="after")
    def _classes_apart(self) -> Self:
        if self.negative_max >= self.positive_min:
            raise ValueError("heads.classification.negative_max must be below positive_min")
        return self


class HeadsConfig(Record):
    """The embedding's training tasks: one head or several."""

    contrastive: ContrastiveHead | None = Field(
        description="retrieval: each query finds its own item among the items of a batch; null: not trained"
    )
    classification: ClassificationHead | None = Field(description="two classes by bounds of the label; null: none")
    multiclass: MulticlassHead | None = Field(
        default=None, description="one of several classes, by a column; null: none"
    )
    regression: RegressionHead | None = Field(
        default=None, description="number between two bounds, by a column, such as a relevance; null: none"
    )

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
    def reads_labels(self) -> bool:
        """True if a head learns from the labels of rows."""
        return self.classification is not None or any(head.column == "label" for head in self.of_labels.values())

    @property
    def learnt_scale(self) -> float | None:
        """The initial value of the learnt scale of the contrastive softmax; None: the scale is fixed."""
        head = self.contrastive
        return head.scale if head is not None and head.temperature == "learnt" else None

    @property
    def matryoshka(self) -> tuple[int, ...]:
        """The truncated widths that are also trained."""
        return self.contrastive.matryoshka if self.contrastive else ()

    def check_widths(self, width: int) -> None:
        """Check the Matryoshka widths. Raises ValueError: one is not below `width`, the embedding's."""
        if self.matryoshka and self.matryoshka[-1] >= width:
            raise ValueError(
                f"heads.contrastive.matryoshka has {self.matryoshka[-1]}, and the embedding is {width} wide; name "
                "narrower widths, the whole embedding is always trained"
            )


class TokenLimits(Record):
    """The longest texts of training, in tokens; longer ones are cut."""

    query: Positive = Field(description="longest query, in tokens")
    item: Positive = Field(description="longest item, in tokens")


class TrainConfig(WorkersConfig):
    """The optimisation. Steps are global steps along the lineage."""

    batch_rows: Positive = Field(description="rows of the global batch")
    max_tokens: TokenLimits = Field(description="longest texts in training; longer ones are cut")
    sequence_tokens: Positive = Field(description="length of the sequences that texts are packed into, in tokens")
    sequences: Positive | None = Field(
        description=(
            "sequences of the global batch; null: as many as the first rows of the run need. A text without room is cut"
        )
    )
    gradcache_chunks: Positive = Field(
        description="parts of a worker's batch for GradCache: the memory of one part, for about a third more time",
    )
    batch_by: str | None = Field(
        default=None,
        description=(
            "column of features.categorical, or features.entity: batches have rows of one of its values if possible"
        ),
    )
    row_weight: str | None = Field(
        min_length=1,
        description="column with the weight of a row in all losses, at least 0; null: all weigh the same",
    )
    epochs: Positive = Field(description="passes over the rows of one run")
    sides: Literal["both", "queries"] = Field(
        default="both",
        description=(
            "`both`, or `queries` alone: they are trained to find the item vectors of the current release, which stay, "
            "so that no item is embedded again"
        ),
    )
    learning_rate: float = Field(gt=0, description="peak of the learning rate, reached after warmup_steps")
    warmup_steps: int = Field(ge=0, description="steps in which a lineage's rate rises to its peak")
    decay_steps: Positive = Field(
        description="steps after the warmup until the rate has fallen to 1/sqrt(2) of the peak"
    )
    learning_rate_floor: float = Field(
        ge=0, le=1, description="lowest rate, as a share of the peak, however old the lineage is"
    )
    weight_decay: float = Field(ge=0, description="weight decay of AdamW")
    max_gradient_norm: float = Field(gt=0, description="norm that gradients are clipped to")
    precision: Literal["auto", "bf16", "bf16-weights", "fp32"] = Field(
        description=(
            "arithmetic of training. `bf16`: of the encoder. `bf16-weights`: the encoder's weights too, rounded "
            "stochastically. `auto`: bf16 if the device is fast at it, else `fp32`"
        )
    )
    after_rejection: Literal["accepted", "challenger"] = beside(
        description=(
            "checkpoint that continues after a rejection: the last `accepted` one, with the rejected spans again, or "
            "the `challenger`"
        ),
    )
    replay: float = Field(
        ge=0,
        lt=1,
        description="share of a run's pairs that come from earlier spans, by a stable hash",
    )
    averaging: AveragingConfig | None = Field(
        default=None,
        description="moving average of the weights, or a mean with the parent; null: the last step's",
    )
    keep_best: KeepBestConfig | None = Field(
        default=None,
        description="early stopping at the best development metric; null: the last step",
    )
    decay_before_release: DecayConfig | None = Field(
        default=None,
        description="decay of the rate at the end of each run; null: the schedule alone",
    )
    on_new_graph: Literal["fail", "warn"] = Field(
        description="reaction to a graph that warmup has not compiled: `fail` or `warn`"
    )
    evaluate_every_steps: Positive = Field(description="steps between two evaluations within the training")
    evaluate_rows: Positive = Field(description="most holdout rows of an evaluation within the training")
    checkpoint_every: Every = beside(description="interval of checkpoints: `50 steps`, `300 seconds`, or `auto`")
    log_every_steps: Positive = beside(description="steps between two lines of the log")
    watchdog_seconds: Positive = beside(
        description="watchdog: seconds without a step after which an attempt ends as HANG"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch_rows % self.workers:
            raise ValueError(f"train.batch_rows {self.batch_rows} must be a multiple of train.workers {self.workers}")
        if self.sequences is not None and self.sequences % (self.workers * self.gradcache_chunks):
            times = f"train.workers {self.workers}" + (
                f" times train.gradcache_chunks {self.gradcache_chunks}" if self.gradcache_chunks > 1 else ""
            )
            raise ValueError(f"train.sequences {self.sequences} must be a multiple of {times}")
        longest = max(self.max_tokens.query, self.max_tokens.item)
        if longest > self.sequence_tokens:
            raise ValueError(
                f"train.max_tokens {longest} is longer than train.sequence_tokens {self.sequence_tokens}: a text "
                "is packed into one sequence"
            )
        return self

    @model_validator(mode="after")
    def _decays_before_it_ends(self) -> Self:
        if self.decay_before_release and self.keep_best and self.keep_best.patience:
            raise ValueError(
                "train.keep_best.patience may end a run before train.decay_before_release has begun; "
                "set patience to null, or decay_before_release"
            )
        return self


def learning_rate(step: int, config: TrainConfig) -> float:
    """Return the rate of global step `step` (from 0): linear warmup, then peak / sqrt(1 + steps since / decay_steps).

    The inverse square root has no end, like incremental training; a schedule with a last step would restart with each
    span. The rate stays at or above `learning_rate_floor` times the peak, so that a lineage still learns after years.
    """
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    left = (1 + (step - config.warmup_steps) / config.decay_steps) ** -0.5
    return config.learning_rate * max(left, config.learning_rate_floor)


def decay_factor(step: int, steps: range, settings: DecayConfig | None) -> float:
    """Return the factor of the learning rate at global step `step` for the decay at the end of a run.

    It falls linearly from 1 to `floor` at the last of the run's `steps`. The next run resumes the schedule from the
    decayed weights (Wen et al. 2024, arXiv:2410.05192, WSD-S).
    """
    if settings is None or not steps:
        return 1.0
    decaying = math.ceil(settings.share * len(steps))
    done = step - (steps.stop - decaying) + 1
    return 1.0 - (1.0 - settings.floor) * max(0, done) / decaying


def rate_in_run(step: int, steps: range, config: TrainConfig) -> float:
    """Return the learning rate of global step `step` of a run over `steps`, for groups with no factor of their own."""
    return learning_rate(step, config) * decay_factor(step, steps, config.decay_before_release)
