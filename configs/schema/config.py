"""The typed configuration: every key, its meaning, unit and bounds. Defaults live in base.yaml, not here.

A resolved configuration is one `Config`; it is hashed into the run key and saved with every run. Its sections are in
model.py, training.py, stages.py, compute.py and operations.py.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from configs.schema.compute import AcceleratorName, BatchConfig, CompilerConfig, Compute, RetryConfig
from configs.schema.gates import METRICS
from configs.schema.model import FeaturesConfig, ModelConfig
from configs.schema.operations import (
    CostConfig,
    DecideConfig,
    FreshnessConfig,
    LinksConfig,
    PruneConfig,
    ScheduleConfig,
)
from configs.schema.stages import (
    EvaluateConfig,
    HealthConfig,
    InferConfig,
    PublishConfig,
    ReleaseConfig,
    WarmupConfig,
    WorkersConfig,
)
from configs.schema.training import HeadsConfig, TrainConfig
from configs.schema.validation import EVENT_WEIGHT, ValidateConfig
from tasks.foundation.records import Record, beside, decides

# Columns of every row that can be neither a label nor a weight.
TEXTS_AND_IDS = ("row_id", "time", "query", "item", "item_id")


class Config(Record):
    """A resolved configuration."""

    pipeline: str = Field(description="name of the pipeline; part of every run's key")
    lineage: str = Field(
        pattern=r"^[a-z0-9][a-z0-9-]*$", description="name of the chain of checkpoints that runs continue"
    )
    compute: Compute = Field(description="place where stages run: `local` processes, or AWS `batch`")
    accelerator: AcceleratorName = Field(
        description="device of training and encoding: `cpu`, `cuda` (NVIDIA GPUs), `neuron` (TorchNeuron: Trn2 and "
        "Trn3), `xla` (PyTorch/XLA: Trainium and Inferentia, or a processor)"
    )
    seed: int = Field(ge=0, description="seed of everything random: new weights, order of rows, dropout")
    features: FeaturesConfig
    validate_: ValidateConfig = Field(alias="validate")
    health: HealthConfig = beside()
    warmup: WarmupConfig
    model: ModelConfig
    heads: HeadsConfig
    train: TrainConfig
    evaluate: EvaluateConfig
    infer: InferConfig
    release: ReleaseConfig
    compiler: CompilerConfig
    batch: BatchConfig = beside()
    retry: RetryConfig = beside()
    cost: CostConfig = beside()
    schedule: ScheduleConfig = beside()
    decide: DecideConfig = beside(DecideConfig())
    freshness: FreshnessConfig = beside()
    prune: PruneConfig = beside(PruneConfig())
    links: LinksConfig = beside()
    publish: PublishConfig = beside()

    def tree(self) -> dict[str, Any]:
        """Return the settings with the keys that they have in YAML."""
        return self.model_dump(mode="json", by_alias=True)

    def work(self) -> dict[str, Any]:
        """Return the settings that decide a run's model and vectors, as a tree."""
        tree = self.tree()
        for name, field in type(self).model_fields.items():
            key, section = field.alias or name, getattr(self, name)
            if not decides(field):
                del tree[key]
            elif isinstance(section, Record):
                for inner, one in type(section).model_fields.items():
                    if not decides(one):
                        del tree[key][inner]
        return tree

    def same_work_as(self, other: Config) -> bool:
        """Return True if both make the same model and vectors; gates, machines and schedule may differ."""
        return self.work() == other.work()

    @model_validator(mode="after")
    def _workers_fill_nodes(self) -> Self:
        for name in type(self).model_fields:
            section, each = getattr(self, name), self.batch.processes_of(name.rstrip("_"))  # validate_
            on_batch = isinstance(section, WorkersConfig) and (section.compute or self.compute) == "batch"
            if on_batch and section.workers > each and section.workers % each:
                wrong = f"{name}.workers {section.workers}"
                key = (
                    "batch.infer.processes_per_node"
                    if name == "infer" and self.batch.infer
                    else "batch.processes_per_node"
                )
                raise ValueError(f"{wrong} must be a multiple of {key} {each}, or below it")
        return self

    @model_validator(mode="after")
    def _published_where_it_stays(self) -> Self:
        folders = [target.name for target in self.publish.targets if target.is_folder]
        if folders and (self.publish.compute or self.compute) == "batch":
            raise ValueError(
                f"target {folders[0]} of publish.targets is a folder, and publish runs on AWS Batch, whose machines "
                "don't stay; give it an address (s3://, http://), or set publish.compute=local"
            )
        return self

    @model_validator(mode="after")
    def _gates_can_be_judged(self) -> Self:
        for gate in self.evaluate.gates:
            head = METRICS[gate.metric].head
            if head is not None and getattr(self.heads, head) is None:
                raise ValueError(f"the gate on {gate.metric} needs heads.{head}, which is null")
            if gate.rows == "golden" and self.evaluate.golden is None:
                raise ValueError(f"the gate on {gate.metric} is of the golden set, and evaluate.golden names no file")
        return self

    @model_validator(mode="after")
    def _the_best_step_can_be_found(self) -> Self:
        head = METRICS[self.train.keep_best.metric].head if self.train.keep_best else None
        if self.train.keep_best and head is not None and getattr(self.heads, head) is None:
            raise ValueError(f"train.keep_best on {self.train.keep_best.metric} needs heads.{head}, which is null")
        return self

    @model_validator(mode="after")
    def _queries_have_items_to_find(self) -> Self:
        if self.train.sides == "queries" and self.heads.contrastive is None:
            raise ValueError("train.sides queries trains queries to find their items: heads.contrastive, which is null")
        return self

    @model_validator(mode="after")
    def _features_have_an_interaction(self) -> Self:
        if (self.features.numeric or self.features.categorical) and self.model.interaction.kind == "none":
            raise ValueError("features reach the embedding through model.interaction, whose kind is none")
        return self

    @model_validator(mode="after")
    def _batches_are_of_a_feature(self) -> Self:
        column, known = self.train.batch_by, self.features.categorical
        if column is not None and column not in (*known, self.features.entity):
            raise ValueError(
                f"train.batch_by {column} is not in features.categorical ({', '.join(known) or 'none'}), nor is it "
                f"features.entity ({self.features.entity or 'none'})"
            )
        return self

    @model_validator(mode="after")
    def _prompts_know_the_entity(self) -> Self:
        if self.model.prompts is not None and self.model.prompts.by_entity and self.features.entity is None:
            raise ValueError(
                "model.prompts.by_entity needs features.entity, the column that says what a row is about; it is null"
            )
        return self

    @model_validator(mode="after")
    def _labels_are_values(self) -> Self:
        columns = {f"heads.{name}.column": head.column for name, head in self.heads.of_labels.items()}
        columns |= {"train.row_weight": self.train.row_weight} if self.train.row_weight else {}
        columns |= {"features.entity": self.features.entity} if self.features.entity else {}
        for key, column in columns.items():
            if column in TEXTS_AND_IDS:
                raise ValueError(f"{key} is {column}, a text, an id or the time of each row; name a column of values")
        return self

    @model_validator(mode="after")
    def _events_are_read(self) -> Self:
        events = self.validate_.events
        if events is None:
            return self
        if events.column in (*TEXTS_AND_IDS, "label"):
            raise ValueError(f"validate.events.column is {events.column}; name a column with the event of each row")
        labels = {event.label for event in events.values.values()}
        if len(labels) > 1 and not self.heads.reads_labels:
            raise ValueError(
                "validate.events gives rows different labels, and nothing reads them, so each row would be a hit; set "
                "heads.classification={weight: 0.1, input: pair, negative_max: 0, positive_min: 1} and "
                "heads.contrastive.positives_only=true, or give all events the same label"
            )
        weighted = [name for name, event in events.values.items() if event.weight != 1]
        if weighted and self.train.row_weight != EVENT_WEIGHT:
            raise ValueError(
                f"validate.events gives {weighted[0]} a weight, which counts with train.row_weight={EVENT_WEIGHT}; "
                f"train.row_weight is {self.train.row_weight or 'null'}"
            )
        return self

    @model_validator(mode="after")
    def _one_type_a_column(self) -> Self:
        names = {f"heads.{name}.column": head.column for name, head in self.heads.of_labels.items() if head.of_names}
        names |= {f"features.categorical ({column})": column for column in self.features.categorical}
        names |= {"features.entity": self.features.entity} if self.features.entity else {}
        numbers = {
            f"heads.{name}.column": each.column for name, each in self.heads.of_labels.items() if not each.of_names
        }
        numbers |= {f"features.numeric ({column})": column for column in self.features.numeric}
        numbers |= {"train.row_weight": self.train.row_weight} if self.train.row_weight else {}
        for key, column in numbers.items():
            other = next((name for name, each in names.items() if each == column != "label"), None)
            if other is not None and not (key.startswith("features.") and other.startswith("features.")):
                raise ValueError(
                    f"{key} reads column {column} as numbers, and {other} as names; copy it under two names"
                )
        return self

    @model_validator(mode="after")
    def _widths_are_narrower(self) -> Self:
        scratch = self.model.from_scratch
        width = self.model.embedding_width or (scratch.hidden_size if scratch else None)
        if width is not None:
            self.check_widths(width)
        return self

    def check_widths(self, width: int) -> None:
        """Check the narrower widths. Raises ValueError: one is not below `width`, the embedding's."""
        self.heads.check_widths(width)
        for gate in self.evaluate.gates:
            if gate.width is not None and gate.width >= width:
                raise ValueError(
                    f"the gate on {gate.metric} names width {gate.width}, and the embedding is {width} wide; name a "
                    "narrower width, or null for the whole embedding"
                )

    @model_validator(mode="after")
    def _targets_have_trained_widths(self) -> Self:
        for target in self.publish.targets:
            if target.width is not None and target.width not in self.heads.matryoshka:
                trained = ", ".join(map(str, self.heads.matryoshka)) or "none"
                raise ValueError(
                    f"target {target.name} has vectors of {target.width} numbers, at which no model is trained; the "
                    f"widths of heads.contrastive.matryoshka are: {trained}"
                )
        return self

    @property
    def measured_widths(self) -> tuple[int, ...]:
        """The truncated widths that models are measured at, the narrowest first."""
        gated = (gate.width for gate in self.evaluate.gates if gate.width is not None)
        return tuple(sorted({*self.heads.matryoshka, *gated}))

    @property
    def longest_tokens(self) -> int:
        """The longest text of any batch, in tokens."""
        return max(self.train.max_tokens.query, self.train.max_tokens.item, self.infer.max_tokens)

    @model_validator(mode="after")
    def _texts_fit_the_encoder(self) -> Self:
        scratch = self.model.from_scratch
        if scratch is not None and self.longest_tokens > scratch.max_tokens:
            raise ValueError(
                f"a text of {self.longest_tokens} tokens is longer than model.scratch.max_tokens {scratch.max_tokens}; "
                "lower train.max_tokens and infer.max_tokens"
            )
        return self


# Sections that don't change a run's model and vectors, such as batch, schedule and links.
BESIDE_THE_WORK = tuple(name for name, field in Config.model_fields.items() if not decides(field))
