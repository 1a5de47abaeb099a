"""configs/millrace.schema.json: with it, an editor completes and checks a configuration file. `make docs` rewrites it.

It is the schema of `Config` for a file that holds a part of the settings. An entry of a list is always whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from configs.keys import with_several_places
from configs.load import EXTENDS, load_config
from configs.schema.config import Config

PAGE = Path(__file__).resolve().parents[2] / "configs" / "millrace.schema.json"
FIRST_LINE = f"# yaml-language-server: $schema={PAGE.name}"
_DIALECT = "http://json-schema.org/draft-07/schema#"  # the newest one that yaml-language-server knows in full
_EXTENDS = {"description": "config file that this one builds on, by its path from this folder", "type": "string"}


def page() -> str:
    """Return the schema as text."""
    schema = Config.model_json_schema(by_alias=True)
    entries = set(_refs(list(_items(schema))))
    for name, each in (("", schema), *schema["$defs"].items()):
        if name not in entries:
            each.pop("required", None)
    _set_defaults(schema, load_config().tree(), schema["$defs"])
    schema["properties"][EXTENDS] = _EXTENDS
    return json.dumps({"$schema": _DIALECT, **_without_notes(schema)}, indent=1, ensure_ascii=False) + "\n"


def _set_defaults(schema: dict[str, Any], values: dict[str, Any], records: dict[str, Any]) -> None:
    """Give each key its default of base.yaml; a section's keys have them, unless the section has several places."""
    shared = {kind.__name__ for kind in with_several_places()}
    for key, each in schema["properties"].items():
        names = [name for name in _refs(each) if name not in shared]
        if "additionalProperties" not in each and len(names) == 1 and isinstance(values[key], dict):
            each.pop("default", None)
            _set_defaults(records[names[0]], values[key], records)
        else:
            each["default"] = values[key]


def _items(schema: Any) -> Iterator[Any]:
    """Yield the schemas of the entries of all lists."""
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _items(each)
    if isinstance(schema, dict) and "items" in schema:
        yield schema["items"]


def _refs(schema: Any) -> Iterator[str]:
    """Yield the names of the records that a schema refers to."""
    for each in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _refs(each)
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"].rpartition("/")[2]


def _without_notes(schema: Any) -> Any:
    """Return a schema without titles, which repeat the keys, and without marks that editors don't know."""
    if isinstance(schema, list):
        return [_without_notes(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_notes(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "decides" and isinstance(value, bool))
    }
