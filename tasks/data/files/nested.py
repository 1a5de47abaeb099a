"""Nested values: records in records, and lists of keys and values, which are records too."""

from collections.abc import Mapping
from typing import Any

_KEY, _VALUE = "key", "value"


def fields_of(value: object) -> Mapping[str, Any] | None:
    """Return the fields of a nested value by name; None for another value.

    A map of Parquet, and a list of objects with `key` and `value` as GA4 has its parameters, have a field for each key.
    A record of typed values (`{"string_value": "pan", "int_value": null}`) is the value in it.
    """
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list) or not value:
        return None
    pairs = [_pair(each) for each in value]
    return None if None in pairs else dict(reversed([pair for pair in pairs if pair]))  # the first of a key counts


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record whose nested columns are columns, named by their path."""
    if not any(isinstance(value, Mapping | list) for value in values.values()):
        return {**values}
    found: dict[str, Any] = {}
    for name, value in values.items():
        fields = fields_of(value)
        if fields is None:
            found.setdefault(name, value)
        else:
            for part, each in flat(fields).items():
                found.setdefault(f"{name}.{part}", each)
    return found


def _pair(entry: object) -> tuple[str, Any] | None:
    if isinstance(entry, tuple) and len(entry) == 2:  # of a map of Parquet; JSON has no tuples
        return str(entry[0]), entry[1]
    match entry:
        case {"key": str() as key, **rest} if rest.keys() <= {_VALUE}:
            value = rest.get(_VALUE)
            if isinstance(value, Mapping) and value and all(name.endswith("_value") for name in value):
                value = next((each for each in value.values() if each is not None), None)
            return key, value
        case _:
            return None
