"""The columns of a catalogue and of its vectors, and the partitioning of item ids."""

import hashlib

TEXT = "text"  # string: the newest text of the item
UPDATED_AT = "updated_at"  # timestamp[us, UTC]: the time of that text
FEED_AT = "feed_at"  # timestamp[us, UTC]: time of the item's newest record in a feed; null: in no feed
LIVE = "live"  # name in --map of the opposite: a column that is false, or a word for it, once an item is deleted
DELETED = "deleted"  # bool: true if that record deletes the item
CONTENT = "content_sha256"  # string: changes whenever the text or a feature does
VECTOR = "vector"  # fixed-size list of float32 or float16, of unit length
MODEL_VERSION = "model_version"  # string

CATALOGUE_KIND = "catalogue"
VECTORS_KIND = "vectors"
FEED_KIND = "feed"


def partition_of(item_id: str, partitions: int) -> int:
    """Return the partition of an item.

    Bytes 8 to 15 of the MD5 of the id in UTF-8, as a little-endian number, modulo the number of partitions.
    """
    return int.from_bytes(hashlib.md5(item_id.encode(), usedforsecurity=False).digest()[8:], "little") % partitions


def part_name(number: int) -> str:
    """Return the file name of a partition, in a catalogue and in its vectors."""
    return f"part-{number:05d}.parquet"


def deleted_name(number: int) -> str:
    """Return the name of a catalogue's file with the deleted items of a partition; written only if some exist."""
    return f"deleted-{number:05d}.parquet"


def is_deleted_name(name: str) -> bool:
    """Return True if a file of a catalogue has deleted items."""
    return name.startswith("deleted-")
