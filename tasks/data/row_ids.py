"""Generate ids for rows without one: a hash of time, query and item, so that a corrected row keeps its id.

Rows of one span that are equal in all three but differ elsewhere get a number too, in the order of the source. Exact
copies keep one id, and validate quarantines the second.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.data.rows import normal_text

ROWS_AT_ONCE = 2**22  # rows whose ids are compared in memory

_MADE = re.compile(rb'\["(auto-[0-9a-f]{32})"')  # start of the line of a row with a generated id


def natural_id(microseconds: int, query: str | None, item: str | None) -> str:
    """Return the id of a row by its time since the epoch, its query, and its item's id, or else the item's text."""
    key = "\n".join([str(microseconds), *(normal_text(text or "") for text in (query, item))])
    return f"auto-{hashlib.blake2b(key.encode(errors='surrogatepass'), digest_size=16).hexdigest()}"


def number_alike(lines: Path, rows_at_once: int = ROWS_AT_ONCE) -> None:
    """Make the ids in a span's spool file distinct: the second row with an id gets the suffix -2, the third -3.

    Memory use grows only with the rows whose generated id repeats.
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
    """Yield each generated id of a file, and half of its hash."""
    with lines.open("rb") as source:
        for line in source:
            if match := _MADE.match(line):
                yield match[1].decode(), int(match[1][-16:], 16)
