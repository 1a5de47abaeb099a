"""Tables on disk over all rows of a source, so that memory does not grow with it.

They are scratch files, which only the ingest that wrote them reads.
"""

import contextlib
import hashlib
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tasks.foundation.errors import DiskError

SETTINGS = ("journal_mode = OFF", "synchronous = OFF", "cache_size = -4096")  # the last in KiB

_ITEMS = "CREATE TABLE items (id INTEGER PRIMARY KEY, text INTEGER, changes INTEGER) WITHOUT ROWID"
_ADD = """
INSERT INTO items VALUES (?, ?, 0)
ON CONFLICT (id) DO UPDATE SET changes = changes + (text != excluded.text), text = excluded.text
"""


@contextlib.contextmanager
def open_tables(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a new database for the block, in one transaction that never commits. Raises DiskError: the disk is full."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as tables:
        for setting in SETTINGS:
            tables.execute(f"PRAGMA {setting}")
        tables.execute("BEGIN")
        try:
            yield tables
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                folder = f"the temporary folder {tempfile.gettempdir()}"
                raise DiskError(
                    f"no space left in {folder}; free some space, or set TMPDIR to a folder on a larger disk"
                ) from error
            raise


class ItemTexts:
    """The items of a source and changes of their texts; only hashes are kept."""

    def __init__(self, tables: sqlite3.Connection) -> None:
        self._tables = tables
        tables.execute(_ITEMS)

    def add(self, item_id: str, text: str) -> None:
        self._tables.execute(_ADD, (_hash(item_id), _hash(text)))

    def __contains__(self, item_id: str) -> bool:
        return self._tables.execute("SELECT 1 FROM items WHERE id = ?", [_hash(item_id)]).fetchone() is not None

    def ids(self) -> int:
        """Return the number of items."""
        return int(self._tables.execute("SELECT count(*) FROM items").fetchone()[0])

    def with_several_texts(self) -> int:
        """Return the number of items whose text differs between rows."""
        return int(self._tables.execute("SELECT count(*) FROM items WHERE changes > 0").fetchone()[0])


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
