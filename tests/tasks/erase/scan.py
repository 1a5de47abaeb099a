"""An independent look at every byte of a folder: plain, compressed, and the cells of Parquet and Arrow files."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_PACKED = {b"\x1f\x8b": gzip.decompress, b"BZ": bz2.decompress, b"\xfd7": lzma.decompress}


def found(root: Path, *words: str) -> list[str]:
    """Return a line for each place below `root` that has one of the words."""
    lines = []
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        data = path.read_bytes()
        if unpack := _PACKED.get(data[:2]):
            data = unpack(data)
        texts = [data, *(cell.encode() for cell in _cells(path, data))]
        lines += [f"{path.relative_to(root)}: {word}" for word in words if any(word.encode() in text for text in texts)]
    return lines


def _cells(path: Path, data: bytes) -> Iterator[str]:
    if data[:4] == b"PAR1":
        yield from _texts(pq.ParquetFile(path).read())
    elif path.suffix in (".arrow", ".lance"):
        try:
            yield from _texts(pa.ipc.open_file(data).read_all())
        except pa.ArrowInvalid:
            return


def _texts(table: pa.Table) -> Iterator[str]:
    for column in table.columns:
        values: list[Any] = column.to_pylist()
        yield from (value for value in values if isinstance(value, str))
