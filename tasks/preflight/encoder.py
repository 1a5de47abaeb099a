"""Find and check the pretrained folder from which a lineage begins, without loading it."""

import importlib.util
from dataclasses import replace
from pathlib import Path

from configs.schema.config import Config
from tasks.data.encoder_weights import check_weights
from tasks.data.pretrained import (
    Described,
    TextShape,
    check_direction,
    describe,
    kind_of,
    positions_for_text,
    read_settings,
    text_shape,
)
from tasks.foundation.errors import ConfigError, not_utf8

_FILES = ("config.json", "tokenizer.json")


def pretrained_folder(name: str) -> Path:
    """Return the local folder of `model.pretrained`: a path, or `package:NAME/FOLDER` in an installed package.

    The package is not imported.

    Raises:
        ConfigError: the name is malformed, or the package is not installed.
    """
    if not name.startswith("package:"):
        return Path(name).expanduser()
    package, _, below = name.removeprefix("package:").partition("/")
    if not package.isidentifier() or ".." in Path(below).parts or Path(below).is_absolute():
        raise ConfigError(
            f"model.pretrained {name!r}: write package:NAME/FOLDER, with the name of a package at the top and a folder "
            "inside it"
        )
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a module that this process made, without a spec
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"model.pretrained {name!r}: the package {package!r} is not installed")
    return Path(next(iter(spec.submodule_search_locations))) / below


def check_encoder(config: Config) -> None:
    """Check, without loading it, that the pretrained folder is usable and long enough for the longest text.

    Raises:
        ConfigError: the folder or a file is missing, a setting in it is not supported, its weights are not those of its
            encoder, the configuration contradicts it, or a text may have more tokens than the encoder has positions.
    """
    if config.model.pretrained is not None:
        describe_encoder(config, pretrained_folder(config.model.pretrained))


def describe_encoder(config: Config, folder: Path) -> tuple[Described, TextShape]:
    """Return a folder's description, and the way from a text to its vector. Checks and raises as `check_encoder`."""
    if not folder.is_dir():
        raise ConfigError(f"model.pretrained: there is no folder {folder}; give a local Hugging Face model folder")
    if problem := not_utf8(folder):
        raise ConfigError(f"model.pretrained: {problem}")
    described = describe(folder)
    shape, encoder = text_shape(config.model, described), described.encoder
    if shape.prompts.by_entity and config.features.entity is None:
        names = ", ".join(shape.prompts.by_entity)
        raise ConfigError(
            f"model.pretrained: {folder} has prompts for texts about {names}; name the column that says so with "
            "features.entity=COLUMN, or the prompts to train with instead: model.prompts={query: ..., item: ...}"
        )
    for name in _FILES:
        if not (encoder / name).is_file():
            raise ConfigError(f"model.pretrained: {encoder} has no {name}; give a local Hugging Face model folder")
    facts = read_settings(encoder / "config.json")
    kind_of(facts.get("model_type"))
    check_direction(facts)
    longest, positions = config.longest_tokens, positions_for_text(facts)
    if positions is not None and longest > positions:
        raise ConfigError(
            f"a text of {longest} tokens is longer than the {positions} positions of the encoder in {encoder}; "
            "lower train.max_tokens and infer.max_tokens"
        )
    if described.longest_tokens is not None and longest > described.longest_tokens:
        raise ConfigError(
            f"a text of {longest} tokens is longer than the {described.longest_tokens} at which {folder} cuts its "
            "texts; lower train.max_tokens and infer.max_tokens, or raise max_seq_length in a copy of the folder"
        )
    encoder_width = facts.get("hidden_size", facts.get("dim"))  # DistilBERT's name
    if isinstance(encoder_width, int):
        check_widths(config, config.model.embedding_width or shape.text_width(encoder_width))
    taken = check_weights(encoder)
    return (described if taken is None else replace(described, prefix=taken.prefix)), shape


def check_widths(config: Config, width: int) -> None:
    """Check the truncated widths. Raises ConfigError: one is not below `width`, the embedding's."""
    try:
        config.check_widths(width)
    except ValueError as error:
        raise ConfigError(str(error)) from error
