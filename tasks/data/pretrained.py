"""Read the description of a pretrained model: encoder, pooling, dense layers, prompts, length and case of texts.

Encoders are of the trainable kinds, by `model_type` of their config.json. Folders of sentence-transformers 2 to 6
are read; a folder without modules.json is a plain encoder. Unsupported settings are refused by name. Weights are
not read here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, TypeVar

from configs.schema.model import EntityPrompts, ModelConfig, Pooling, Prompts
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


T = TypeVar("T")

MODULES = "modules.json"
DENSE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first existing file counts
_WHOLE_FAMILY = "sentence_transformers."  # prefix of the library's own modules
_OWN_FAMILY = "released_modules."  # prefix of the modules in a release with feature interaction
_WAY_OUT = f"give another folder, or a copy of this one without {MODULES}, which is an encoder alone"
_POOLINGS: dict[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
# The keys of pooling modes before version 6 -> their names since.
_POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_ACTIVATIONS: dict[str, Activation] = {
    "Identity": "identity",
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
}
_TRANSFORMER_FILES = [
    "sentence_bert_config.json",
    *(f"sentence_{name}_config.json" for name in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta")),
]
# Settings of the module Transformer that are read, or describe the only behaviour.
_TRANSFORMER_KEYS = {
    "max_seq_length", "do_lower_case", "modality_config", "module_output_name", "unpad_inputs", "transformer_task",
}  # fmt: skip
_DENSE_DEFAULTS = {"module_input_name": "sentence_embedding", "use_residual": False}
_NO_PROMPTS = Prompts()
_QUERY_PROMPTS, _ITEM_PROMPTS = ("query",), ("document", "passage", "corpus")  # the first non-empty one counts


@dataclass(frozen=True)
class Described:
    """The description of a pretrained model.

    `encoder` is the folder of encoder and tokenizer, `dense_folders` are the folders of the dense layers' weights.
    `pooling` is None for a plain encoder. `longest_tokens` is the maximum length of texts, None if not given.
    `default_prompt` names a prompt for every text; it is set only if `prompts` for queries and items are empty.
    `prefix` stands before the names of the encoder's tensors in its files, as in `0.auto_model.`.
    """

    folder: Path
    encoder: Path
    pooling: Pooling | None = None
    pool_prompt: bool = True
    dense: tuple[DenseShape, ...] = ()
    dense_folders: tuple[Path, ...] = ()
    prompts: Prompts = _NO_PROMPTS
    default_prompt: str | None = None
    longest_tokens: int | None = None
    lower_case: bool = False
    normalized: bool = True
    prefix: str = ""


def describe(folder: Path) -> Described:
    """Return the description of a model folder. Raises ConfigError: a setting is unsupported, or a file unreadable."""
    if not (folder / MODULES).is_file():
        return Described(folder=folder, encoder=folder)
    modules = _read_json(folder / MODULES)
    if not isinstance(modules, list) or not all(isinstance(each, dict) for each in modules):
        _refuse(folder / MODULES, "no list of modules")
    names = [_name_of(folder, str(each.get("type"))) for each in modules]
    places = [_place(folder, str(each.get("path", ""))) for each in modules]
    dense = [place for name, place in zip(names, places, strict=True) if name == "Dense"]
    normalized = names[-1:] == ["Normalize"]
    expected = ["Transformer", "Pooling", *("Dense" for _ in dense), *(["Normalize"] if normalized else [])]
    if names != expected:
        _refuse(folder / MODULES, f"{', '.join(names)}, where an order such as {', '.join(expected)} is expected")
    pooling, pool_prompt = _pooling(places[1] / "config.json")
    longest, lower_case = _transformer(places[0])
    prompts, default_prompt = _prompts(folder / "config_sentence_transformers.json")
    return Described(
        folder=folder,
        encoder=places[0],
        pooling=pooling,
        pool_prompt=pool_prompt,
        dense=tuple(_dense(place / "config.json") for place in dense),
        dense_folders=tuple(dense),
        prompts=prompts,
        default_prompt=default_prompt,
        longest_tokens=longest,
        lower_case=lower_case,
        normalized=normalized,
    )


def text_shape(model: ModelConfig, described: Described) -> TextShape:
    """Return pooling, dense layers and prompts. Raises ConfigError: the configuration contradicts the folder."""
    if model.pooling is not None and described.pooling not in (None, model.pooling):
        raise ConfigError(
            f"model.pooling is {model.pooling}, and the encoder in {described.folder} was trained with "
            f"{described.pooling}; set model.pooling: null to take the folder's"
        )
    if model.prompts is None and described.default_prompt is not None:
        raise ConfigError(
            f"model.pretrained: {described.folder} has the prompt {described.default_prompt!r} for every text and none "
            "of queries or documents; say what stands before them with model.prompts={query: ..., item: ...}"
        )
    prompts = described.prompts if model.prompts is None else model.prompts
    if not described.pool_prompt and prompts.any:
        raise ConfigError(
            f"model.pretrained: the pooling of {described.folder} leaves prompts out (include_prompt: false), which "
            'can\'t be honoured; set model.prompts={query: "", item: ""} to train without, or give another folder'
        )
    return TextShape(pooling=model.pooling or described.pooling or "mean", dense=described.dense, prompts=prompts)


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"model.pretrained: {path} is not readable as JSON: {error}") from error


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a folder's JSON file. Raises ConfigError: it is missing, or not a JSON object."""
    found = _read_json(path)
    if not isinstance(found, dict):
        _refuse(path, "no settings")
    return found


def _setting(path: Path, settings: Mapping[str, Any], name: str, kind: type[T] | tuple[type[Any], ...], usual: T) -> T:
    """Return a setting of a file; `usual` if it is missing or null."""
    value = settings.get(name)
    if value is None:
        return usual
    if not isinstance(value, kind):
        _refuse(path, f"{name}: {value!r:.50}")
    return value


def _place(folder: Path, name: str) -> Path:
    """Return the folder of a module, which must be inside `folder`."""
    if not name.isprintable() or Path(name).is_absolute() or ".." in Path(name).parts:
        _refuse(folder / MODULES, f"a module in {name!r:.50}")
    return folder / name


def _refuse(path: Path, what: str) -> NoReturn:
    raise ConfigError(f"model.pretrained: {path} has {what}, which can't be honoured; {_WAY_OUT}")


def _name_of(folder: Path, kind: str) -> str:
    """Return the class name of a module; its package depends on the version of sentence-transformers."""
    if kind.startswith(_OWN_FAMILY):
        raise ConfigError(
            f"model.pretrained: {folder} is a release with feature interaction, which a new lineage can't begin with; "
            f"continue the lineage it is from, or {_WAY_OUT}"
        )
    name = kind.rpartition(".")[2]
    if not kind.startswith(_WHOLE_FAMILY) or name not in ("Transformer", "Pooling", "Dense", "Normalize"):
        _refuse(folder / MODULES, f"the module {kind}")
    return name


def _transformer(encoder: Path) -> tuple[int | None, bool]:
    """Return the maximum length of texts in tokens, None if not given, and True if texts are lower-cased."""
    path = next((encoder / name for name in _TRANSFORMER_FILES if (encoder / name).is_file()), None)
    settings = read_settings(path) if path is not None else {}
    if path is not None:
        for name, value in settings.items():
            if name not in _TRANSFORMER_KEYS and value not in (None, {}, []):
                _refuse(path, f"{name}: {value}")
        if (task := settings.get("transformer_task", "feature-extraction")) != "feature-extraction":
            _refuse(path, f"transformer_task: {task}")
        kinds: dict[str, Any] = _setting(path, settings, "modality_config", dict, {}) or {"text": {}}
        if set(kinds) != {"text"}:
            _refuse(path, f"modality_config for {', '.join(kinds)}")
    longest = settings.get("max_seq_length")
    if longest is None and (encoder / "tokenizer_config.json").is_file():
        longest = read_settings(encoder / "tokenizer_config.json").get("model_max_length")
    return (longest if isinstance(longest, int) else None), bool(settings.get("do_lower_case", False))


def _pooling(path: Path) -> tuple[Pooling, bool]:
    """Return the kind of pooling, and True if it includes the tokens of a prompt."""
    settings = read_settings(path)
    before = [name for key, name in _POOLING_KEYS.items() if settings.get(key)]
    modes = _setting(path, settings, "pooling_mode", (str, list), before)
    modes = [modes] if isinstance(modes, str) else [str(mode) for mode in modes] or ["mean"]
    if len(modes) > 1 or modes[0] not in _POOLINGS:
        _refuse(path, f"the pooling {' and '.join(modes):.50}, where one of {', '.join(_POOLINGS)} is expected")
    return _POOLINGS[modes[0]], bool(settings.get("include_prompt", True))


def _dense(path: Path) -> DenseShape:
    settings = read_settings(path)
    settings = {**settings, "module_output_name": settings.get("module_output_name") or "sentence_embedding"}
    for name, usual in {**_DENSE_DEFAULTS, "module_output_name": "sentence_embedding"}.items():
        if settings.get(name, usual) != usual:
            _refuse(path, f"{name}: {settings[name]}")
    function = settings.get("activation_function", "torch.nn.modules.activation.Tanh")
    name = str(function).rpartition(".")[2]
    if not str(function).startswith("torch.nn.") or name not in _ACTIVATIONS:
        _refuse(path, f"the activation {function}, where one of {', '.join(_ACTIVATIONS)} is expected")
    if missing := [width for width in ("in_features", "out_features") if not isinstance(settings.get(width), int)]:
        _refuse(path, f"no {missing[0]}")
    if not any((path.parent / weights).is_file() for weights in DENSE_WEIGHTS):
        raise ConfigError(f"model.pretrained: {path.parent} has no {DENSE_WEIGHTS[0]}")
    return DenseShape(
        inputs=settings["in_features"],
        outputs=settings["out_features"],
        bias=_setting(path, settings, "bias", bool, True),
        activation=_ACTIVATIONS[name],
    )


def _prompts(path: Path) -> tuple[Prompts, str | None]:
    """Return the prompts of queries and items; without these, the name of the default prompt for every text."""
    settings = read_settings(path) if path.is_file() else {}
    prompts: dict[str, str | None] = _setting(path, settings, "prompts", dict, {})
    for name in prompts:
        _setting(path, prompts, name, str, "")
    default = _setting(path, settings, "default_prompt_name", str, "") or None
    if default is not None and prompts.get(default) and not prompts.keys() & {*_QUERY_PROMPTS, *_ITEM_PROMPTS}:
        return _NO_PROMPTS, default
    query, item = (
        next((found for name in names if (found := prompts.get(name))), "") for names in (_QUERY_PROMPTS, _ITEM_PROMPTS)
    )
    return Prompts(query=query, item=item, by_entity=entities_of(prompts)), None
