"""The pretrained folder that a lineage begins with: where it is, and whether it can be used."""

import importlib.util
import json
from pathlib import Path

from configs.schema.config import Config
from tasks.foundation.errors import ConfigError

# One of each group must be there.
_FILES = (
    ("config.json",),
    ("tokenizer.json",),
    ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json"),
)


def pretrained_folder(name: str) -> Path:
    """Return the local folder of `model.pretrained`: a path, or `package:NAME/FOLDER` in an installed package."""
    if not name.startswith("package:"):
        return Path(name).expanduser()
    package, _, below = name.removeprefix("package:").partition("/")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"model.pretrained {name!r}: the package {package!r} is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / below


def check_encoder(config: Config) -> None:
    """Check, without loading it, that the pretrained folder has what training needs and holds the longest text.

    Raises:
        ConfigError: there is no such folder, a file is missing, or a shape has more tokens than the encoder positions.
    """
    if config.model.pretrained is None:
        return
    folder = pretrained_folder(config.model.pretrained)
    if not folder.is_dir():
        raise ConfigError(f"model.pretrained: there is no folder {folder}; give a local Hugging Face model folder")
    for names in _FILES:
        if not any((folder / name).is_file() for name in names):
            raise ConfigError(f"model.pretrained: {folder} has no {names[0]}; give a local Hugging Face model folder")
    try:
        positions = json.loads((folder / "config.json").read_text()).get("max_position_embeddings")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"model.pretrained: {folder}/config.json is not readable as JSON: {error}") from error
    if isinstance(positions, int) and config.longest_tokens > positions:
        raise ConfigError(
            f"a text of {config.longest_tokens} tokens is longer than the {positions} positions of the encoder in "
            f"{folder}; lower train.max_tokens and infer.max_tokens"
        )
