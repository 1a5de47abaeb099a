"""The trainable kinds of encoder, by `model_type` of their config.json; shapes and prompts of text vectors."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from configs.schema.model import EntityPrompts, Pooling, Prompts
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record

QUERY, ITEM = "query", "document"
_MARK = ":"


def to_names(prompts: Prompts) -> dict[str, str]:
    """Return the prompts by name, as an exported folder has them."""
    return {QUERY: prompts.query, ITEM: prompts.item} | entity_names(prompts)


def entity_names(prompts: Prompts) -> dict[str, str]:
    """Return only the prompts of entities, by name."""
    found = {}
    for name, each in prompts.by_entity.items():
        for kind, prompt in ((QUERY, each.query), (ITEM, each.item)):
            if prompt is not None:
                found[f"{kind}{_MARK}{name}"] = prompt
    return found


def entities_of(names: dict[str, str | None]) -> dict[str, EntityPrompts]:
    """Return the prompts of entities from a folder's named prompts."""
    entities = sorted({name.partition(_MARK)[2] for name in names if name.startswith((QUERY + _MARK, ITEM + _MARK))})
    return {
        each: EntityPrompts(query=names.get(f"{QUERY}{_MARK}{each}"), item=names.get(f"{ITEM}{_MARK}{each}"))
        for each in entities
    }


Activation = Literal["identity", "tanh", "relu", "gelu", "sigmoid"]


class DenseShape(Record):
    """A linear layer over the pooled vector, (texts, inputs) -> (texts, outputs), and its activation."""

    inputs: int
    outputs: int
    bias: bool
    activation: Activation


class TextShape(Record):
    """The steps from a text to its vector: prompt, pooling, then the dense layers in order."""

    pooling: Pooling
    dense: tuple[DenseShape, ...] = ()
    prompts: Prompts = Prompts()

    def text_width(self, encoder_width: int) -> int:
        """Return the width of a text's vector for an encoder of `encoder_width`."""
        return self.dense[-1].outputs if self.dense else encoder_width


class Encoder(NamedTuple):
    """The properties of a kind of encoder.

    `after_padding`: the first position is the padding token's id plus one; else it is 0. `causal`: a token does not
    attend to later tokens. `own_attention`: its attention implementation can't be replaced. `decoder`: it has the
    architecture of a text generator.
    """

    after_padding: bool = False
    causal: bool = False
    own_attention: bool = False
    decoder: bool = False


# All take attention masks per layer and position ids as input, so that several texts can be packed in one sequence.
ENCODERS = {
    "bert": Encoder(),
    "distilbert": Encoder(),
    "electra": Encoder(),
    "roberta": Encoder(after_padding=True),
    "xlm-roberta": Encoder(after_padding=True),
    "camembert": Encoder(after_padding=True),
    "mpnet": Encoder(after_padding=True, own_attention=True),
    "modernbert": Encoder(),
    "qwen2": Encoder(causal=True, decoder=True),
    "qwen3": Encoder(causal=True, decoder=True),
    "llama": Encoder(causal=True, decoder=True),
    "gemma3_text": Encoder(decoder=True),
}


def kind_of(model_type: str | None) -> Encoder:
    """Return the properties of an encoder of this kind. Raises ConfigError: it can't be trained."""
    if model_type not in ENCODERS:
        raise ConfigError(
            f"an encoder with the model_type {model_type!r} can't be trained; give model.pretrained a folder with one "
            f"of {', '.join(ENCODERS)}"
        )
    return ENCODERS[model_type]


def check_direction(encoder_config: Mapping[str, Any]) -> None:
    """Raise ConfigError if a config.json describes a Gemma text generator, whose tokens don't attend to later ones."""
    if encoder_config.get("model_type") == "gemma3_text" and not encoder_config.get("use_bidirectional_attention"):
        raise ConfigError(
            "an encoder with the model_type 'gemma3_text' can be trained if its tokens see those after them, and its "
            "config.json has no use_bidirectional_attention: true; give model.pretrained an embedding model, such as "
            "EmbeddingGemma"
        )


def first_position(model_type: str, padding_id: int) -> int:
    """Return the position id of a text's first token."""
    return padding_id + 1 if kind_of(model_type).after_padding else 0


def positions_for_text(encoder_config: Mapping[str, Any]) -> int | None:
    """Return the maximum number of tokens of a text by an encoder's config.json; None if it has no limit."""
    positions = encoder_config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    padding_id = encoder_config.get("pad_token_id")
    return positions - first_position(encoder_config["model_type"], padding_id if isinstance(padding_id, int) else 0)
