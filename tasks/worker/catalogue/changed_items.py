"""The items of a partition that differ between two catalogues: a refresh embeds them, and its delta holds them."""

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa

from tasks.data.rows import CONTENT, ITEM_ID
from tasks.worker.catalogue.records import Catalogue

BATCH_ITEMS = 8192


class ChangedItems(NamedTuple):
    """The difference of a partition's live items, by content; their times don't count."""

    changed: pa.Table  # new items and items with another content, as they are now, by item id
    gone: list[str]  # ids of items that are no longer live
    before: dict[str, str | None]  # id -> content hash of all earlier items, by item id
    ids: list[str]  # the live items, sorted


def changed_items(before: Catalogue, now: Catalogue, number: int) -> ChangedItems | None:
    """Compare a partition of two catalogues with the same partitions; None if it has no live item now.

    Raises:
        CorruptFolder: a file of a catalogue is damaged.
    """
    earlier: dict[str, str | None] = {}
    for items in before.items(number, BATCH_ITEMS):
        earlier.update(zip(items[ITEM_ID].to_pylist(), items[CONTENT].to_pylist(), strict=True))
    changed, ids = list[pa.Table](), list[str]()
    for items in now.items(number, BATCH_ITEMS):
        keys = items[ITEM_ID].to_pylist()
        pairs = zip(keys, items[CONTENT].to_pylist(), strict=True)
        changed.append(
            items.filter(pa.array([key not in earlier or earlier[key] != content for key, content in pairs]))
        )
        ids += keys
    if not ids:
        return None
    return ChangedItems(pa.concat_tables(changed), sorted(earlier.keys() - set(ids)), earlier, ids)


def ids_sha256(ids: Iterable[str]) -> str:
    """Return the SHA-256 over item ids, one on each line."""
    return hashlib.sha256("".join(f"{item_id}\n" for item_id in ids).encode()).hexdigest()
