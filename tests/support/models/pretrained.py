"""Pretrained folders with tiny random encoders, written by sentence-transformers itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer
from sentence_transformers.sentence_transformer.modules.pooling import PoolingMode
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoModel,
    BertConfig,
    DistilBertConfig,
    MPNetConfig,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    XLMRobertaConfig,
)

from tests.support.workspace.jobs import COLOURS, THINGS

TOKENS = 48  # where the folders cut texts
PROMPTS = {"query": "query: ", "passage": "passage: "}
_WIDTH = 32
_SIZES: dict[str, Any] = {
    "hidden_size": _WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "initializer_range": 0.5,
}  # fmt: skip
_BERT, _ROBERTA = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


class Kind(NamedTuple):
    """What is in a folder. `dense` is the module's class of activation."""

    encoder: str = "bert"
    pooling: PoolingMode = "mean"
    dense: type[torch.nn.Module] | None = None
    normalize: bool = True
    prompts: dict[str, str] = {}  # noqa: RUF012, never changed
    old_layout: bool = False
    lower_case: bool = False  # of the old layout; since version 6 the tokenizer does it


KINDS = {
    "cls": Kind(pooling="cls", prompts={"query": "Find the thing for: "}),
    "tanh": Kind(dense=torch.nn.Tanh, normalize=False),
    "identity": Kind(dense=torch.nn.Identity, old_layout=True),
    "xlm-roberta": Kind(encoder="xlm-roberta", prompts=PROMPTS, old_layout=True),
    "mpnet": Kind(encoder="mpnet"),
    "distilbert": Kind(encoder="distilbert", old_layout=True, lower_case=True),
    "last": Kind(encoder="qwen2", pooling="lasttoken"),
}


def write_pretrained(kind: Kind, folder: Path) -> Path:
    """Write a folder with random weights, always the same; return it."""
    torch.manual_seed(3)
    plain = folder.with_name(f"{folder.name}-plain")
    names = _ROBERTA if kind.encoder in ("xlm-roberta", "mpnet") else _BERT
    tokenizer = _tokenizer(names)
    AutoModel.from_config(_config(kind.encoder, tokenizer, names)).save_pretrained(plain)
    roles = dict(zip(("cls", "pad", "sep", "unk", "mask"), _ROBERTA, strict=True)) if names is _ROBERTA else {
        "pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"
    }  # fmt: skip
    special = {f"{role}_token": name for role, name in roles.items()}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=TOKENS, **special).save_pretrained(plain)
    modules: list[Any] = [Transformer(str(plain)), Pooling(_WIDTH, kind.pooling)]
    if kind.dense is not None:
        modules.append(Dense(_WIDTH, 24, activation_function=kind.dense()))
    if kind.normalize:
        modules.append(Normalize())
    SentenceTransformer(modules=modules, device="cpu", prompts=kind.prompts).save_pretrained(
        str(folder), create_model_card=False
    )
    if kind.old_layout:
        _as_before_version_6(kind, folder)
    return folder


def _as_before_version_6(kind: Kind, folder: Path) -> None:
    """Rewrite what a folder says."""
    modules = json.loads((folder / "modules.json").read_text())
    for module in modules:
        module["type"] = "sentence_transformers.models." + module["type"].rpartition(".")[2]
    (folder / "modules.json").write_text(json.dumps(modules))
    pooling = folder / "1_Pooling" / "config.json"
    keys = {"mean": "mean_tokens", "cls": "cls_token", "lasttoken": "lasttoken"}
    old = {f"pooling_mode_{name}": kind.pooling == new for new, name in keys.items()}
    pooling.write_text(json.dumps({"word_embedding_dimension": _WIDTH, **old}))
    settings = {"max_seq_length": TOKENS, "do_lower_case": kind.lower_case}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": kind.prompts}))


def _config(encoder: str, tokenizer: Tokenizer, names: tuple[str, ...]) -> PretrainedConfig:
    sizes = {**_SIZES, "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 64}
    if encoder == "xlm-roberta":
        return XLMRobertaConfig(**sizes, pad_token_id=names.index("<pad>"))
    if encoder == "mpnet":
        return MPNetConfig(**sizes, pad_token_id=names.index("<pad>"))
    if encoder == "qwen2":
        sizes["vocab_size"] += 1  # the library's tokenizer of this kind adds <|endoftext|>
        return Qwen2Config(**sizes, num_key_value_heads=1, pad_token_id=0)
    if encoder == "distilbert":
        return DistilBertConfig(
            vocab_size=sizes["vocab_size"], dim=_WIDTH, n_layers=2, n_heads=2, hidden_dim=64,
            max_position_embeddings=64, initializer_range=0.5,
        )  # fmt: skip
    return BertConfig(**sizes)


def _tokenizer(names: tuple[str, ...]) -> Tokenizer:
    """A byte-pair tokenizer that knows capitals, of a few words."""
    unknown = next(name for name in names if "unk" in name.lower())
    tokenizer = Tokenizer(BPE(unk_token=unknown))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words = [*COLOURS, *THINGS, *PROMPTS, "Find the thing for", "want a please now model", "Red Lamp CHAIR"]
    tokenizer.train_from_iterator(
        [*words, "0123456789 abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ : -"],
        BpeTrainer(vocab_size=250, special_tokens=list(names), show_progress=False),
    )
    first, last = ("<s>", "</s>") if "<s>" in names else ("[CLS]", "[SEP]")
    ends = [(name, names.index(name)) for name in (first, last)]
    tokenizer.post_processor = TemplateProcessing(single=f"{first} $A {last}", special_tokens=ends)
    return tokenizer
