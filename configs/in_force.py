"""The settings in force, each with the place that decided it: for `millrace config`."""

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from configs.load import BASE, Layer, layers, load_config
from configs.yaml_files import lines_of_keys

SCHEMA = "schema"  # the default of a field that no file and no option sets
_Path = tuple[str, ...]


class InForce(NamedTuple):
    """The resolved settings as a tree, and their origins by path."""

    tree: dict[str, Any]
    origins: Mapping[_Path, str]

    def of(self, path: str) -> tuple[Any, str | None]:
        """Return the value of a key and its origins, as in `configs/demo.yaml:31`; None, None if it has no value."""
        parts, value = tuple(path.split(".")), self.tree
        for part in parts:
            if not isinstance(value, dict) or part not in value:
                return None, None
            value = value[part]
        first_lines: dict[str, str] = {}  # a map may come from several files
        for key, origin in self.origins.items():
            if key[: len(parts)] == parts:
                first_lines.setdefault(origin.rpartition(":")[0] or origin, origin)
        return value, ", ".join(first_lines.values()) or SCHEMA


def in_force(config_file: PurePath | None = None, overrides: Sequence[str] = ()) -> InForce:
    """Resolve the settings as `load_config` does, with their origins. Raises ConfigError as it does."""
    tree = load_config(config_file, overrides).tree()
    origins: dict[_Path, str] = {}
    for layer in layers(config_file, overrides):
        lines = lines_of_keys(layer.path) if layer.path else {}
        _set(origins, layer.patch, (), layer, lines)
    return InForce(tree, origins)


def _set(origins: dict[_Path, str], patch: Mapping[str, Any], above: _Path, layer: Layer, lines: Mapping) -> None:
    """Enter the origins of a layer's settings, and forget the earlier origins of the keys above and below them."""
    for key, value in patch.items():
        path = (*above, str(key))
        origins.pop(path, None)  # a value that becomes a section
        if isinstance(value, Mapping) and value:
            _set(origins, value, path, layer, lines)
            continue
        for old in [each for each in origins if each[: len(path)] == path]:
            del origins[old]
        origins[path] = _named(layer, lines.get(path))


def _named(layer: Layer, line: int | None) -> str:
    if layer.path is None:
        return layer.source
    name = BASE.name if layer.path == BASE else str(layer.path)
    return f"{name}:{line}" if line else name
