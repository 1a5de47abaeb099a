"""Wrong keys and values in plain words: the key, the values that it may have, and the one that it got."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from configs.keys import EACH, NAME, all_keys, alternatives, in_words, records
from configs.schema.config import Config
from tasks.foundation.passwords import masked
from tasks.foundation.records import Record

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
