"""The configuration of the model: the columns and texts that it sees, its encoder, its embedding."""

from typing import Literal, Self

from pydantic import Field, model_validator

from configs.schema.compute import Positive
from configs.schema.stages import Share
from tasks.foundation.records import Record


class FeaturesConfig(Record):
    """Columns that the interaction MLP sees in addition to the text. Items have all of them."""

    numeric: tuple[str, ...] = Field(description="columns of numbers; clipped and standardised by the first run's rows")
    categorical: tuple[str, ...] = Field(description="columns of names; the vocabulary grows with each run")
    query: tuple[str, ...] = Field(description="those of the above that queries have as well")
    entity: str | None = Field(
        default=None,  # configurations of earlier runs lack it
        min_length=1,
        description="a column of names that says what a row is about, such as its entity type or locale: its texts get "
        "the prompts of that name, and batches can be homogeneous by it; needs no interaction",
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


class EntityPrompts(Record):
    """What stands before the texts of rows with one value of features.entity."""

    query: str | None = Field(default=None, description="before each query; null: as for all rows")
    item: str | None = Field(default=None, description="before the text of each item; null: as for all rows")


class Prompts(Record):
    """What stands before each text, word for word, as in `query: `; its tokens count towards the limit of a text."""

    query: str = Field(default="", description="before each query")
    item: str = Field(default="", description="before the text of each item")
    by_entity: dict[str, EntityPrompts] = Field(
        default={}, description="instead of these, by the value of features.entity; other values get these"
    )

    @property
    def any(self) -> bool:
        """Whether something stands before some text."""
        return any((self.query, self.item, *(each.query or each.item for each in self.by_entity.values())))


Pooling = Literal["mean", "cls", "last"]


class ModelConfig(Record):
    """Encoder, pooling, interaction, embedding width."""

    pretrained: str | None = Field(
        description="a local folder of sentence-transformers or transformers, or package:NAME for one inside a package"
    )
    scratch: ScratchEncoder | None = Field(description="the new encoder to make where pretrained is null")
    pooling: Pooling | None = Field(
        description="of a text's token vectors: the mean, the first or the last; null: as the pretrained folder says, "
        "else the mean"
    )
    prompts: Prompts | None = Field(
        default=None,  # configurations of earlier runs lack it
        description="what stands before each query and each item; null: as the pretrained folder says, else nothing",
    )
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
        """The new encoder to make; None where a pretrained one is named."""
        return self.scratch if self.pretrained is None else None
