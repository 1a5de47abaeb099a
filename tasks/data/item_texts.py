"""The items of a source and their texts, kept on disk as hashes, so that memory does not grow with the source."""

import hashlib
import sqlite3
from pathlib import Path

_AT_ONCE = 10_000  # rows between two writes
_CACHE_KIB = 16_384

_TABLE = "CREATE TABLE items (id INTEGER PRIMARY KEY, text INTEGER, changes INTEGER) WITHOUT ROWID"
_ADD = """
INSERT INTO items VALUES (?, ?, 0)
ON CONFLICT (id) DO UPDATE SET changes = changes + (text != excluded.text), text = excluded.text
"""


class ItemTexts:
    """Which items a source has, and how many of them have more than one text."""

    def __init__(self, folder: Path) -> None:
        self._database = sqlite3.connect(folder / "items.sqlite", isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute(_TABLE)
        self._waiting: list[tuple[int, int]] = []

    def close(self) -> None:
        self._database.close()

    def add(self, item_id: str, text: str) -> None:
        self._waiting.append((_hash(item_id), _hash(text)))
        if len(self._waiting) == _AT_ONCE:
            self._write()

    def __contains__(self, item_id: str) -> bool:
        self._write()
        return self._database.execute("SELECT 1 FROM items WHERE id = ?", [_hash(item_id)]).fetchone() is not None

    def with_several_texts(self) -> int:
        """Return the number of items whose text differs between rows."""
        self._write()
        return int(self._database.execute("SELECT count(*) FROM items WHERE changes > 0").fetchone()[0])

    def _write(self) -> None:
        if self._waiting:
            self._database.execute("BEGIN")
            self._database.executemany(_ADD, self._waiting)
            self._database.execute("COMMIT")
            self._waiting.clear()


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
