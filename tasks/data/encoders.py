"""The kinds of encoder that can be trained, by `model_type` of their config.json; their shapes and prompts."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from configs.schema.model import EntityPrompts, Pooling, Prompts
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record

QUERY, ITEM = "query", "document"
_MARK = ":"


def to_names(prompts: Prompts) -> dict[str, str]:
    """Return what an exported folder says."""
    return {QUERY: prompts.query, ITEM: prompts.item} | entity_names(prompts)


def entity_names(prompts: Prompts) -> dict[str, str]:
    """Return the prompts of single entities alone."""
    found = {}
    for name, each in prompts.by_entity.items():
        for kind, prompt in ((QUERY, each.query), (ITEM, each.item)):
            if prompt is not None:
                found[f"{kind}{_MARK}{name}"] = prompt
    return found


def entities_of(names: dict[str, str | None]) -> dict[str, EntityPrompts]:
    """Return the prompts of single entities that a folder names."""
    entities = sorted({name.partition(_MARK)[2] for name in names if name.startswith((QUERY + _MARK, ITEM + _MARK))})
    return {
        each: EntityPrompts(query=names.get(f"{QUERY}{_MARK}{each}"), item=names.get(f"{ITEM}{_MARK}{each}"))
        for each in entities
    }


Activation = Literal["identity", "tanh", "relu", "gelu", "sigmoid"]


class DenseShape(Record):
    """A linear layer over the pooled vector, (texts, inputs) -> (texts, outputs), and the function after it."""

    inputs: int
    outputs: int
    bias: bool
    activation: Activation


class TextShape(Record):
    """How a text's vector is made: prompt, pooling, then the dense layers in their order."""

    pooling: Pooling
    dense: tuple[DenseShape, ...] = ()
    prompts: Prompts = Prompts()

    def text_width(self, encoder_width: int) -> int:
        """Return the width of a text's vector, on an encoder of `encoder_width`."""
        return self.dense[-1].outputs if self.dense else encoder_width


class Encoder(NamedTuple):
    """What a kind of encoder needs beyond token ids.

    `after_padding`: its first position has the number of the padding token and one; else it is 0. `causal`: a token
    sees none after it. `own_attention`: its attention can't be replaced by another implementation. `decoder`: it is
    built as a model that writes text is.
    """

    after_padding: bool = False
    causal: bool = False
    own_attention: bool = False
    decoder: bool = False


# Each attends to the tokens that the mask of a layer shows, and takes positions from outside, so that several texts can
# stand in one sequence.
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
    """Return what an encoder of this kind needs. Raises ConfigError: it can't be trained."""
    if model_type not in ENCODERS:
        raise ConfigError(
            f"an encoder with the model_type {model_type!r} can't be trained; give model.pretrained a folder with one "
            f"of {', '.join(ENCODERS)}"
        )
    return ENCODERS[model_type]


def check_direction(encoder_config: Mapping[str, Any]) -> None:
    """Raise ConfigError if a config.json describes a Gemma that writes text: its tokens see none after them."""
    if encoder_config.get("model_type") == "gemma3_text" and not encoder_config.get("use_bidirectional_attention"):
        raise ConfigError(
            "an encoder with the model_type 'gemma3_text' can be trained if its tokens see those after them, and its "
            "config.json has no use_bidirectional_attention: true; give model.pretrained an embedding model, such as "
            "EmbeddingGemma"
        )


def first_position(model_type: str, padding_id: int) -> int:
    """Return the number of a text's first position."""
    return padding_id + 1 if kind_of(model_type).after_padding else 0


def positions_for_text(encoder_config: Mapping[str, Any]) -> int | None:
    """Return how many tokens a text may have by an encoder's config.json; None where it does not say."""
    positions = encoder_config.get("max_position_embeddings")
    if not isinstance(positions, int):
        return None
    padding_id = encoder_config.get("pad_token_id")
    return positions - first_position(encoder_config["model_type"], padding_id if isinstance(padding_id, int) else 0)
