"""Columns inside nested values: `request.text` is the part `text` of the column `request`.

A column that such a name enters is taken apart: each of its parts becomes a column of its own, named by its path.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Values = dict[str, Any]


def taken_apart(names: Iterable[str]) -> Callable[[Values], Values]:
    """Return what takes the values of a record apart, so that all `names` are columns.

    A column whose own name has a dot stays as it is. A list is no nested column. A null has no parts.
    """
    roots: dict[str, list[str]] = {}
    for name in names:
        if "." in name:
            roots.setdefault(root_of(name), []).append(name)

    def take_apart(values: Values) -> Values:
        entered = [root for root in roots if isinstance(values.get(root, ""), Mapping | None)]
        entered = [root for root in entered if not all(name in values for name in roots[root])]
        if not entered:
            return values
        apart: Values = {name: value for name, value in values.items() if name not in entered}
        for root in entered:
            if values[root] is not None:
                _put(apart, root, values[root])
        return apart

    return take_apart if roots else lambda values: values


def root_of(name: str) -> str:
    """Return the column that a name enters."""
    return name.partition(".")[0]


def _put(into: Values, path: str, value: Any) -> None:
    if isinstance(value, Mapping):
        for name, part in value.items():
            _put(into, f"{path}.{name}", part)
    else:
        into.setdefault(path, value)
