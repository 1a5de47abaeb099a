"""docs/configuration.md, written whole from configs/schema and base.yaml. `make docs` rewrites it.

It has every key with its type, its default in base.yaml and its meaning, which is the description of its field.
"""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import annotated_types as limits
from pydantic.fields import FieldInfo

from configs.load import load_config
from configs.schema.config import Config
from tasks.foundation.records import Record

PAGE = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"
_WORDS = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "any"}
_BOUNDS = {limits.Gt: ("gt", "above"), limits.Ge: ("ge", "from"), limits.Lt: ("lt", "below"), limits.Le: ("le", "to")}
_HEAD = """# Configuration

<!-- Written by `make docs` from configs/schema and configs/base.yaml; change the descriptions there. -->

Settings are `configs/base.yaml`, then the file of `--config`, then each `--set`, as in `--set train.epochs=2`. A file
holds what differs, and may begin with `extends: trainium.yaml`. An unknown key is refused, and the nearest known one is
named. `millrace run --dry-run` prints what a run would use; each run keeps its resolved settings in `config.yaml`.

Keys are written with dots. `[]` stands for each entry of a list, NAME for a name that you choose. A default of – means
that the key has none: it must be given if its section is.
"""


def page() -> str:
    """Return the whole page: one table for each top-level section, then the records with several places."""
    default = load_config(None, ()).tree()
    plain, sections = [], []
    for name, key, field in _keys(Config):
        if kinds := _records(field.annotation):
            sections.append(f"## {key}\n\n{_about(kinds[0])}\n\n{_table(_rows(Config, key, name, default))}")
        else:
            plain += _rows(Config, key, name, default)
    shared = [f"## {kind.__name__}\n\n{_about(kind)}\n\n{_table(_below(kind, '', None))}" for kind in _shared()]
    return "\n".join([_HEAD, f"## Top level\n\n{_table(plain)}", *sections, *shared])


def unexplained(*kinds: Any) -> list[str]:
    """Return the fields of these records, and of all records inside them, that have no description, and need one."""
    found = []
    for kind in dict.fromkeys(nested(*kinds)):
        for name, field in kind.model_fields.items():
            if not field.description and not (inspect.isclass(field.annotation) and _records(field.annotation)):
                found.append(f"{kind.__name__}.{name}")
    return sorted(found)


def nested(*kinds: Any) -> Iterator[type[Record]]:
    """Yield the records among these types and inside them, the outer ones first."""
    for kind in kinds:
        if inspect.isclass(kind) and issubclass(kind, Record):
            yield kind
            yield from nested(*(field.annotation for field in kind.model_fields.values()))
        else:
            yield from nested(*(each for each in get_args(kind) if not isinstance(each, str)))


def _rows(owner: type[Record], path: str, name: str, default: Any) -> Iterator[tuple[str, str, str, str]]:
    """Yield the row of a key and those of the keys below it."""
    field = owner.model_fields[name]
    known = isinstance(default, dict) and path.rpartition(".")[2] in default
    value = default[path.rpartition(".")[2]] if known else _own_default(field)
    kinds = [kind for kind in _records(field.annotation) if kind not in _shared()]
    if field.description:
        yield f"`{path}`", _type(field.annotation, field.metadata), _shown(value, bool(kinds)), field.description
    inside = {tuple: "[]", dict: ".NAME"}.get(get_origin(field.annotation) or type(None), "")
    for kind in kinds:
        yield from _below(kind, f"{path}{inside}.", value if not inside else None)


def _below(kind: type[Record], prefix: str, default: Any) -> Iterator[tuple[str, str, str, str]]:
    for name, key, _ in _keys(kind):
        yield from _rows(kind, prefix + key, name, default)


def _keys(kind: type[Record]) -> Iterator[tuple[str, str, FieldInfo]]:
    for name, field in kind.model_fields.items():
        yield name, field.alias or name, field


def _own_default(field: FieldInfo) -> Any:
    value = field.get_default()
    return value.model_dump(mode="json") if isinstance(value, Record) else value


def _records(annotation: Any) -> list[type[Record]]:
    """Return the records that a value of this type may be or hold; those inside of these are left out."""
    if inspect.isclass(annotation) and issubclass(annotation, Record):
        return [annotation]
    return [kind for each in get_args(annotation) if not isinstance(each, str) for kind in _records(each)]


def _shared() -> list[type[Record]]:
    """Return the records with more than one place, which have a section of their own."""
    places = Counter(
        kind
        for record in dict.fromkeys(nested(Config))
        for field in record.model_fields.values()
        for kind in set(_records(field.annotation))
    )
    return [kind for kind, count in places.items() if count > 1]


def _about(kind: type[Record]) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def _shown(value: Any, has_rows: bool) -> str:
    if repr(value) == "PydanticUndefined" or (has_rows and isinstance(value, dict)):
        return "–"
    text = json.dumps(value, ensure_ascii=False, default=list)
    return f"`{text}`" if len(text) < 60 else "see base.yaml"


def _type(kind: Any, metadata: Any = ()) -> str:
    """Return a type in words, with its bounds."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _type(arguments[0], [*arguments[1:], *metadata])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0]).replace('section', 'sections')}"
    if origin is dict:
        return f"map of {_type(arguments[1]).replace('section', 'sections')}"
    if arguments:
        return " or ".join(dict.fromkeys(map(_type, arguments)))
    if inspect.isclass(kind) and issubclass(kind, Record):
        return f"[{kind.__name__}](#{kind.__name__.lower()})" if kind in _shared() else "section"
    return " ".join([_WORDS[kind], *_bounds(metadata)])


def _bounds(metadata: Any) -> Iterator[str]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from _bounds(each.metadata)
        elif type(each) in _BOUNDS:
            name, word = _BOUNDS[type(each)]
            yield f"{word} {getattr(each, name):g}"


def _table(rows: Any) -> str:
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
