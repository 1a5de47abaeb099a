"""The typed configuration: every key, its meaning, unit and bounds. Defaults live in base.yaml, not here.

A resolved configuration is one `Config`; it is hashed into the run key and saved beside every output. What is about
the place and not about the model is in place_schema.py; what is about running it for a year, in operations_schema.py.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from configs.operations_schema import FreshnessConfig, LinksConfig, ScheduleConfig
from configs.place_schema import (
    BatchConfig,
    CompilerConfig,
    Compute,
    CostConfig,
    MachineConfig,
    Positive,
    RetryConfig,
)
from tasks.records import Record

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Severity = Literal["critical", "warning"]


class StageConfig(Record):
    """What every stage's section has."""

    compute: Compute | None = Field(default=None, description="null: as the top-level key; health, warmup: as train")


class FeaturesConfig(Record):
    """Columns that the interaction MLP sees beside the text. Items carry all of them."""

    numeric: tuple[str, ...] = Field(description="columns of numbers; standardised by the first run's rows")
    categorical: tuple[str, ...] = Field(description="columns of names; the vocabulary is fixed by the first run")
    query: tuple[str, ...] = Field(description="the features, out of the above, that queries carry as well")

    @model_validator(mode="after")
    def _query_features_exist(self) -> Self:
        if unknown := set(self.query) - {*self.numeric, *self.categorical}:
            raise ValueError(f"features.query names {sorted(unknown)}, which is in neither numeric nor categorical")
        return self


class ValidateConfig(StageConfig):
    """Limits that great-expectations holds the rows of a run against."""

    min_rows: Positive = Field(description="fewer clean rows than this stop the run")
    max_quarantined_share: Share = Field(description="more bad rows than this share stop the run")
    min_text_chars: Positive
    max_text_chars: Positive
    label_min: float
    label_max: float
    numeric_min: float = Field(description="lowest value of any numeric feature")
    numeric_max: float = Field(description="highest value of any numeric feature")
    max_label_drift: float = Field(gt=0, description="population stability index to the spans before")
    max_length_drift: float = Field(gt=0, description="the same, for the length of query and item text")


class HealthConfig(StageConfig):
    """Limits that a worker must meet before it may train."""

    min_memory_gib: float = Field(ge=0)
    min_disk_gib: float = Field(ge=0)
    matmul_size: Positive = Field(description="rows and columns of the known-answer matrix product")
    all_reduce_mib: Positive = Field(description="size of the buffer whose all-reduce is timed")
    max_slowest_to_median: float = Field(gt=1, description="a worker slower than this ratio is a straggler")
    machine: str | None = Field(description="the kind of node, one of `machines`; null: nothing is known of it")
    machines: dict[str, MachineConfig]
    strikes: Positive = Field(description="suspicions of one host until it is excluded")
    exclude_hours: float = Field(gt=0, description="how long strikes count and an exclusion lasts")

    @model_validator(mode="after")
    def _machine_is_known(self) -> Self:
        if self.machine is not None and self.machine not in self.machines:
            raise ValueError(f"health.machine {self.machine!r} is none of health.machines: {', '.join(self.machines)}")
        return self


class WarmupConfig(StageConfig):
    """How long the trial run is."""

    steps_per_shape: Positive


class ScratchEncoder(Record):
    """A BERT encoder made from nothing, with a byte-pair tokenizer trained on the first run's texts."""

    vocab_size: Positive
    hidden_size: Positive
    layers: Positive
    attention_heads: Positive
    intermediate_size: Positive
    max_tokens: Positive

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.attention_heads:
            raise ValueError("model.scratch.hidden_size must be a multiple of attention_heads")
        return self


class InteractionConfig(Record):
    """DCN-v2 over [text vector, numeric, categorical]: explicit crosses, an implicit deep part, both or none."""

    kind: Literal["explicit", "implicit", "both", "none"]
    cross_layers: Positive
    deep_widths: tuple[Positive, ...] = Field(min_length=1)
    categorical_width: Positive = Field(description="width of one categorical feature's embedding")


class ModelConfig(Record):
    """Encoder, pooling, interaction, embedding width."""

    pretrained: str | None = Field(description="a local Hugging Face folder, or package:NAME for one inside a package")
    scratch: ScratchEncoder | None = Field(description="what to make where there is no pretrained one")
    pooling: Literal["mean", "cls"]
    embedding_width: Positive | None = Field(description="null: as wide as the encoder")
    dropout: Share
    interaction: InteractionConfig

    @model_validator(mode="after")
    def _some_encoder(self) -> Self:
        if self.pretrained is None and self.scratch is None:
            raise ValueError("give model.pretrained or model.scratch")
        return self

    @property
    def from_scratch(self) -> ScratchEncoder | None:
        """The encoder to be made from nothing; None where a pretrained one is named."""
        return self.scratch if self.pretrained is None else None


class ContrastiveHead(Record):
    """In-batch negatives: each query against all items of the global batch."""

    weight: float = Field(ge=0)
    scale: float = Field(gt=0, description="inverse temperature of the softmax over cosine similarities")
    positives_only: bool = Field(description="only rows of the positive class are pairs")


class ClassificationHead(Record):
    """Two classes from the label: at most `negative_max` is 0, at least `positive_min` is 1, between is unlabelled."""

    weight: float = Field(ge=0)
    input: Literal["query", "pair"] = Field(description="judge the query alone, or query and item together")
    negative_max: float
    positive_min: float

    @model_validator(mode="after")
    def _classes_apart(self) -> Self:
        if self.negative_max >= self.positive_min:
            raise ValueError("heads.classification.negative_max must be below positive_min")
        return self


class HeadsConfig(Record):
    """What the embedding is trained for; one head or both."""

    contrastive: ContrastiveHead | None
    classification: ClassificationHead | None

    @model_validator(mode="after")
    def _some_head(self) -> Self:
        if self.contrastive is None and self.classification is None:
            raise ValueError("give at least one of heads.contrastive and heads.classification")
        if self.contrastive and self.contrastive.positives_only and self.classification is None:
            raise ValueError("heads.contrastive.positives_only needs heads.classification to say what is positive")
        return self


class Shape(Record):
    """Padded tokens of the query side and of the item side of one batch; its rows are train.batch_rows."""

    query: Positive
    item: Positive


class Ladder(Record):
    """The shapes that batches may have: each query length with each item length, and no other."""

    query: tuple[Positive, ...] = Field(min_length=1, description="padded tokens, shortest first; the last one cuts")
    item: tuple[Positive, ...] = Field(min_length=1, description="padded tokens, shortest first; the last one cuts")

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(Shape(query=query, item=item) for query in self.query for item in self.item)

    @model_validator(mode="after")
    def _growing(self) -> Self:
        for rungs in (self.query, self.item):
            if list(rungs) != sorted(set(rungs)):
                raise ValueError(f"the rungs of a ladder must grow, got {list(rungs)}")
        return self


class TrainConfig(StageConfig):
    """The optimisation; everything that is counted in steps counts global steps along the lineage."""

    workers: Positive = Field(description="data-parallel processes; the losses do not depend on it")
    batch_rows: Positive = Field(description="rows of the global batch")
    shapes: Ladder
    epochs: Positive = Field(description="passes over the rows of one run")
    learning_rate: float = Field(gt=0, description="the peak, reached after warmup_steps")
    warmup_steps: int = Field(ge=0)
    decay_steps: Positive = Field(description="steps after warmup until the rate has fallen to 1/sqrt(2) of the peak")
    weight_decay: float = Field(ge=0)
    max_gradient_norm: float = Field(gt=0)
    precision: Literal["auto", "bf16", "bf16-weights", "fp32"] = Field(
        description="bf16: products only (autocast); bf16-weights: the encoder's weights too, rounded stochastically; "
        "auto: bf16 where the device is fast at it, else fp32"
    )
    on_new_graph: Literal["fail", "warn"] = Field(description="what a graph that warmup has not compiled does")
    evaluate_every_steps: Positive
    evaluate_rows: Positive = Field(description="holdout rows that the in-loop evaluation looks at, at most")
    checkpoint_every_steps: Positive
    log_every_steps: Positive
    hang_seconds: Positive = Field(description="no step for so long ends the attempt; longer than the longest step")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.batch_rows % self.workers:
            raise ValueError(f"train.batch_rows {self.batch_rows} must be a multiple of train.workers {self.workers}")
        return self


Metric = Literal["recall@1", "recall@10", "mrr@10", "ndcg@10", "accuracy", "macro_f1", "auc"]


class GateConfig(Record):
    """One condition on a metric. With a baseline, the threshold is on the difference to it."""

    metric: Metric
    direction: Literal["higher", "lower"]
    threshold: float
    baseline: Literal["none", "champion"]
    severity: Severity


class EvaluateConfig(StageConfig):
    """The holdout and the gates before a release."""

    holdout_share: Annotated[float, Field(gt=0, lt=1)] = Field(description="share of rows, by a stable hash of the id")
    slices: tuple[str, ...] = Field(description="columns by whose values the metrics are also reported")
    min_slice_rows: Positive = Field(description="slices with fewer holdout rows are not reported")
    gates: tuple[GateConfig, ...]


class InferConfig(StageConfig):
    """Offline batch inference."""

    workers: Positive
    batch_rows: Positive
    token_rungs: tuple[Positive, ...] = Field(min_length=1, description="padded lengths, shortest first")
    shard_rows: Positive = Field(description="vectors in one Parquet shard")
    precision: Literal["auto", "bf16", "fp32"]


class ReleaseConfig(StageConfig):
    """The proof that the exported folder gives the vectors that are released with it."""

    min_cosine: Annotated[float, Field(gt=0, lt=1)]
    probe_rows: Positive = Field(description="items encoded again with the exported folder")


BESIDE_THE_WORK = ("batch", "retry", "cost", "schedule", "freshness", "links")


class Config(Record):
    """A resolved configuration."""

    pipeline: str = Field(description="name of the pipeline; part of the run key")
    lineage: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="the chain of checkpoints to continue")
    compute: Compute = Field(description="where stages run that do not say so themselves")
    accelerator: Literal["cpu", "cuda", "xla", "neuron"]
    seed: int = Field(ge=0)
    features: FeaturesConfig
    validate_: ValidateConfig = Field(alias="validate")
    health: HealthConfig
    warmup: WarmupConfig
    model: ModelConfig
    heads: HeadsConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    infer: InferConfig
    release: ReleaseConfig
    compiler: CompilerConfig
    batch: BatchConfig
    retry: RetryConfig
    cost: CostConfig
    schedule: ScheduleConfig
    freshness: FreshnessConfig
    links: LinksConfig

    def same_work_as(self, other: Config) -> bool:
        """Whether both give the same model and vectors; what only says where, when and how patiently may differ."""
        return self.model_copy(update={name: getattr(other, name) for name in BESIDE_THE_WORK}) == other

    def compute_of(self, stage: str) -> Compute:
        """Where a stage runs. Warmup and health go where the training goes, whose machines they prove."""
        own: dict[str, Compute | None] = {
            "validate": self.validate_.compute,
            "health": self.health.compute or self.train.compute,
            "warmup": self.warmup.compute or self.train.compute,
            "train": self.train.compute,
            "evaluate": self.evaluate.compute,
            "infer": self.infer.compute,
            "release": self.release.compute,
            "import-checkpoint": self.train.compute,
        }
        return own[stage] or self.compute

    @model_validator(mode="after")
    def _workers_fill_nodes(self) -> Self:
        each = self.batch.processes_per_node
        for stage, workers in (("train", self.train.workers), ("infer", self.infer.workers)):
            if self.compute_of(stage) == "batch" and workers > each and workers % each:
                raise ValueError(
                    f"{stage}.workers {workers} must be a multiple of batch.processes_per_node {each}, or below it"
                )
        return self

    @model_validator(mode="after")
    def _gates_can_be_judged(self) -> Self:
        needs_head = [gate.metric for gate in self.evaluate.gates if gate.metric in ("accuracy", "macro_f1", "auc")]
        if needs_head and self.heads.classification is None:
            raise ValueError(f"the gate on {needs_head[0]} needs heads.classification, which is null")
        return self

    @model_validator(mode="after")
    def _features_have_an_interaction(self) -> Self:
        if (self.features.numeric or self.features.categorical) and self.model.interaction.kind == "none":
            raise ValueError("features reach the embedding through model.interaction, whose kind is none")
        return self

    @property
    def longest_tokens(self) -> int:
        """The longest text that any batch holds, in tokens."""
        return max(self.train.shapes.query[-1], self.train.shapes.item[-1], self.infer.token_rungs[-1])

    @model_validator(mode="after")
    def _texts_fit_the_encoder(self) -> Self:
        scratch = self.model.from_scratch
        if scratch is not None and self.longest_tokens > scratch.max_tokens:
            raise ValueError(
                f"a shape of {self.longest_tokens} tokens is longer than model.scratch.max_tokens {scratch.max_tokens}"
            )
        return self
