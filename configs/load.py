"""Resolve files and overrides to one `Config`: base.yaml, then one config file, then `key=value`.

Also the settings in which two configurations differ.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from configs.keys import explain, misplaced_truths, nearest
from configs.prices import take_in_prices
from configs.schema.config import Config
from configs.yaml_files import fault_of, read_yaml, read_yaml_file
from tasks.foundation.errors import ConfigError
from tasks.foundation.passwords import holds_password, masked
from tasks.foundation.process import laboratory_is_here
from tasks.foundation.s3_path import S3Path, local_or_s3, whole


def take_in(tree: dict[str, Any]) -> None:
    """Move the expectations in the files of `validate.suites` to the front of `validate.expectations`.

    So a resolved configuration can be read on a machine without the files.

    Raises:
        ConfigError: a file can't be read, or is not a list of expectations; names it.
    """
    section = tree["validate"]
    if not isinstance(section, dict) or not all(isinstance(section[key], list) for key in ("suites", "expectations")):
        return  # the schema reports the fault
    read = [entry for name in section["suites"] for entry in _suite(name)]
    section["expectations"] = [*read, *section["expectations"]]
    section["suites"] = []


def _suite(name: object) -> list[Any]:
    if not isinstance(name, str):
        raise ConfigError(f"configuration: validate.suites: expected the paths of files, got {name!r:.50}")
    entries = read_yaml_file(local_or_s3(name), "configuration: validate.suites: ")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(
            f"configuration: validate.suites: {name}: expected a list, as in `- expectation: expect_column_to_exist`"
        )
    return entries


BASE = Path(__file__).with_name("base.yaml")
EXTENDS = "extends"
_SHOWN = 200  # characters of a wrong value


class Layer(NamedTuple):
    """Some settings, as a tree, and where they were written."""

    source: str  # in words, for messages
    path: PurePath | None  # None: the command line
    patch: dict[str, Any]


def load_config(config_file: PurePath | str | None = None, overrides: Sequence[str] = ()) -> Config:
    """Resolve the configuration.

    Args:
        config_file: a YAML file whose keys override base.yaml and the file that it extends, here or `s3://bucket/key`;
            None or empty: base.yaml alone.
        overrides: `dotted.key=value`, values in YAML; a later one wins.

    Raises:
        ConfigError: a file can't be read, a key is unknown, or a value is out of bounds; names file and key.
        StoreError: the bucket of a file gave no answer.
    """
    return _resolve({}, layers(config_file, overrides))


def with_overrides(config: Config, overrides: Sequence[str]) -> Config:
    """Return a resolved configuration with `key=value` over it. Raises ConfigError as `load_config` does."""
    return _resolve(config.tree(), _of_overrides(overrides)) if overrides else config


def _resolve(tree: dict[str, Any], over: Iterable[Layer]) -> Config:
    for layer in over:
        _merge(tree, layer.patch, layer.source)
    take_in(tree)
    take_in_prices(tree)
    if wrong := list(misplaced_truths(tree)):
        raise ConfigError(f"configuration: {'; '.join(wrong)}")
    try:
        config = Config.model_validate(tree)
    except ValidationError as error:
        # pydantic's error repeats the value, which may be a password
        raise ConfigError(f"configuration: {explain(error)}") from None
    if config.decide.scheduled and not laboratory_is_here():
        raise ConfigError(
            "configuration: decide.scheduled: flows/laboratory makes the decision, and was deleted here; bring it "
            "back, or set the key to false, and each span is trained"
        )
    for key in _with_passwords(config.tree()):
        raise ConfigError(
            f"configuration: {key}: its address holds a password; leave it out: settings are stored with every run"
        )
    return config


def layers(config_file: PurePath | str | None = None, overrides: Sequence[str] = ()) -> Iterator[Layer]:
    """Yield what `load_config` merges, in this order; a later layer wins. Raises ConfigError as `load_config` does."""
    yield Layer(str(BASE), BASE, _read(BASE))
    if config_file:
        yield from _files(local_or_s3(config_file))
    yield from _of_overrides(overrides)


def _of_overrides(overrides: Sequence[str]) -> Iterator[Layer]:
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator:
            raise ConfigError(f"--set {masked(override)!r}: write it as key=value, as in train.learning_rate=3e-5")
        patch: Any = _scalar(value)
        for part in reversed(key.split(".")):
            patch = {part: patch}
        yield Layer(f"--set {masked(override)}", None, patch)


def check_key(key: str, source: str) -> None:
    """Check that the schema has a key, as in `train.epochs`.

    Raises:
        ConfigError: it doesn't; names the nearest key.
    """
    *above, last = key.split(".")
    patch: Any = {last: None}
    for part in reversed(above):
        patch = {part: patch}
    _merge({}, patch, source)


def config_hash(config: Config) -> str:
    """Return the hex SHA-256 over all resolved settings that decide a run's model and vectors."""
    return hashlib.sha256(json.dumps(config.work(), sort_keys=True).encode()).hexdigest()


def to_yaml(config: Config) -> str:
    """Return the resolved configuration as YAML that can be loaded again."""
    return yaml.safe_dump(config.tree(), sort_keys=False)


def _read(path: PurePath) -> dict[str, Any]:
    tree = read_yaml_file(path)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected keys and values at the top level")
    return tree


def _files(path: PurePath, above: tuple[PurePath, ...] = ()) -> Iterator[Layer]:
    """Yield the chain of files that `path` extends, base first, and `path` last, each with its keys."""
    tree = _read(path)
    below = tree.pop(EXTENDS, None)
    if below is not None:
        if not isinstance(below, str) or not below.isprintable():
            raise ConfigError(f"{path}: {EXTENDS} must be the path of one config file, got {below!r}")
        chain = (*above, whole(path))
        if whole(path.parent / below) in chain:
            raise ConfigError(f"{path}: {EXTENDS} {below!r} leads back to a file that is being read; remove it there")
        yield from _files(_extended(path, below), chain)
    yield Layer(str(path), path, tree)


def _extended(path: PurePath, below: str) -> PurePath:
    """Return the file that another extends: beside it, or of a file in a bucket one that comes with the code."""
    if isinstance(path, S3Path):
        own = BASE.with_name(below)
        return own if "/" not in below and own.is_file() else path.parent / below
    if not Path(path.parent / below).is_file():
        raise ConfigError(f"{path}: {EXTENDS} {below!r}: {path.parent / below}: no such file")
    return path.parent / below


def _merge(tree: dict[str, Any], patch: Mapping[str, Any], source: str, path: tuple[str, ...] = ()) -> None:
    """Merge `patch` into `tree` in place; raise ConfigError for a key that the schema does not know at that path."""
    known = _known_keys(path)
    for key, value in patch.items():
        if known is not None and key not in known:
            name = ".".join((*path, str(key)))
            raise ConfigError(f"{source}: unknown key {name!r}{nearest(str(key), path, known)}")
        below = tree.get(key)
        if isinstance(value, Mapping) and isinstance(below, dict):
            _merge(below, value, source, (*path, key))
        else:
            if isinstance(value, Mapping):
                _merge({}, value, source, (*path, key))
            tree[key] = value


def _known_keys(path: tuple[str, ...]) -> list[str] | None:
    """Return the keys that the schema allows below `path`; None if the keys there are free."""
    model: type[BaseModel] | None = Config
    for part in path:
        model = _submodel(model, part)
        if model is None:
            return None
    return [field.alias or name for name, field in model.model_fields.items()]


def _submodel(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    for name, field in model.model_fields.items():
        if key == (field.alias or name):
            if get_origin(field.annotation) is dict:  # its keys are the user's
                return None
            candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
            return next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), None)
    return None


def _scalar(text: str) -> Any:
    try:
        value = read_yaml(text)
    except yaml.YAMLError as error:
        text_alone = (
            "; a text that begins so needs quotes of its own, as in '\"* * *\"'" if text[:1] in "*&%@`!|>" else ""
        )
        raise ConfigError(
            f"--set value {masked(text)!r:.{_SHOWN}} is not readable as YAML: {masked(fault_of(error))}{text_alone}"
        ) from None
    if isinstance(value, str):  # YAML 1.1 reads 3e-5 as a string; people mean the number
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _with_passwords(value: Any, key: str = "") -> Iterator[str]:
    """Yield the keys of all addresses with a password, as in `links.reports`."""
    if isinstance(value, Mapping):
        for name, below in value.items():
            yield from _with_passwords(below, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from _with_passwords(below, f"{key}.{number}")
    elif isinstance(value, str) and "://" in value and holds_password(value):
        yield key


def differences(then: Config, now: Config) -> list[str]:
    """Return the settings that decide a run's model and vectors and differ, as in `train.epochs (1 then, 2 now)`."""
    return [f"{key} ({old} then, {new} now)" for key, (old, new) in changed(then, now).items()]


def changed(then: Config, now: Config) -> dict[str, tuple[Any, Any]]:
    """Return the settings that `differences` names, by key, with both values; None: there is no such key."""
    old, new = leaves(then.work()), leaves(now.work())
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    return {key: (old.get(key), new.get(key)) for key in keys}


def leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the settings of a tree by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= leaves(value, f"{path}{key}.") if isinstance(value, dict) and value else {f"{path}{key}": value}
    return found
