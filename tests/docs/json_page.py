"""docs/json.md, written whole from the records that `--json` prints. `make docs` rewrites it."""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from flows.cli.app import all_commands
from flows.cli.terminal.command import COMMANDS
from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass
from tasks.foundation.records import Record

_WORDS = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    type(None): "null",
    Any: "any",
    Stage: "stage",
    FailureClass: "failure class",
}

PAGE = Path(__file__).resolve().parents[2] / "docs" / "json.md"

# The second record of a command, and the option with which it prints that.
OTHERWISE = {"run": "--dry-run", "backfill": "--dry-run", "history": "--ledger"}
OUTPUTS: dict[str, type[Record]] = {  # in the order of the help page
    name if number == 0 else f"{name} {OTHERWISE[name]}": record
    for name in all_commands()
    for number, record in enumerate(COMMANDS[name].prints)
}

HEAD = """# The JSON of each command

<!-- Written by `make docs` from the records in the source; change their descriptions there. -->

With `--json` standard output holds one JSON object and nothing else, also for a rejected model or comparison. After a
failure it is empty; `doctor` alone prints its findings all the same. Every key is there, every time: what is not known
is `null` or empty. New keys may be added; a key's name and meaning don't change. Seconds are wall time, costs are
dollars, times are text in ISO 8601 in UTC, and keys of the workspace are relative to it. NaN is the text `"NaN"`,
infinity `"Infinity"`. A *map* is an object whose keys depend on the configuration and on what happened. A *stage* is
one of the seven, by name; a *failure class* is one of the [table of exit codes](cli.md#exit-codes).
"""


def page() -> str:
    """Return the whole page: the commands in their order, then the records that they share, by name."""
    shared = sorted(set(_nested(*OUTPUTS.values())) - set(OUTPUTS.values()), key=lambda record: record.__name__)
    parts = [HEAD, *(_section(f"`millrace {name} --json`", record) for name, record in OUTPUTS.items())]
    return "\n".join([*parts, "# Records inside them\n", *(_section(record.__name__, record) for record in shared)])


def _section(title: str, record: type[Record]) -> str:
    rows = [
        f"| `{field.alias or name}` | {_type(field.annotation)} | {_cell(field.description or '')} |"
        for name, field in record.model_fields.items()
    ]
    text = inspect.cleandoc(record.__doc__ or "") if "__doc__" in vars(record) else ""
    about = f"{text}\n\n" if text else ""
    return f"## {title}\n\n{about}| key | type | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _type(kind: Any) -> str:
    """A JSON type in words."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(argument) for argument in arguments)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"map of {_type(arguments[1])}"
    if inspect.isclass(kind) and issubclass(kind, Record):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if inspect.isclass(kind) and issubclass(kind, enum.Enum) and kind not in _WORDS:
        return ", ".join(f"`{each.value}`" for each in kind)
    return _WORDS[kind]


def _nested(*kinds: Any) -> Iterator[type[Record]]:
    for kind in kinds:
        if inspect.isclass(kind) and issubclass(kind, Record):
            yield kind
            yield from _nested(*(field.annotation for field in kind.model_fields.values()))
        else:
            yield from _nested(*(each for each in get_args(kind) if not isinstance(each, str)))
