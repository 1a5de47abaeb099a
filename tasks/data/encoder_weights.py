"""Do a folder's weights fit its encoder? The tensors of each kind of encoder, and the comparison with the stored ones.

A loader that fills missing tensors with random numbers makes a model that nobody trained, and no error says so.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tasks.data.pretrained import kind_of, read_settings
from tasks.data.weight_files import Tensor, read_tensors
from tasks.foundation.errors import ConfigError

# Each line: a tensor, then its shape. `#` is a layer's number; {a,b} are alternatives; `.*` is a weight and its bias,
# whose length is the weight's first number; `?key` is a bias that exists if config.json sets `key`. Letters are sizes:
# V tokens, P positions, T segments, E width of the table, H hidden, I intermediate, Q and K widths of queries and keys,
# D width of a head, A heads, B buckets. From the models in transformers 5; a test compares them.
_BERT_LAYERS = """
    encoder.layer.#.attention.self.{query,key,value}.* H H
    encoder.layer.#.attention.output.dense.* H H
    encoder.layer.#.attention.output.LayerNorm.* H
    encoder.layer.#.intermediate.dense.* I H
    encoder.layer.#.output.dense.* H I
    encoder.layer.#.output.LayerNorm.* H
"""
_BERT = f"""
    embeddings.word_embeddings.weight V E
    embeddings.position_embeddings.weight P E
    embeddings.token_type_embeddings.weight T E
    embeddings.LayerNorm.* E
    {_BERT_LAYERS}
"""
_DISTILBERT = """
    embeddings.word_embeddings.weight V E
    embeddings.position_embeddings.weight P E
    embeddings.LayerNorm.* E
    transformer.layer.#.attention.{q_lin,k_lin,v_lin,out_lin}.* H H
    transformer.layer.#.{sa_layer_norm,output_layer_norm}.* H
    transformer.layer.#.ffn.lin1.* I H
    transformer.layer.#.ffn.lin2.* H I
"""
_MPNET = """
    embeddings.word_embeddings.weight V E
    embeddings.position_embeddings.weight P E
    embeddings.LayerNorm.* E
    encoder.layer.#.attention.attn.{q,k,v,o}.* H H
    encoder.layer.#.attention.LayerNorm.* H
    encoder.layer.#.intermediate.dense.* I H
    encoder.layer.#.output.dense.* H I
    encoder.layer.#.output.LayerNorm.* H
    encoder.relative_attention_bias.weight B A
"""
_MODERNBERT = """
    embeddings.tok_embeddings.weight V E
    embeddings.norm.weight E ?norm_bias
    layers.#.attn.Wqkv.weight 3H H ?attention_bias
    layers.#.attn.Wo.weight H H ?attention_bias
    layers.#.mlp_norm.weight H ?norm_bias
    layers.#.mlp.Wi.weight 2I H ?mlp_bias
    layers.#.mlp.Wo.weight H I ?mlp_bias
    final_norm.weight H ?norm_bias
"""
_DECODER = """
    embed_tokens.weight V E
    layers.#.self_attn.o_proj.weight H Q ?attention_bias
    layers.#.{input_layernorm,post_attention_layernorm}.weight H
    layers.#.mlp.{gate_proj,up_proj}.weight I H
    layers.#.mlp.down_proj.weight H I
    norm.weight H
"""
_KEYS_AND_QUERIES = """
    layers.#.self_attn.q_proj.weight Q H ?attention_bias
    layers.#.self_attn.{k_proj,v_proj}.weight K H ?attention_bias
"""
_HEAD_NORMS = """
    layers.#.self_attn.{q_norm,k_norm}.weight D
"""
TENSORS = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "distilbert": _DISTILBERT,
    "mpnet": _MPNET,
    "modernbert": _MODERNBERT,
    "llama": re.sub(r"(mlp.*)", r"\1 ?mlp_bias", _DECODER) + _KEYS_AND_QUERIES,
    "qwen2": _DECODER.replace("H Q ?attention_bias", "H Q")
    + """
    layers.#.self_attn.q_proj.* Q H
    layers.#.self_attn.{k_proj,v_proj}.* K H
    """,
    "qwen3": _DECODER + _KEYS_AND_QUERIES + _HEAD_NORMS,
    "gemma3_text": _DECODER
    + _KEYS_AND_QUERIES
    + _HEAD_NORMS
    + """
    layers.#.{pre_feedforward_layernorm,post_feedforward_layernorm}.weight H
    """,
}
# Tensors of a task, or numbers that the library computes itself: their absence or presence changes no vector.
OF_A_TASK = re.compile(
    r"(pooler|cls|classifier|pre_classifier|classification_head|lm_head|qa_outputs|score|head|decoder|logit_scale|"
    r"discriminator_predictions|generator_predictions|generator_lm_head|predictions|"
    r"vocab_(transform|layer_norm|projector))\.|(.*\.)?(position_ids|token_type_ids|rotary_emb\..*|inv_freq|masked_bias)$"
)
_OLD_NAMES = {"gamma": "weight", "beta": "bias"}  # a LayerNorm's in files that were converted from TensorFlow
_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_FLOATS = {"F64", "F32", "F16", "BF16"}
_MOST_NAMED = 3


class Taken(NamedTuple):
    """Weights that fit: the number of tensors, and the prefix of their names in the files, as in `0.auto_model.`."""

    tensors: int
    prefix: str


def check_weights(encoder: Path) -> Taken | None:
    """Check, by headers alone, that a folder's weights fit its encoder; None if its files have no headers.

    Raises:
        ConfigError: a tensor is missing, has another shape or belongs to no part of the encoder; the tokenizer has more
            tokens than the table; the weights are quantised or an adapter; config.json asks for other arithmetic.
            Names the tensors, counts the fitting ones, and gives the way out.
    """
    facts = read_settings(encoder / "config.json")
    check_arithmetic(encoder, facts)
    for name in _ADAPTERS:
        if (encoder / name).is_file():
            raise ConfigError(
                f"model.pretrained: {encoder} has {name}, an adapter beside or without its base model; merge them "
                "(merge_and_unload() of peft), save the result with save_pretrained, and give that folder"
            )
    stored = read_tensors(encoder)
    if stored is None:
        return None
    taken = fit(encoder, facts, stored)
    _check_tokens(encoder, stored, taken.prefix, facts)
    return taken


def check_arithmetic(encoder: Path, facts: Mapping[str, Any]) -> None:
    """Raise ConfigError if a setting of config.json asks for other arithmetic than the encoder's kind has here."""
    kind, path = kind_of(facts.get("model_type")), encoder / "config.json"
    asked: dict[str, str] = {}
    if isinstance(own := facts.get("auto_map"), Mapping) and "AutoModel" in own:
        asked["auto_map"] = f"code of its own ({own['AutoModel']}), which is never run"
    for key in ("quantization_config", "compression_config"):
        if facts.get(key):
            asked[key] = "quantised weights, which can't be trained; give the folder with the full weights"
    if (positions := facts.get("position_embedding_type")) not in (None, "absolute"):
        asked["position_embedding_type"] = f"positions of the kind {positions}"
    causal = facts.get("is_causal")
    if isinstance(causal, bool) and causal != kind.causal:
        asked["is_causal"] = "tokens that don't see later ones" if causal else "tokens that see later ones"
    if facts.get("is_decoder") and not kind.decoder:
        asked["is_decoder"] = "tokens that don't see later ones"
    if facts.get("model_type") != "gemma3_text" and facts.get("use_bidirectional_attention") and kind.causal:
        asked["use_bidirectional_attention"] = "tokens that see later ones"
    if asked:
        key, meaning = next(iter(asked.items()))
        raise ConfigError(
            f"model.pretrained: {path} has {key}: {meaning}. The {facts.get('model_type')} of transformers computes "
            f"otherwise, so its vectors would not be this model's; give another folder, or, if {key} changes no "
            f"number, a copy of this one without it"
        )


def fit(encoder: Path, facts: Mapping[str, Any], stored: Mapping[str, Tensor]) -> Taken:
    """Return the number of tensors, and their prefix. Raises ConfigError: the weights don't fit; names the tensors."""
    expected = dict(expected_tensors(facts))
    anchor = next(iter(expected))  # the table of tokens
    prefixes = sorted({name.removesuffix(anchor) for name in stored if name == anchor or name.endswith(f".{anchor}")})
    found = [_compare(expected, stored, prefix) for prefix in prefixes or [""]]
    if len(whole := [each.prefix for each in found if each.taken == len(expected)]) > 1:
        raise ConfigError(
            f"model.pretrained: {encoder} has several encoders that fit, under {' and '.join(whole)}; save the one to "
            "begin with by save_pretrained, and give that folder"
        )
    best = max(found, key=lambda each: each.taken)
    if best.wrong:
        raise ConfigError(
            f"model.pretrained: {best.taken} of the {len(expected)} tensors of the {facts.get('model_type')} that "
            f"{encoder / 'config.json'} describes are in {encoder}: {'; '.join(best.wrong)}. The rest would be random "
            "numbers, or parts of the model be left out; give a folder that save_pretrained wrote, with its own "
            "config.json"
        )
    return Taken(best.taken, best.prefix)


def renamed(name: str) -> str:
    """Return today's name of a tensor with an older one: `LayerNorm.gamma` is `LayerNorm.weight`."""
    before, _, last = name.rpartition(".")
    return f"{before}.{_OLD_NAMES[last]}" if last in _OLD_NAMES and before.endswith("LayerNorm") else name


class _Compared(NamedTuple):
    prefix: str
    taken: int
    wrong: tuple[str, ...]  # sentences


def _compare(expected: Mapping[str, tuple[int | None, ...]], stored: Mapping[str, Tensor], prefix: str) -> _Compared:
    own = {renamed(name.removeprefix(prefix)): each for name, each in stored.items() if name.startswith(prefix)}
    others = [name for name in stored if not name.startswith(prefix)]
    missing = [name for name in expected if name not in own]
    misshapen = [
        f"{prefix}{name} has {_shape(own[name].shape)} instead of {_shape(shape)}"
        for name, shape in expected.items()
        if name in own and not _alike(own[name].shape, shape)
    ]
    packed = [name for name in expected if name in own and own[name].kind not in _FLOATS]
    left = [name for name in (*(n for n in own if n not in expected), *others) if not OF_A_TASK.match(name)]
    wrong = []
    if missing:
        wrong.append(f"missing are {_some(missing)}")
    if misshapen:
        wrong.append(_some(misshapen))
    if packed:
        wrong.append(f"{_some(packed)} hold whole numbers ({own[packed[0]].kind}), as quantised weights do")
    if left:
        wrong.append(f"no part of it are {_some(left)}")
    fits = sum(name in own and _alike(own[name].shape, shape) for name, shape in expected.items())
    return _Compared(prefix, fits, tuple(wrong))


def _some(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _alike(there: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    return len(there) == len(wanted) and all(w in (None, t) for t, w in zip(there, wanted, strict=True))


def _shape(numbers: Iterable[int | None]) -> str:
    return " x ".join("?" if number is None else f"{number:,}" for number in numbers)


def expected_tensors(facts: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Yield name and shape of each tensor of the encoder that a config.json describes, the table of tokens first.

    None stands for a size that config.json leaves to the library's default.
    """
    kind = str(facts.get("model_type"))
    sizes, layers = _sizes(facts), _number(facts, "num_hidden_layers", "n_layers") or 0
    lines = [line.split() for line in TENSORS[kind].splitlines() if line.strip()]
    for template, *rest in lines:
        shape = tuple(_size(each, sizes) for each in rest if not each.startswith("?"))
        flag = next((each[1:] for each in rest if each.startswith("?")), "")
        for name in _names(template, layers):
            if name.endswith(".*"):
                yield f"{name[:-1]}weight", shape
                yield f"{name[:-1]}bias", shape[:1]
                continue
            yield name, shape
            if flag and facts.get(flag):
                yield f"{name.removesuffix('weight')}bias", shape[:1]
    if kind == "modernbert":  # the first layer has no norm before its attention
        for number in range(1, layers):
            yield f"layers.{number}.attn_norm.weight", (sizes["H"],)
            if facts.get("norm_bias"):
                yield f"layers.{number}.attn_norm.bias", (sizes["H"],)
    if kind == "electra" and sizes["E"] != sizes["H"]:
        yield "embeddings_project.weight", (sizes["H"], sizes["E"])
        yield "embeddings_project.bias", (sizes["H"],)


def _names(template: str, layers: int) -> Iterator[str]:
    before, some, after = template.partition("{")
    inside, _, after = after.partition("}") if some else ("", "", "")
    for alternative in inside.split(",") if some else [""]:
        name = f"{before}{alternative}{after}"
        yield from (name.replace("#", str(number)) for number in range(layers)) if "#" in name else (name,)


def _number(facts: Mapping[str, Any], *names: str) -> int | None:
    return next((facts[name] for name in names if isinstance(facts.get(name), int)), None)


def _sizes(facts: Mapping[str, Any]) -> dict[str, int | None]:
    hidden, heads = _number(facts, "hidden_size", "dim"), _number(facts, "num_attention_heads", "n_heads")
    of_head = _number(facts, "head_dim")
    if of_head is None and hidden and heads and facts.get("model_type") in ("llama", "qwen2"):
        of_head = hidden // heads
    groups = _number(facts, "num_key_value_heads")
    if groups is None and facts.get("model_type") == "llama":
        groups = heads
    return {
        "V": _number(facts, "vocab_size"),
        "P": _number(facts, "max_position_embeddings"),
        "T": _number(facts, "type_vocab_size"),
        "E": _number(facts, "embedding_size") if facts.get("model_type") == "electra" else hidden,
        "H": hidden,
        "I": _number(facts, "hidden_dim" if facts.get("model_type") == "distilbert" else "intermediate_size"),
        "Q": heads * of_head if heads and of_head else None,
        "K": groups * of_head if groups and of_head else None,
        "D": of_head,
        "A": heads,
        "B": _number(facts, "relative_attention_num_buckets"),
    }


def _size(text: str, sizes: Mapping[str, int | None]) -> int | None:
    times, letter = int(text[:-1] or 1), text[-1]
    size = sizes[letter]
    return None if size is None else times * size


def _check_tokens(encoder: Path, stored: Mapping[str, Tensor], prefix: str, facts: Mapping[str, Any]) -> None:
    """Raise ConfigError if the tokenizer gives an id that the table of tokens has no row for."""
    rows = stored[prefix + next(iter(dict(expected_tensors(facts))))].shape[0]
    path = encoder / "tokenizer.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = content["model"].get("vocab", {})
        most = max(vocabulary.values(), default=-1) if isinstance(vocabulary, dict) else len(vocabulary) - 1
        added = [int(each["id"]) for each in content.get("added_tokens") or ()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"model.pretrained: {path} is not readable as a tokenizer: {error}") from error
    if (tokens := max([most, *added]) + 1) > rows:
        raise ConfigError(
            f"model.pretrained: the tokenizer of {encoder} has {tokens:,} tokens, and the model's table has {rows:,} "
            "rows, so a text with one of the last tokens would end a run; give the tokenizer that the model was "
            "trained with, or resize the table (resize_token_embeddings) and save the model again"
        )
