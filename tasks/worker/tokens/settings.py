"""A tokenizer's settings beside its `tokenizer.json`: class, special tokens, padding side and more, as small JSON.

The pipeline needs none of them. They travel from the pretrained folder through the checkpoints to the release, so that
transformers and sentence-transformers read the released tokenizer exactly as they read the pretrained one.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tokenizers import Tokenizer, normalizers

from tasks.data.pretrained import read_settings as read_json

TokenizerSettings = Mapping[str, Mapping[str, Any]]  # the content of each file by its name

CONFIG = "tokenizer_config.json"
FILES = (CONFIG, "special_tokens_map.json", "added_tokens.json")
_TEMPLATE, _TEMPLATE_FILE = "chat_template", "chat_template.jinja"  # newer folders have a file of its own
# The names of special tokens, where no file says them: BERT's family, then RoBERTa's.
_SPECIAL = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def read_settings(folder: Path) -> TokenizerSettings:
    """Return the settings in a folder; none where it has no such file.

    Raises:
        ConfigError: a file is no JSON object.
    """
    found = {name: read_json(folder / name) for name in FILES if (folder / name).is_file()}
    if (folder / _TEMPLATE_FILE).is_file() and CONFIG in found:
        found[CONFIG] = {**found[CONFIG], _TEMPLATE: (folder / _TEMPLATE_FILE).read_text()}
    return found


def own_settings(tokenizer: Tokenizer) -> TokenizerSettings:
    """Return the settings of a tokenizer that comes without any: its file is read whole, its special tokens by name."""
    vocabulary = tokenizer.get_vocab()
    special = {role: name for role, names in _SPECIAL.items() for name in names if name in vocabulary}
    return {CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast", **special}}


def lower_cases(tokenizer: Tokenizer) -> bool:
    """Return whether texts are lower-cased apart from what the model's own normalizer does."""
    steps = tokenizer.normalizer
    steps = list(cast(Any, steps)) if isinstance(steps, normalizers.Sequence) else [steps]
    return any(isinstance(step, normalizers.Lowercase) for step in steps)


def write_settings(settings: TokenizerSettings, folder: Path, longest: int | None = None) -> None:
    """Write the files into a folder.

    Args:
        longest: tokens after which a consumer cuts a text; None: as the settings say.
    """
    if longest is not None:
        settings = {**settings, CONFIG: {**settings.get(CONFIG, {}), "model_max_length": longest}}
    for name, content in settings.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
