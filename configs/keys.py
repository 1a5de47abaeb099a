"""Keys of the configuration: type, default, meaning, and whether a key decides the result of a run.

A wrong key or value is explained in plain words: the key, the values that it may have, and the one that it got.
"""

import datetime as dt
import difflib
import inspect
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types as limits
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from configs.schema.config import Config
from tasks.foundation.passwords import masked
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
    r"^https?://": "an address, as in http://127.0.0.1:4280",
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


_SHOWN = 200  # characters of a wrong value
_MOST = 3  # keys that are proposed
_PERCENT = re.compile(r"\s*([-+]?\d+(?:\.\d+)?)\s*%\s*")
_SHOWN_OF_PUBLISH = ("kind", "name", "compute")  # another value there may be a password


def explain(error: ValidationError, kind: Any = Config) -> str:
    """Return all faults of a value of type `kind`, each with its key; unknown keys come first."""
    problems = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    missing: dict[tuple[str, ...], list[str]] = {}
    for each in problems:
        if each["type"] == "missing":
            missing.setdefault(_find(kind, each["loc"][:-1]).path, []).append(str(each["loc"][-1]))
    sentences = [_sentence(kind, each) for each in problems if each["type"] != "missing"]
    lacking = [f"{'.'.join(path)}: add {', '.join(keys)}" for path, keys in missing.items()]
    return "; ".join(dict.fromkeys([*sentences, *lacking]))


def misplaced_truths(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[str]:
    """Yield a sentence for each true or false below a place of the settings that takes a number, as for `workers: yes`.

    The schema's library would read them as 1 and 0.
    """
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from misplaced_truths(below, (*path, key))
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from misplaced_truths(below, (*path, number))
    elif isinstance(value, bool):
        place = _find(Config, path)
        kinds = set(map(_hashable, alternatives(place.kind)))
        if kinds & {int, float} and bool not in kinds:
            yield f"{'.'.join(place.path)}: expected {_expected(place)}, got {_in_yaml(value)}"


def nearest(key: str, path: Sequence[str], known: Iterable[str]) -> str:
    """Return the end of a message about an unknown key below `path`: the keys that were probably meant, else all known.

    A key's last word is enough to find it elsewhere: epochs is train.epochs.
    """
    known = list(known)
    by_last: dict[str, list[str]] = {}
    for each in all_keys(None):
        if EACH not in each.path and NAME not in each.path:
            by_last.setdefault(each.path.rpartition(".")[2], []).append(each.path)
    here = [".".join((*path, close)) for close in difflib.get_close_matches(key, known, n=1)]
    elsewhere = [
        found for close in difflib.get_close_matches(key, by_last, n=1, cutoff=0.8) for found in by_last[close]
    ]
    meant = by_last.get(key) or here or elsewhere
    if 0 < len(meant) <= _MOST:
        return f"; did you mean {' or '.join(map(repr, meant))}?"
    return f"; known here: {', '.join(known)}"


class _Place(NamedTuple):
    """The place in the schema that a fault is about."""

    path: tuple[str, ...]  # as a user writes it: without the names of the members of a union
    kind: Any  # its annotation
    field: FieldInfo | None  # None: an entry of a list or map


def _sentence(kind: Any, problem: Any) -> str:
    fault, loc, value = problem["type"], problem["loc"], problem["input"]
    if fault == "extra_forbidden":
        place = _find(kind, loc[:-1])
        known = [str(name) for record in _members(place.kind) for name in _fields(record)]
        near = _close(loc[-1], known) or f"; known here: {', '.join(dict.fromkeys(known))}"
        return f"unknown key {'.'.join((*place.path, str(loc[-1])))!r}{near}"
    place = _find(kind, loc)
    where = f"{'.'.join(place.path)}: " if place.path else ""
    if fault == "value_error":
        return f"{where}{problem['msg'].removeprefix('Value error, ')}{_got(place.path, value, ' (got {})')}"
    if fault.startswith("union_tag"):
        name = problem["ctx"]["discriminator"].strip("'")
        allowed = [tag for record in records(place.kind) for tag in get_args(_fields(record)[name].annotation)]
        given = value.get(name) if isinstance(value, Mapping) else None
        where = ".".join((*place.path, name))
        return f"{where}: expected one of {', '.join(allowed)}, got {_in_yaml(given)}{_close(given, allowed)}"
    expected = _expected(place)
    if isinstance(value, Mapping) and not _members(place.kind):
        return f"{where}expected {expected}, and no keys below it; got {', '.join(map(str, value))}"
    return f"{where}expected {expected}{_got(place.path, value, ', got {}')}{_way_out(place, value)}"


def _find(kind: Any, loc: Sequence[str | int]) -> _Place:
    path: list[str] = []
    field: FieldInfo | None = None
    for part in loc:
        fields = [each[part] for each in map(_fields, _members(kind)) if part in each]
        inner = [each for each in alternatives(kind) if get_origin(each) is (tuple if isinstance(part, int) else dict)]
        if fields:
            field, kind = fields[0], fields[0].annotation
        elif inner:
            field, kind = None, get_args(inner[0])[0 if isinstance(part, int) else 1]
        else:  # pydantic's name of a member of a union, as in publish.targets.0.pgvector.name
            kind = next((each for each in _members(kind) if part in _names(each)), kind)
            continue
        path.append(str(part))
    return _Place(tuple(path), kind, field)


def _hashable(kind: Any) -> Any:
    return kind if isinstance(kind, type) else None


def _members(kind: Any) -> list[type[Record]]:
    return [each for each in alternatives(kind) if isinstance(each, type) and issubclass(each, Record)]


def _fields(record: type[BaseModel]) -> dict[str | int, FieldInfo]:
    return {field.alias or name: field for name, field in record.model_fields.items()}


def _names(record: type[BaseModel]) -> Iterator[Any]:
    """Yield the names that pydantic gives to a member of a union: of its class, or the tag."""
    yield record.__name__
    for field in record.model_fields.values():
        if get_origin(field.annotation) is Literal:
            yield from get_args(field.annotation)


def _expected(place: _Place) -> str:
    inside = _members(place.kind)
    if len(inside) == 1:
        rest = " or null" if type(None) in alternatives(place.kind) else ""
        return f"a section with the keys {', '.join(map(str, _fields(inside[0])))}{rest}"
    words = in_words(place.kind, place.field.metadata if place.field is not None else ())
    return f"one of {words.replace('`', '')}" if len(_literals(place.kind)) > 1 else words.replace("`", "")


def _literals(kind: Any) -> list[Any]:
    return [value for each in alternatives(kind) if get_origin(each) is Literal for value in get_args(each)]


def _got(path: Sequence[str], value: Any, form: str) -> str:
    """Return the wrong value; nothing of a whole section, which says little in one line, or if it may be a password."""
    hidden = path[:1] == ("publish",) and path[-1] not in _SHOWN_OF_PUBLISH
    return "" if hidden or not path or isinstance(value, Mapping | BaseModel) else form.format(_in_yaml(value))


def _in_yaml(value: Any) -> str:
    """Return a value as YAML has it: null, true, and text in quotes."""
    shown = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return f"{masked(shown):.{_SHOWN}}"


def _way_out(place: _Place, value: Any) -> str:
    kinds = alternatives(place.kind)
    percent = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if percent is not None and float in kinds:
        return f"; write {value.strip()} as {float(percent[1]) / 100:g}"
    lists = [get_args(each)[0] for each in kinds if get_origin(each) is tuple]
    if lists and not any(map(_members, lists)) and isinstance(value, str | int | float):
        return f"; write [{value}]"
    return _close(value, _literals(place.kind))


def _close(value: Any, allowed: Iterable[Any]) -> str:
    close = difflib.get_close_matches(str(value), map(str, allowed), n=1, cutoff=0.7)  # gpu is not cpu
    return f"; did you mean {close[0]!r}?" if close else ""
