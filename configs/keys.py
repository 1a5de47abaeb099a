"""All keys of the configuration: type, default, meaning, and whether a key decides the result of a run.

`millrace config` and docs/configuration.md show them.
"""

import datetime as dt
import inspect
from collections import Counter
from collections.abc import Collection, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types as limits
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from configs.schema.config import Config
from tasks.foundation.records import Record, decides

EACH, NAME = "[]", "NAME"  # in paths: each entry of a list; a name that the user chooses
NO_DEFAULT: Any = PydanticUndefined
_WORDS = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "any",
    dt.date: "day",
}
_PATTERNS = {
    r"^[a-z0-9][a-z0-9-]*$": "small letters, digits and -, not - first",
    r"^[a-z][a-z0-9_]*$": "small letters, digits and _, a letter first",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "letters, digits and _, no digit first",
    r"^[A-Za-z0-9]+$": "letters and digits",
    r"^\S+( \S+){4}$": "five fields, as in `0 6 * * 1`",
}
_BOUNDS = {limits.Gt: ("gt", "above"), limits.Ge: ("ge", "from"), limits.Lt: ("lt", "below"), limits.Le: ("le", "to")}


class Key(NamedTuple):
    """One key, as in `train.epochs` or `evaluate.gates[].metric`."""

    path: str
    type: str  # in words, with bounds
    default: Any  # in base.yaml, else of its field; NO_DEFAULT: must be given if its section is
    meaning: str
    decides: bool  # True: another value can change a run's model or vectors
    is_section: bool  # True: the keys below it have its values


def all_keys(default: Any) -> list[Key]:
    """Return every key, in the order of the schema. `default` is the tree of base.yaml."""
    return list(keys_below(Config, default))


def keys_below(
    kind: type[Record], default: Any = None, prefix: str = "", decides_above: bool = True, apart: Collection[type] = ()
) -> Iterator[Key]:
    """Yield the keys of a record and of the records inside it, without a section that has no description.

    Args:
        default: the values that the keys have by default, as a tree; None: those of their fields.
        prefix: begins each path, as in `train.`.
        decides_above: False if nothing in the record can change a run's result.
        apart: records that are named, and whose own keys are left out.
    """
    for name, field in kind.model_fields.items():
        key = field.alias or name
        path, value = prefix + key, _default(field, key, default)
        inside = [each for each in records(field.annotation) if each not in apart]
        deciding = decides_above and decides(field)
        entry = {tuple: EACH, dict: f".{NAME}"}.get(get_origin(field.annotation) or type(None), "")
        if field.description:
            words = in_words(field.annotation, field.metadata, apart)
            yield Key(path, words, value, field.description, deciding, bool(inside) and not entry)
        for each in inside:
            yield from keys_below(each, None if entry else value, f"{path}{entry}.", deciding, apart)


def records(annotation: Any) -> list[type[Record]]:
    """Return the records that a value of this type may be or hold; records inside these are left out."""
    if inspect.isclass(annotation) and issubclass(annotation, Record):
        return [annotation]
    return [kind for each in get_args(annotation) if not isinstance(each, str) for kind in records(each)]


def nested(*kinds: Any) -> Iterator[type[Record]]:
    """Yield the records among these types and inside them, the outer ones first."""
    for kind in kinds:
        if inspect.isclass(kind) and issubclass(kind, Record):
            yield kind
            yield from nested(*(field.annotation for field in kind.model_fields.values()))
        else:
            yield from nested(*(each for each in get_args(kind) if not isinstance(each, str)))


def with_several_places() -> list[type[Record]]:
    """Return the records of the configuration that more than one key holds."""
    places = Counter(
        kind
        for record in dict.fromkeys(nested(Config))
        for field in record.model_fields.values()
        for kind in set(records(field.annotation))
    )
    return [kind for kind, count in places.items() if count > 1]


def summary(kind: type[Record]) -> str:
    """Return the first paragraph of a record's docstring, as one line."""
    return inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")


def _default(field: FieldInfo, key: str, given: Any) -> Any:
    if isinstance(given, dict) and key in given:
        return given[key]
    value = field.get_default()
    return value.model_dump(mode="json") if isinstance(value, Record) else value


def alternatives(annotation: Any) -> list[Any]:
    """Return the members of a union, also of one inside another; of another type, itself. Metadata is left out."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [kind for each in get_args(annotation) for kind in alternatives(each)]
    return [annotation]


def in_words(kind: Any, metadata: Any = (), apart: Collection[type] = ()) -> str:
    """Return a type in words, with its bounds."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return in_words(arguments[0], [*arguments[1:], *metadata], apart)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin is tuple:
        entries = in_words(arguments[0], (), apart).replace("section", "sections")
        return ", ".join([f"list of {entries}", *_bounds(metadata)])
    if origin is dict:
        values = in_words(arguments[1], (), apart).replace("section", "sections")
        return ", ".join([f"map of {values}", *_bounds(metadata)])
    if arguments:
        return " or ".join(dict.fromkeys(in_words(each, metadata, apart) for each in arguments))
    if inspect.isclass(kind) and issubclass(kind, Record):
        return kind.__name__ if kind in apart else "section"
    return " ".join([_WORDS[kind], *(_bounds(metadata) if kind is not type(None) else ())])


def _bounds(metadata: Any) -> Iterator[str]:
    for each in sorted(metadata, key=lambda one: isinstance(one, limits.MaxLen)):
        if isinstance(each, FieldInfo):
            yield from _bounds(each.metadata)
        elif type(each) in _BOUNDS:
            name, word = _BOUNDS[type(each)]
            yield f"{word} {getattr(each, name):g}"
        elif pattern := getattr(each, "pattern", None):
            yield f"of {_PATTERNS[pattern]}"
        elif isinstance(each, limits.MinLen):
            yield "not empty" if each.min_length == 1 else f"and at least {each.min_length} long"
        elif isinstance(each, limits.MaxLen):
            yield f"and at most {each.max_length} long"
