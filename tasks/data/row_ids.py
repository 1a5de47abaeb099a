"""Ids of rows whose source has none: a hash of when, which query and which item, so that a corrected row keeps its id.

Rows of one span that agree in all three and differ in something else get a number as well, in the order of the source.
Copies keep one id, and validate sets the second one apart.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.data.rows import normal_text

ROWS_AT_ONCE = 2**22  # whose ids are compared in memory

_MADE = re.compile(rb'\["(auto-[0-9a-f]{32})"')  # how the line of such a row begins


def natural_id(microseconds: int, query: str | None, item: str | None) -> str:
    """Return the id of a row by its time since 1970, its query, and the id of its item, or else the item's text."""
    key = "\n".join([str(microseconds), *(normal_text(text or "") for text in (query, item))])
    return f"auto-{hashlib.blake2b(key.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


def number_alike(lines: Path, rows_at_once: int = ROWS_AT_ONCE) -> None:
    """Make ids of one span distinct in a spool file: the second of its kind ends in -2, the third in -3.

    Of the rows, only those whose made id repeats are remembered.
    """
    repeated = _repeated(lines, rows_at_once)
    if not repeated:
        return
    numbers: dict[str, dict[bytes, int]] = {}  # id -> hash of the line -> its number
    numbered = lines.with_suffix(".numbered")
    with lines.open("rb") as source, numbered.open("wb") as target:
        for line in source:
            found = _MADE.match(line)
            if found and (row_id := found[1].decode()) in repeated:
                kind = numbers.setdefault(row_id, {})
                number = kind.setdefault(hashlib.blake2b(line, digest_size=16).digest(), len(kind) + 1)
                if number > 1:
                    line = line[: found.end(1)] + f"-{number}".encode() + line[found.end(1) :]
            target.write(line)
    os.replace(numbered, lines)


def _repeated(lines: Path, rows_at_once: int) -> set[str]:
    rows = sum(1 for _ in _made(lines))
    passes = -(-rows // rows_at_once)
    found: set[str] = set()
    for number in range(passes):
        hashes = np.fromiter((part for _, part in _made(lines) if part % passes == number), np.uint64)
        values, counts = np.unique(hashes, return_counts=True)
        if several := set(values[counts > 1].tolist()):
            found |= {row_id for row_id, part in _made(lines) if part in several}
    return found


def _made(lines: Path) -> Iterator[tuple[str, int]]:
    """Yield each made id of a file, and half of its hash."""
    with lines.open("rb") as source:
        for line in source:
            if match := _MADE.match(line):
                yield match[1].decode(), int(match[1][-16:], 16)
