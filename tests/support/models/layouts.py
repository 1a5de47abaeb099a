"""Folders laid out as much-used embedding models are published: files, keys and tokenizers as theirs, weights tiny.

Config and tokenizer files have the keys and values of the published ones, apart from sizes; vocabularies are small and
made here, by models and normalizers of the same kinds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModel

from tests.support.models.layout_tokenizers import BERT, bert, gemma, modern, mpnet, qwen, sentence_pieces

WIDTH = 32
_POOLING = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
_NEWER = ("weightedmean_tokens", "lasttoken")


class Layout(NamedTuple):
    """A published folder.

    `config` is config.json without vocab_size, and with tokens where it has their numbers; `tokenizer` makes
    tokenizer.json; `settings` is tokenizer_config.json, `special` special_tokens_map.json, `length`
    sentence_bert_config.json, `texts` config_sentence_transformers.json, `dense` the config.json of each dense layer.
    """

    config: dict[str, Any]
    tokenizer: Callable[[], Tokenizer]
    settings: dict[str, Any]
    special: dict[str, Any]
    pooling: str = "mean_tokens"
    pooling_keys: tuple[str, ...] = _POOLING
    length: dict[str, Any] | None = None
    texts: dict[str, Any] | None = None
    dense: tuple[dict[str, Any], ...] = ()


def write_layout(name: str, folder: Path) -> Path:
    """Write the folder with random weights, always the same; return it."""
    layout = LAYOUTS[name]
    folder.mkdir(parents=True)
    tokenizer = layout.tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    numbers = {
        key: tokenizer.token_to_id(value)
        for key, value in layout.config.items()
        if key.endswith("_token_id") and isinstance(value, str)
    }
    _write(folder / "config.json", layout.config | numbers | {"vocab_size": tokenizer.get_vocab_size()})
    _write(folder / "tokenizer_config.json", layout.settings)
    _write(folder / "special_tokens_map.json", layout.special)
    for file, content in (
        ("sentence_bert_config.json", layout.length),
        ("config_sentence_transformers.json", layout.texts),
    ):
        if content is not None:
            _write(folder / file, content)
    torch.manual_seed(3)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config.dtype = torch.float32
    encoder = AutoModel.from_config(config)
    for weight in encoder.parameters():  # so large that texts differ, and so that each part of a layer counts
        torch.nn.init.normal_(weight, std=0.5) if weight.dim() > 1 else weight.data.add_(0.2 * torch.randn(len(weight)))
    kind = getattr(torch, layout.config.get("torch_dtype", "float32"))
    weights = {name: each.to(kind).clone() for name, each in encoder.state_dict().items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write_modules(layout, folder)
    return folder


def _write_modules(layout: Layout, folder: Path) -> None:
    names = ["", "1_Pooling", *(f"{number}_Dense" for number, _ in enumerate(layout.dense, start=2))]
    names.append(f"{len(names)}_Normalize")
    modules = [
        {
            "idx": number,
            "name": str(number),
            "path": name,
            "type": f"sentence_transformers.models.{name.partition('_')[2] or 'Transformer'}",
        }
        for number, name in enumerate(names)
    ]
    _write(folder / "modules.json", modules)
    keys = {f"pooling_mode_{key}": key == layout.pooling for key in layout.pooling_keys}
    more = {"include_prompt": True} if layout.pooling_keys != _POOLING else {}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": WIDTH, **keys, **more})
    for number, settings in enumerate(layout.dense, start=2):
        _write(folder / f"{number}_Dense" / "config.json", settings)
        made = torch.nn.Linear(settings["in_features"], settings["out_features"], bias=settings["bias"])
        weights = {f"linear.{name}": value.detach().clone() for name, value in made.named_parameters()}
        save_file(weights, folder / f"{number}_Dense" / "model.safetensors")


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2))


# --- config.json and the files of the tokenizers ------------------------------------------------------------------


def _bert_config(**more: Any) -> dict[str, Any]:
    return {
        "architectures": ["BertModel"], "attention_probs_dropout_prob": 0.1, "classifier_dropout": None,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": WIDTH, "initializer_range": 0.02,
        "intermediate_size": 64, "layer_norm_eps": 1e-12, "max_position_embeddings": 64, "model_type": "bert",
        "num_attention_heads": 2, "num_hidden_layers": 2, "pad_token_id": 0, "position_embedding_type": "absolute",
        "type_vocab_size": 2, "use_cache": True, **more,
    }  # fmt: skip


def _token(content: str, **more: Any) -> dict[str, Any]:
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, **more}


def _decoder(names: tuple[str, ...], first: int = 0) -> dict[str, Any]:
    return {str(first + number): _token(name, special=True) for number, name in enumerate(names)}


_BERT_ROLES = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
_BERT_OLD = {
    "do_lower_case": True, **_BERT_ROLES, "tokenize_chinese_chars": True, "strip_accents": None,
    "name_or_path": "somebody/base-uncased", "do_basic_tokenize": True, "never_split": None,
    "tokenizer_class": "BertTokenizer", "model_max_length": 512,
}  # fmt: skip
_BERT_NEW = {
    "added_tokens_decoder": _decoder(BERT), "clean_up_tokenization_spaces": True, "do_basic_tokenize": True,
    "do_lower_case": True, "model_max_length": 512, "never_split": None, "strip_accents": None,
    "tokenize_chinese_chars": True, "tokenizer_class": "BertTokenizer", **_BERT_ROLES,
}  # fmt: skip
_ROBERTA_ROLES = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "pad_token": "<pad>",
}
_VERSIONS = {"__version__": {"sentence_transformers": "2.2.2", "transformers": "4.28.1", "pytorch": "1.13.0"}}
_CUT = {"max_seq_length": 48, "do_lower_case": False}


def _dense(inputs: int, outputs: int, activation: str, bias: bool) -> dict[str, Any]:
    return {"in_features": inputs, "out_features": outputs, "bias": bias, "activation_function": activation}


LAYOUTS = {
    "all-MiniLM-L6-v2": Layout(
        config=_bert_config(gradient_checkpointing=False, transformers_version="4.8.2"),
        tokenizer=bert(trained=True), settings=_BERT_OLD, special=_BERT_ROLES, length=_CUT, texts=_VERSIONS,
    ),
    "all-mpnet-base-v2": Layout(
        config={
            "architectures": ["MPNetForMaskedLM"], "attention_probs_dropout_prob": 0.1, "bos_token_id": 0,
            "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "hidden_size": WIDTH,
            "initializer_range": 0.02, "intermediate_size": 64, "layer_norm_eps": 1e-05,
            "max_position_embeddings": 66, "model_type": "mpnet", "num_attention_heads": 2, "num_hidden_layers": 2,
            "pad_token_id": 1, "relative_attention_num_buckets": 32, "transformers_version": "4.8.2",
        },
        tokenizer=mpnet,
        settings={
            "do_lower_case": True, **_ROBERTA_ROLES, "unk_token": "[UNK]", "mask_token": "<mask>",
            "tokenize_chinese_chars": True, "strip_accents": None, "model_max_length": 512,
            "special_tokens_map_file": None, "name_or_path": "microsoft/mpnet-base",
            "tokenizer_class": "MPNetTokenizer",
        },
        special={**_ROBERTA_ROLES, "unk_token": "[UNK]", "mask_token": _token("<mask>", lstrip=True)},
        length=_CUT, texts=_VERSIONS,
    ),
    "bge-small-en-v1.5": Layout(
        config=_bert_config(id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0}, torch_dtype="float32"),
        tokenizer=bert(), settings=_BERT_NEW, special=_BERT_ROLES, pooling="cls_token",
        length={"max_seq_length": 48, "do_lower_case": True}, texts=_VERSIONS,
    ),
    "gte-base": Layout(
        config=_bert_config(torch_dtype="float16"),
        tokenizer=bert(),
        settings={key: value for key, value in _BERT_OLD.items() if key not in ("never_split", "name_or_path")},
        special=_BERT_ROLES, length=_CUT,
    ),
    "e5-base-v2": Layout(
        config=_bert_config(torch_dtype="float32"), tokenizer=bert(), settings=_BERT_NEW, special=_BERT_ROLES,
        length=_CUT,
    ),
    "multilingual-e5-small": Layout(
        config=_bert_config(tokenizer_class="XLMRobertaTokenizer", torch_dtype="float32"),
        tokenizer=sentence_pieces,
        settings={
            **_ROBERTA_ROLES, "mask_token": _token("<mask>", lstrip=True, normalized=True, __type="AddedToken"),
            "unk_token": "<unk>", "model_max_length": 512, "clean_up_tokenization_spaces": True,
            "sp_model_kwargs": {}, "tokenizer_class": "XLMRobertaTokenizer",
        },
        special={**_ROBERTA_ROLES, "unk_token": "<unk>", "mask_token": _token("<mask>", lstrip=True)},
        length=_CUT,
    ),
    "LaBSE": Layout(
        config=_bert_config(directionality="bidi", gradient_checkpointing=False, pooler_type="first_token_transform"),
        tokenizer=bert(lower=False), settings={**_BERT_OLD, "do_lower_case": False}, special=_BERT_ROLES,
        pooling="cls_token", length=_CUT, texts=_VERSIONS,
        dense=(_dense(WIDTH, WIDTH, "torch.nn.modules.activation.Tanh", bias=True),),
    ),
    "Qwen3-Embedding-0.6B": Layout(
        config={
            "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": "<|endoftext|>", "eos_token_id": "<|endoftext|>", "head_dim": 16, "hidden_act": "silu",
            "hidden_size": WIDTH, "initializer_range": 0.02, "intermediate_size": 64, "max_position_embeddings": 64,
            "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 4, "num_hidden_layers": 2,
            "num_key_value_heads": 2, "pad_token_id": None, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
            "use_cache": True, "use_sliding_window": False,
        },
        tokenizer=qwen,
        settings={
            "add_bos_token": False, "add_prefix_space": False,
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "bos_token": None,
            "chat_template": "{{ messages[0].content }}", "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 131072, "padding_side": "left",
            "pad_token": "<|endoftext|>", "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        },
        special={
            "additional_special_tokens": ["<|im_start|>", "<|im_end|>"], "eos_token": _token("<|im_end|>"),
            "pad_token": _token("<|endoftext|>"),
        },
        pooling="lasttoken", pooling_keys=(*_POOLING, *_NEWER),
        texts={
            "prompts": {"query": "Instruct: Given a web search query\nQuery:", "document": ""},
            "default_prompt_name": None, "similarity_fn_name": "cosine",
        },
    ),
    "modernbert-embed-base": Layout(
        config={
            "architectures": ["ModernBertModel"], "attention_bias": False, "attention_dropout": 0.0,
            "bos_token_id": "[CLS]", "classifier_activation": "gelu", "classifier_bias": False,
            "classifier_dropout": 0.0, "classifier_pooling": "mean", "cls_token_id": "[CLS]", "decoder_bias": True,
            "deterministic_flash_attn": False, "embedding_dropout": 0.0, "eos_token_id": "[SEP]",
            "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "gradient_checkpointing": False,
            "hidden_activation": "gelu", "hidden_size": WIDTH, "initializer_cutoff_factor": 2.0,
            "initializer_range": 0.02, "intermediate_size": 48, "layer_norm_eps": 1e-05, "local_attention": 8,
            "local_rope_theta": 10000.0, "max_position_embeddings": 64, "mlp_bias": False, "mlp_dropout": 0.0,
            "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 2,
            "num_hidden_layers": 4, "pad_token_id": "[PAD]", "position_embedding_type": "absolute",
            "reference_compile": False, "sep_token_id": "[SEP]", "sparse_pred_ignore_index": -100,
            "sparse_prediction": False, "torch_dtype": "float32",
        },
        tokenizer=modern,
        settings={
            "clean_up_tokenization_spaces": True, **_BERT_ROLES, "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": 8192, "tokenizer_class": "PreTrainedTokenizerFast",
        },
        special={role: _token(name) for role, name in _BERT_ROLES.items()},
        pooling_keys=(*_POOLING, *_NEWER), length=_CUT, texts={**_VERSIONS, "prompts": {}, "default_prompt_name": None},
    ),
    "embeddinggemma-300m": Layout(
        config={
            "_sliding_window_pattern": 6, "architectures": ["Gemma3TextModel"], "attention_bias": False,
            "attention_dropout": 0.0, "attn_logit_softcapping": None, "bos_token_id": 2, "dtype": "float32",
            "eos_token_id": 1, "final_logit_softcapping": None, "head_dim": 16,
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": WIDTH, "initializer_range": 0.02,
            "intermediate_size": 48, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "max_position_embeddings": 64, "model_type": "gemma3_text", "num_attention_heads": 2,
            "num_hidden_layers": 3, "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 16,
            "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000.0, "rope_scaling": None, "rope_theta": 1000000.0,
            "sliding_window": 8, "use_bidirectional_attention": True, "use_cache": True,
        },
        tokenizer=gemma,
        settings={
            "add_bos_token": True, "add_eos_token": True, "bos_token": "<bos>",
            "clean_up_tokenization_spaces": False, "eos_token": "<eos>", "extra_special_tokens": {},
            "mask_token": "<mask>", "model_max_length": 2048, "pad_token": "<pad>", "padding_side": "right",
            "sp_model_kwargs": None, "spaces_between_special_tokens": False, "tokenizer_class": "GemmaTokenizer",
            "unk_token": "<unk>", "use_default_system_prompt": False,
        },
        special={"bos_token": _token("<bos>"), "eos_token": "<eos>", "pad_token": _token("<pad>")},
        pooling_keys=(*_POOLING, *_NEWER), length=_CUT,
        texts={
            "prompts": {
                "query": "task: search result | query: ", "document": "title: none | text: ",
                "Clustering": "task: clustering | query: ",
            },
            "default_prompt_name": None, "similarity_fn_name": "cosine",
        },
        dense=(
            _dense(WIDTH, 4 * WIDTH, "torch.nn.modules.linear.Identity", bias=False),
            _dense(4 * WIDTH, WIDTH, "torch.nn.modules.linear.Identity", bias=False),
        ),
    ),
}  # fmt: skip
# What a user of these says, since their folders don't.
PROMPTS = {
    "e5-base-v2": 'model.prompts={query: "query: ", item: "passage: "}',
    "multilingual-e5-small": 'model.prompts={query: "query: ", item: "passage: "}',
    "modernbert-embed-base": 'model.prompts={query: "search query: ", item: "search document: "}',
}


def settings_for(name: str, folder: Path) -> Iterator[str]:
    """Settings of a lineage that begins with a layout's folder."""
    yield f"model.pretrained={folder}"
    yield "model.scratch=null"
    if name in PROMPTS:
        yield PROMPTS[name]
