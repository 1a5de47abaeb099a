"""How far long work has come, told through one line of text that both planes understand.

A worker prints `@progress {...}` on its standard output; the runner turns it back into a `Progress` and shows
it as it likes. Every other line is log text.
"""

from __future__ import annotations

import json

from tasks.records import Record

_MARK = "@progress "


class Progress(Record):
    """`done` of `total` units of `what`; `note` is the number worth seeing now (a loss, a rate)."""

    what: str
    done: int
    total: int
    note: str = ""


def report(what: str, done: int, total: int, note: str = "") -> None:
    """Called by workers, on rank 0."""
    print(_MARK + Progress(what=what, done=done, total=total, note=note).model_dump_json(), flush=True)


def parse(line: str) -> Progress | None:
    """The progress in a line of worker output; None for log text, also for a line cut off in the middle."""
    if not line.startswith(_MARK):
        return None
    try:
        return Progress.model_validate(json.loads(line.removeprefix(_MARK)))
    except ValueError:
        return None
