"""The configuration of the model: its input columns and prompts, its encoder, its embedding."""

from typing import Literal, Self

from pydantic import Field, model_validator

from configs.schema.compute import Positive
from configs.schema.stages import Share
from tasks.foundation.records import Record


class FeaturesConfig(Record):
    """Input columns of the interaction MLP, in addition to the text. Items have all of them."""

    numeric: tuple[str, ...] = Field(description="columns of numbers; clipped and standardised by the first run's rows")
    categorical: tuple[str, ...] = Field(description="columns of names; the vocabulary grows with each run")
    query: tuple[str, ...] = Field(
        description="columns of numeric and categorical that queries have as well; items have all of them"
    )
    entity: str | None = Field(
        default=None,
        min_length=1,
        description="column with the entity type or locale of a row, by name; it chooses the prompts of the row's "
        "texts, and batches can have one value of it (train.batch_by); needs no interaction",
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
        description="a text's vector from its tokens' vectors: their `mean`, the first (`cls`) or the `last`; "
        "null: as the pretrained folder says, else the mean"
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
