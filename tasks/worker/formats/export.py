"""A model as a folder that sentence-transformers and transformers load without changes.

The layout is sentence-transformers' own: encoder and tokenizer at the top, one folder per module, modules.json.
"""

import inspect
import json
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast

from configs.schema.config import Config
from tasks.worker.formats.head import write_head
from tasks.worker.model import features, interaction, released_modules
from tasks.worker.training.checkpoint import ModelParts

_LIBRARY = "sentence_transformers.models"
# The names of special tokens: BERT's family, then RoBERTa's.
_SPECIAL = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def export_model(parts: ModelParts, config: Config, version: str, folder: Path) -> None:
    """Write the model to the empty `folder`; a classification head is a folder in it, not part of the embedding."""
    model = parts.model
    longest = config.infer.max_tokens
    model.encoder.save_pretrained(folder)
    _tokenizer(parts.tokenizer, longest).save_pretrained(folder)
    modules = [_entry(0, "", f"{_LIBRARY}.Transformer"), _entry(1, "1_Pooling", f"{_LIBRARY}.Pooling")]
    text_width = model.encoder.config.hidden_size
    mode = "mean_tokens" if model.shape.pooling == "mean" else "cls_token"
    pooling = {f"pooling_mode_{name}": name == mode for name in ("cls_token", "mean_tokens", "max_tokens")}
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": text_width, **pooling})
    if model.interaction is not None:
        modules[0]["type"] = "released_modules.FeatureTransformer"
        modules.append(_entry(2, "2_Interaction", "released_modules.FeatureInteraction"))
        _write_interaction(parts, folder)
    elif model.projection is not None:
        modules.append(_entry(2, "2_Dense", f"{_LIBRARY}.Dense"))
        _write_projection(model.projection, folder / "2_Dense")
    modules.append(_entry(len(modules), f"{len(modules)}_Normalize", f"{_LIBRARY}.Normalize"))
    (folder / f"{len(modules) - 1}_Normalize").mkdir()
    _write_json(folder / "modules.json", modules)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    _write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    write_head(model, config.heads.classification, folder)
    _write_json(folder / "millrace.json", {"model_version": version, "config": config.tree()})


def _entry(index: int, path: str, kind: str) -> dict[str, Any]:
    return {"idx": index, "name": str(index), "path": path, "type": kind}


def _tokenizer(tokenizer: Tokenizer, longest: int) -> PreTrainedTokenizerFast:
    vocabulary = tokenizer.get_vocab()
    special = {role: name for role, names in _SPECIAL.items() for name in names if name in vocabulary}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=longest, **special)


def _write_interaction(parts: ModelParts, folder: Path) -> None:
    model = parts.model
    assert model.interaction is not None
    assert model.shape.interaction is not None
    _write_json(folder / "2_Interaction" / "config.json", model.shape.interaction.model_dump())
    weights = {name: value.cpu().contiguous() for name, value in model.interaction.state_dict().items()}
    save_file(weights, folder / "2_Interaction" / "model.safetensors")
    (folder / features.FILE).write_bytes(parts.features.to_json())
    for module in (interaction, released_modules):
        shutil.copyfile(inspect.getfile(module), folder / Path(inspect.getfile(module)).name)


def _write_projection(projection: nn.Linear, folder: Path) -> None:
    settings = {
        "in_features": projection.in_features,
        "out_features": projection.out_features,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    _write_json(folder / "config.json", settings)
    save_file({"linear.weight": projection.weight.detach().cpu().contiguous()}, folder / "model.safetensors")


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")
