"""The rows and items of spans: their columns and ids, reading, and the places of rows in the holdout.

Ingest writes rows, validate cleans them, and all later stages read them with `read_rows`. A row without an id gets
a hash of time, query and item, so that a corrected row keeps its id. Rows of one span that are equal in all three
but differ elsewhere get a number too, in the order of the source; exact copies keep one id, and validate
quarantines the second.
"""

import functools
import hashlib
import math
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import open_folder, read_manifest
from tasks.contracts.references import QUERY_ALONE, QUERY_AND_ITEM, RowsRef, SpanRef
from tasks.foundation.errors import DataError

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

ROW_ID = "row_id"  # string, unique within a span
TIME = "time"  # timestamp[us, UTC]
QUERY = "query"  # string
ITEM = "item"  # string: the text of the item
ITEM_ID = "item_id"  # string; rows with the same item_id have the same item
LABEL = "label"  # float64, may be null

CORE = {
    ROW_ID: pa.string(),
    TIME: pa.timestamp("us", tz="UTC"),
    QUERY: pa.string(),
    ITEM: pa.string(),
    ITEM_ID: pa.string(),
    LABEL: pa.float64(),
}
# Any other column keeps its source name and is float64, bool or string.

NO_WIDTH = r"[\x{ad}\x{200b}-\x{200f}\x{2060}\x{feff}]"  # invisible characters

_TEXT_GROUPS = {QUERY_AND_ITEM: [QUERY, ITEM], QUERY_ALONE: [QUERY], ITEM: [ITEM]}

BATCH_ROWS = 8192  # rows in memory at once

SPAN_KIND = "span"
ROWS_KIND = "rows"

TEXTS, OF_FEED = "texts", "feed"  # fact of a folder whose rows have ids alone: the item feed has the texts


def read_rows(
    store: Store, refs: Sequence[RowsRef], columns: Sequence[str], newest_first: bool = False
) -> Iterator[pa.Table]:
    """Yield validated rows of spans, a few thousand at a time, with the core columns and `columns`.

    Args:
        refs: the spans, oldest first; the rows come in their order.
        newest_first: yield the tables in reverse order, the last of the last span first; rows within a table stay in
            order.

    Raises:
        DataError: a span lacks one of `columns`; names span and column.
    """
    for ref in reversed(refs) if newest_first else refs:
        folder, manifest = open_folder(store, ref.prefix, ROWS_KIND)
        files = [folder / entry.name for entry in manifest.files]
        yield from read_files(ref.span.name, files[::-1] if newest_first else files, columns, newest_first)


def read_files(
    span: str, files: Iterable[Path], columns: Sequence[str], newest_first: bool = False
) -> Iterator[pa.Table]:
    """Yield the rows of some files of a span, as `read_rows` does; the files come in their order."""
    wanted = list(dict.fromkeys([*CORE, *columns]))
    for path in files:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            if missing := [column for column in wanted if column not in file.schema_arrow.names]:
                raise DataError(
                    f"span {span}: no column {missing[0]!r}, which the configuration uses as a feature, slice or "
                    f"group; it has {', '.join(file.schema_arrow.names)}"
                )
            if newest_first:
                for group in reversed(range(file.num_row_groups)):
                    yield file.read_row_group(group, wanted).select(wanted)
            else:
                for batch in file.iter_batches(BATCH_ROWS, columns=wanted):
                    yield pa.Table.from_batches([batch]).select(wanted)


def other_columns(store: Store, ref: RowsRef) -> list[str]:
    """Return the columns of a span's rows that are not core columns, in order."""
    manifest = read_manifest(store, ref.prefix)
    folder = store.local(ref.prefix)  # whole: the copy that `read_rows` checks and reads
    schema = pq.read_schema(folder / manifest.files[0].name)
    return [name for name in schema.names if name not in CORE]


def has_ids_alone(store: Store, ref: SpanRef | RowsRef) -> bool:
    """Return True if the rows were ingested without item texts, which come from the item feed."""
    return read_manifest(store, ref.prefix).facts.get(TEXTS) == OF_FEED


def distinct_items(rows: pa.Table) -> pa.Table:
    """Return the last row of each item, sorted by item id."""
    order = pa.array(range(rows.num_rows), pa.int64())
    last = rows.select([ITEM_ID]).append_column("order", order).group_by(ITEM_ID).aggregate([("order", "max")])
    return rows.take(last.sort_by(ITEM_ID)["order_max"])


@functools.lru_cache(maxsize=2 * BATCH_ROWS)  # queries and items of a batch, which several stages of a split ask for
def normal_text(text: str) -> str:
    """Return the text without invisible differences: NFKC, case-folded, single spaces, stripped."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def plain_ids(ids: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return ids without the differences that exports cause: NFKC, lower case, no blanks, nothing invisible, 7 for 7.0.

    Args:
        ids: texts without nulls.
    """
    plain = pc.utf8_lower(pc.utf8_normalize(ids, form="NFKC"))
    plain = pc.replace_substring_regex(plain, rf"{NO_WIDTH}|[\s\x{{a0}}]", "")
    return pc.replace_substring_regex(plain, r"^0*(\d+)(?:\.0+)?$", r"\1")


def group_columns(group: str) -> list[str]:
    """Return the columns that name a row's group, for a `HoldoutRule.group`."""
    return _TEXT_GROUPS.get(group, [group])


def group_keys(rows: pa.Table, group: str) -> list[str]:
    """Return the name of each row's group; rows without a value in the group's column are grouped by their texts.

    Args:
        rows: rows with the core columns and `group_columns(group)`.
    """
    if group in _TEXT_GROUPS:
        texts = [map(normal_text, rows[column].to_pylist()) for column in _TEXT_GROUPS[group]]
        return ["\n".join(each) for each in zip(*texts, strict=True)]
    values = rows[group].to_pylist()
    names = [str(int(value)) if isinstance(value, float) and value.is_integer() else str(value) for value in values]
    if None not in values:
        return names
    others = group_keys(rows, QUERY_AND_ITEM)
    return [other if value is None else name for value, name, other in zip(values, names, others, strict=True)]


def group_hashes(rows: pa.Table, group: str) -> np.ndarray:
    """Return a hash of the name of each row's group, uint64 (rows,)."""
    return _hashes(group_keys(rows, group))


def below_share(hashes: np.ndarray, share: float) -> np.ndarray:
    """Return a mask of the hashes, uint64 (rows,), that are below a share of all hashes, bool (rows,)."""
    return hashes < np.uint64(min(math.ceil(share * 2**64), 2**64 - 1))


def unseen_places(rows: pa.Table, group: str) -> np.ndarray:
    """Return the place of each row's query, uint64 (rows,): below the share, all rows of the query are held out.

    Queries have half of the share, or all of it with the group `query`.
    """
    hashes = _hashes(group_keys(rows, QUERY_ALONE), b"unseen queries")
    return hashes if group == QUERY_ALONE else _twice(hashes)


def hold_places(rows: pa.Table, group: str) -> np.ndarray:
    """Return the place of each row, uint64 (rows,): below the share it is held out, by its query or by its group.

    Each has half of the share, and its own hash, so the place is twice the smaller hash.
    """
    queries = unseen_places(rows, group)
    return queries if group == QUERY_ALONE else np.minimum(queries, _twice(group_hashes(rows, group)))


def _hashes(names: Sequence[str], purpose: bytes = b"") -> np.ndarray:
    """Return uint64 (names,); the hashes for two purposes are independent of each other."""
    digests = (hashlib.blake2b(name.encode(), digest_size=8, person=purpose).digest() for name in names)
    return np.fromiter((int.from_bytes(digest, "big") for digest in digests), np.uint64, len(names))


def _twice(hashes: np.ndarray) -> np.ndarray:
    return np.minimum(hashes, np.uint64(2**63 - 1)) * np.uint64(2)  # larger ones are below no share


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


TEXT = "text"  # string: the newest text of the item
UPDATED_AT = "updated_at"  # timestamp[us, UTC]: the time of that text
FEED_AT = "feed_at"  # timestamp[us, UTC]: time of the item's newest record in a feed; null: in no feed
LIVE = "live"  # name in --map of the opposite: a column that is false, or a word for it, once an item is deleted
DELETED = "deleted"  # bool: true if that record deletes the item
CONTENT = "content_sha256"  # string: changes whenever the text or a feature does
VECTOR = "vector"  # fixed-size list of float32 or float16, of unit length
MODEL_VERSION = "model_version"  # string

# Fact of vectors that `millrace erase` took items from: the checksum of the manifest as it was released. Targets name
# their tables by it, and these lost the same items.
FIRST_SHA256 = "first_sha256"

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


def delta_name(number: int, generation: int, sha256: str = "") -> str:
    """Return the name of a delta over the files of a partition, of vectors or of a catalogue.

    Args:
        generation: from 1; of two files over the same one, the higher one is newer.
        sha256: of a catalogue's file. Two runs may build a catalogue at once on different ones: neither replaces a
            file of the other.
    """
    of = f"-{sha256[:12]}" if sha256 else ""
    return f"part-{number:05d}.delta-{generation:05d}{of}.parquet"


_PART_NAME = re.compile(r"part-(\d{5,})(?:\.delta-(\d{5,})(?:-[0-9a-f]{12})?)?\.parquet")


def place_of_name(name: str) -> tuple[int, int] | None:
    """Return partition and generation of a file, 0 for the lowest one; None: not such a name."""
    found = _PART_NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2] or 0))


def deleted_name(number: int) -> str:
    """Return the name of a catalogue's file with the deleted items of a partition; written only if some exist."""
    return f"deleted-{number:05d}.parquet"


def is_deleted_name(name: str) -> bool:
    """Return True if a file of a catalogue has deleted items."""
    return name.startswith("deleted-")
