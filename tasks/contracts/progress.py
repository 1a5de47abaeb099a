"""The progress of long work, passed between the planes as one line of text.

A worker prints `@progress {...}` on its standard output; the runner turns it back into a `Progress` and shows
it as it likes. Every other line is log text.
"""

import json

from tasks.foundation.records import Record

_MARK = "@progress "


class Progress(Record):
    """`done` of `total` units of `what`; `note` is the number worth seeing now (a loss, a rate)."""

    what: str
    done: int
    total: int
    note: str = ""


def report(what: str, done: int, total: int, note: str = "") -> None:
    """Print the progress; workers call it on rank 0."""
    print(_MARK + Progress(what=what, done=done, total=total, note=note).model_dump_json(), flush=True)


def parse(line: str) -> Progress | None:
    """Return the progress in a line of worker output; None for log text and for a line that is cut off."""
    if not line.startswith(_MARK):
        return None
    try:
        return Progress.model_validate(json.loads(line.removeprefix(_MARK)))
    except ValueError:
        return None
