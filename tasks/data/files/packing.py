"""Read packed files: gzip, bzip2, xz and Zstandard, recognised by their first bytes and not by their names."""

import bz2
import gzip
import io
import lzma
from typing import Any, BinaryIO, cast

from tasks.data.files.cursor import Cursor
from tasks.data.files.formats import foreign_content

BUFFER_BYTES = 2**16

_MAGICS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def plain(raw: io.BufferedReader, cursor: Cursor) -> io.BufferedReader:
    """Return the unpacked content, of a file that was packed twice too.

    Raises:
        DataError: the file is empty, or its content is of another format, which the message names.
    """
    start = raw.peek(BUFFER_BYTES)
    packing = next((name for magic, name in _MAGICS.items() if start.startswith(magic)), None)
    if packing is not None:
        return plain(io.BufferedReader(_unpacked(raw, packing), BUFFER_BYTES), cursor)
    if foreign := foreign_content(cursor.path, start, cursor.form):
        raise cursor.error(foreign)
    return raw


def _unpacked(raw: BinaryIO, packing: str) -> io.RawIOBase:
    if packing == "gzip":
        return cast(io.RawIOBase, gzip.GzipFile(fileobj=raw, mode="rb"))
    if packing == "bzip2":
        return cast(io.RawIOBase, bz2.BZ2File(raw))
    return cast(io.RawIOBase, lzma.LZMAFile(raw)) if packing == "xz" else _Zstandard(raw)


class _Zstandard(io.RawIOBase):
    """Arrow's reader of Zstandard as a stream of the standard library."""

    def __init__(self, raw: BinaryIO) -> None:
        import pyarrow as pa  # not at the top: the command line needs only `Format`

        self._stream: Any = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)
