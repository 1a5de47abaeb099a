"""The configuration of the model: its input columns and prompts, its encoder, its embedding.

Its heads of labels learn one value of each row from a column: one of several classes, or a number.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from configs.schema.compute import Positive
from configs.schema.stages import Share
from tasks.foundation.records import Record


class FeaturesConfig(Record):
    """Input columns of the interaction MLP, in addition to the text. Items have all of them."""

    numeric: tuple[str, ...] = Field(description="columns of numbers; clipped and standardised by the first run's rows")
    categorical: tuple[str, ...] = Field(description="columns of names; the vocabulary grows with each run")
    query: tuple[str, ...] = Field(description="columns of numeric and categorical that queries have as well")
    entity: str | None = Field(
        default=None,
        min_length=1,
        description=(
            "column with the entity type or locale of a row, which chooses the prompts of its texts; needs no "
            "interaction"
        ),
    )

    @model_validator(mode="after")
    def _entity_is_a_name(self) -> Self:
        if self.entity is not None and self.entity in self.numeric:
            raise ValueError(f"features.entity {self.entity} is in features.numeric too; it must be a column of names")
        return self

    @model_validator(mode="after")
    def _query_features_exist(self) -> Self:
        if unknown := set(self.query) - {*self.numeric, *self.categorical}:
            raise ValueError(f"features.query names {sorted(unknown)}, which is in neither numeric nor categorical")
        return self


class ScratchEncoder(Record):
    """A new BERT encoder, with a byte-pair tokenizer trained on the first run's texts."""

    vocab_size: Positive = Field(description="entries of the tokenizer's vocabulary")
    hidden_size: Positive = Field(description="width of a token's vector; a multiple of attention_heads")
    layers: Positive = Field(description="transformer layers")
    attention_heads: Positive = Field(description="attention heads of each layer")
    intermediate_size: Positive = Field(description="width of the feed-forward part of each layer")
    max_tokens: Positive = Field(description="longest text, in tokens")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.hidden_size % self.attention_heads:
            raise ValueError("model.scratch.hidden_size must be a multiple of attention_heads")
        return self


class InteractionConfig(Record):
    """DCN-v2 over [text vector, numeric, categorical]: explicit crosses, an implicit deep part, both or none."""

    kind: Literal["explicit", "implicit", "both", "none"] = Field(
        description="parts between encoder and embedding: `explicit` crosses (DCN-v2), `implicit` deep layers, "
        "`both`, or `none`"
    )
    cross_layers: Positive = Field(description="cross layers of the explicit part")
    deep_widths: tuple[Positive, ...] = Field(
        min_length=1, description="width of each layer of the implicit part, as in [256, 128]"
    )
    categorical_width: Positive = Field(description="width of the embedding of one categorical feature")


class EntityPrompts(Record):
    """Prompts of rows with one value of features.entity."""

    query: str | None = Field(default=None, description="text before each query; null: as for all rows")
    item: str | None = Field(default=None, description="text before each item; null: as for all rows")


class Prompts(Record):
    """Texts before each query and item, word for word, as in `query: `; their tokens count towards a text's limit."""

    query: str = Field(default="", description="text before each query")
    item: str = Field(default="", description="text before each item")
    by_entity: dict[str, EntityPrompts] = Field(
        default={}, description="prompts of single values of features.entity, in place of these two"
    )

    @property
    def any(self) -> bool:
        """True: at least one kind of text gets a prompt."""
        return any((self.query, self.item, *(each.query or each.item for each in self.by_entity.values())))


Pooling = Literal["mean", "cls", "last"]


class ModelConfig(Record):
    """Encoder, pooling, interaction, embedding width."""

    pretrained: str | None = Field(
        description="local folder of sentence-transformers or transformers, or `package:NAME/FOLDER` for one "
        "inside a Python package; null: a new encoder (`scratch`)"
    )
    scratch: ScratchEncoder | None = Field(description="new encoder, used if `pretrained` is null")
    pooling: Pooling | None = Field(
        description=(
            "vector of a text: the `mean` of its tokens', the first (`cls`) or the `last`; null: as the pretrained "
            "folder says, else the mean"
        )
    )
    prompts: Prompts | None = Field(
        description="texts before each query and each item, word for word, as in `query: `; null: as the "
        "pretrained folder says, else none",
    )
    embedding_width: Positive | None = Field(description="numbers of an embedding; null: as wide as the encoder")
    dropout: Share = Field(description="share of activations set to zero in training, at random")
    interaction: InteractionConfig

    @model_validator(mode="after")
    def _some_encoder(self) -> Self:
        if self.pretrained is None and self.scratch is None:
            raise ValueError("give model.pretrained or model.scratch")
        return self

    @property
    def from_scratch(self) -> ScratchEncoder | None:
        """The new encoder to make; None if a pretrained one is configured."""
        return self.scratch if self.pretrained is None else None


LARGEST_NUMBER = 1e6  # bounds of a scale: its arithmetic is float32


class LabelHead(Record):
    """Settings that these heads share."""

    weight: float = Field(ge=0, description="weight of its loss in the sum of all heads")
    input: Literal["query", "pair"] = Field(description="`query` alone, or the `pair` of query and item")
    column: str = Field(default="label", min_length=1, description="column that it learns from")
    learning_rate_factor: float = Field(
        default=1.0,
        gt=0,
        description="factor of train.learning_rate for the head alone",
    )
    refit_rows: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description=(
            "number of newest training rows with a value on which the head is solved after the last step; null: it "
            "stays as trained"
        ),
    )

    @property
    def outputs(self) -> int:
        """Numbers that the head gives for each row."""
        return 1

    @property
    def of_names(self) -> bool:
        """True: the column holds names; else numbers."""
        return False

    @property
    @abstractmethod
    def meaning(self) -> dict[str, float | list[str]]:
        """The settings that define the outputs; they are fixed for a lineage."""

    @property
    @abstractmethod
    def why_not(self) -> str:
        """The fault of a value that the head can't learn, as an end of a sentence after the column's name."""

    @abstractmethod
    def learnt_of(self, values: Sequence[Any]) -> list[float]:
        """Return the target for each value in its column; NaN if it has none."""


class MulticlassHead(LabelHead):
    """One of several classes, by the values of the column; a number such as 5.0 is named 5, and true is named true."""

    classes: tuple[str, ...] = Field(
        min_length=2,
        description="values of the column, as in [1, 2, 3]",
        json_schema_extra={"items": {"type": ["string", "number", "boolean"]}},
    )
    loss: Literal["plain", "balanced"] = Field(
        default="plain", description="`plain` cross entropy; `balanced`: rows weigh by the inverse share of their class"
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, values: Any) -> Any:
        """Convert numbers to names, since YAML reads `[1, 2, 3]` as numbers."""
        if isinstance(values, dict) and isinstance(classes := values.get("classes"), Sequence):
            if isinstance(classes, str):
                raise ValueError(f"heads.multiclass.classes must be a list, as in [{classes}, other]")
            return values | {"classes": tuple(class_name(each) for each in classes)}
        return values

    @model_validator(mode="after")
    def _classes_differ(self) -> Self:
        if again := sorted({name for name in self.classes if self.classes.count(name) > 1}):
            raise ValueError(f"heads.multiclass.classes names {', '.join(again)} twice")
        return self

    @property
    def outputs(self) -> int:
        return len(self.classes)

    @property
    def of_names(self) -> bool:
        return True

    @property
    def meaning(self) -> dict[str, float | list[str]]:
        return {"classes": list(self.classes)}

    @property
    def why_not(self) -> str:
        return "is none of heads.multiclass.classes"

    def learnt_of(self, values: Sequence[Any]) -> list[float]:
        """Return the number of each value's class, from 0."""
        numbers = {name: float(number) for number, name in enumerate(self.classes)}
        return [numbers.get(class_name(value), math.nan) for value in values]


class RegressionHead(LabelHead):
    """A number between two bounds, such as a relevance from 0 to 3, learnt by its squared error."""

    low: float = Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, description="least value; a row with a lower one is bad")
    high: float = Field(
        ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, description="greatest value; a row with a higher one is bad"
    )

    @model_validator(mode="after")
    def _bounds_apart(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"heads.regression.low {self.low:g} must be below high {self.high:g}")
        return self

    @property
    def meaning(self) -> dict[str, float | list[str]]:
        return {"low": self.low, "high": self.high}

    @property
    def why_not(self) -> str:
        return f"is not from {self.low:.10g} to {self.high:.10g} (heads.regression)"

    def learnt_of(self, values: Sequence[Any]) -> list[float]:
        """Return each value as a number; NaN if it is out of bounds."""
        return [number if self.low <= number <= self.high else math.nan for number in map(number_of, values)]


def class_name(value: Any) -> Any:
    """Return the class name of a row's value: `5` for 5.0, `true` for True; anything else unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, int | float) else value


def number_of(value: Any) -> float:
    """Return a value as a number; NaN for a missing value or a word."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
