"""The join of a log and the item feed by their ids, measured on a sample in seconds, and without a worker."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pydantic import Field

from infra.store.base import Store
from infra.store.manifest import open_file, open_manifest
from tasks.contracts.references import FeedRef, SpanRef
from tasks.data.files.lists import members
from tasks.data.rows import (
    BATCH_ROWS,
    DELETED,
    FEED_KIND,
    ITEM_ID,
    SPAN_KIND,
    TIME,
    plain_ids,
)
from tasks.foundation.records import Record

LOG_ROWS = 1_000_000  # rows of a log that are read, in less than a second
FEED_ROWS = 5_000_000  # records of a feed that are read, the newest spans first
MOST_IDS = 20_000  # distinct ids that are looked for
_SHOWN = 3
_TRIED = 500  # unknown ids
_MOST_FOUND = 0.5  # share of the tried ids from which a form is named
_AFFIX_CHARS = 24  # longest part before or after an id
# Ids of a new item come to the log before they come to the feed, so a few are always unknown.
LIKELY_MISTAKE = 0.05  # share of the rows

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


class Join(Record):
    """The ids of a log, looked for in the item feed. Counts are of the ids and rows that were read."""

    ids: int = Field(description="distinct ids that were looked for, at most 20,000")
    known: int = Field(description="ids that the feed has")
    deleted: int = Field(description="known ids that the newest record of the feed calls deleted")
    rows: int = Field(description="rows with these ids")
    rows_known: int = Field(description="rows whose id the feed has")
    whole: bool = Field(description="true: all rows of the log and all records of the feed count")
    examples: tuple[str, ...] = Field(description="a few ids: unknown ones, else known ones")
    near: str = Field(description="form in which the feed knows the ids, and the way out; empty: none is known")

    @property
    def unknown_share(self) -> float:
        """The share of the rows whose id the feed lacks."""
        return 1 - self.rows_known / max(self.rows, 1)

    @property
    def sentence(self) -> str:
        """The measurement in one sentence."""
        some = "" if self.whole else " of a sample"
        deleted = f" ({self.deleted:,} of them deleted)" if self.deleted else ""
        rows = f", with {_percent(self.rows_known / max(self.rows, 1))} of the rows"
        shown = ", ".join(map(repr, self.examples))
        which = f"; it lacks {shown}" if self.known < self.ids else f", such as {shown}"
        share = _percent(self.known / max(self.ids, 1))
        return f"{share} of the log's {self.ids:,} ids{some} are in the item feed{deleted}{rows}{which}{self.near}"


def join_of(store: Store, spans: Sequence[SpanRef], feeds: Sequence[FeedRef]) -> Join | None:
    """Return the join of spans and an item feed; None without rows with an id, or without a feed or an item in it.

    Raises:
        MissingFolder, CorruptFolder: a span or a feed is missing or damaged.
    """
    counts, all_rows = _counted(store, spans)
    if not len(counts) or not feeds:
        return None
    left = counts[ITEM_ID]
    found: list[pa.Table] = []
    fed: list[pa.ChunkedArray] = []
    read = 0
    for feed in reversed(feeds):  # a newer span's record of an item is the newer one
        for table in _records(store, feed):
            read += len(table)
            fed.append(table[ITEM_ID])
            found.append(table.filter(pc.is_in(table[ITEM_ID], value_set=left)))
        if len(there := pa.concat_tables(found) if found else pa.table({ITEM_ID: []})):
            left = left.filter(pc.invert(pc.is_in(left, value_set=there[ITEM_ID])))
        if not len(left) or read >= FEED_ROWS:
            break
    if not found:  # all items of the feed were erased
        return None
    records = pa.concat_tables(found)
    known = pc.is_in(counts[ITEM_ID], value_set=records[ITEM_ID])
    unknown = counts.filter(pc.invert(known)).sort_by([("rows", "descending"), (ITEM_ID, "ascending")])
    rows = pc.sum(counts["rows"]).as_py()
    rows_known = pc.sum(counts.filter(known)["rows"]).as_py() or 0
    near = ""
    if rows - rows_known > LIKELY_MISTAKE * rows:
        near = _near(
            unknown[ITEM_ID].to_pylist(), pa.chunked_array([c for ids in fed for c in ids.chunks], pa.string())
        )
    first = unknown if len(unknown) else counts
    return Join(
        ids=len(counts),
        known=len(counts) - len(unknown),
        deleted=_deleted(records),
        rows=rows,
        rows_known=rows_known,
        whole=all_rows and (read < FEED_ROWS or not len(left)),
        examples=tuple(first[ITEM_ID].slice(0, _SHOWN).to_pylist()),
        near=near,
    )


def _counted(store: Store, spans: Sequence[SpanRef]) -> tuple[pa.Table, bool]:
    """Return ids of the spans, each with the number of its rows, and True if they are all, of all rows."""
    rows, whole = 0, True
    some: list[pa.Table] = []
    for span in reversed(spans):
        manifest = open_manifest(store, span.prefix, SPAN_KIND)
        for entry in manifest.files:
            if rows >= LOG_ROWS:
                whole = False
                break
            with pq.ParquetFile(open_file(store, span.prefix, manifest, entry.name), pre_buffer=False) as file:
                ids = file.read([ITEM_ID])
            rows += len(ids)
            some.append(ids.group_by(ITEM_ID).aggregate([([], "count_all")]).rename_columns([ITEM_ID, "rows"]))
    if not some:
        return pa.table({ITEM_ID: pa.array([], pa.string()), "rows": pa.array([], pa.int64())}), True
    counts = pa.concat_tables(some).group_by(ITEM_ID).aggregate([("rows", "sum")]).rename_columns([ITEM_ID, "rows"])
    counts = counts.filter(pc.is_valid(counts[ITEM_ID]))
    if len(counts) > MOST_IDS:  # some in their order, the same ones each time
        step = len(counts) / MOST_IDS
        counts = counts.sort_by(ITEM_ID).take(pa.array([int(place * step) for place in range(MOST_IDS)]))
        whole = False
    return counts, whole


def _records(store: Store, feed: FeedRef) -> Iterator[pa.Table]:
    """Yield the ids, times and deletions of a feed's records."""
    manifest = open_manifest(store, feed.prefix, FEED_KIND)
    for entry in manifest.files:
        with pq.ParquetFile(open_file(store, feed.prefix, manifest, entry.name), pre_buffer=False) as file:
            for batch in file.iter_batches(16 * BATCH_ROWS, columns=[ITEM_ID, TIME, DELETED]):
                yield pa.Table.from_batches([batch])


def _deleted(records: pa.Table) -> int:
    """Return the number of ids whose newest record is a deletion; of two at one time, the deletion counts."""
    newest = records.group_by(ITEM_ID).aggregate([(TIME, "max")])
    last = records.join(newest, ITEM_ID)
    last = last.filter(pc.and_(last[DELETED], pc.equal(last[TIME], last[f"{TIME}_max"])))
    return int(pc.count_distinct(last[ITEM_ID]).as_py())


def _near(unknown: Sequence[str], feed: pa.ChunkedArray) -> str:
    form = near_form(unknown, feed)
    if form is None:
        return ""
    return (
        f". They differ by {form.difference}: {form.example!r} is {form.known_as!r} in the feed, and so are "
        f"{form.share:.0%} of the unknown ones; {form.way_out}"
    )


def _percent(share: float) -> str:
    """Return a share with one decimal; 100 % only for all, 0 % only for none."""
    percent = round(100 * share, 1)
    percent = min(percent, 99.9) if share < 1 else percent
    return f"{max(percent, 0.1) if share > 0 else 0:g} %"


class NearForm(NamedTuple):
    """A form of the ids that the feed knows."""

    share: float  # known ones of the tried ids
    example: str  # an id of the log
    known_as: str  # the same id in the feed
    difference: str  # end of a sentence
    way_out: str


_Change = Callable[[pa.ChunkedArray], pa.ChunkedArray]
_ALIKE = "write the ids alike in both exports, and ingest the corrected one again with --replace"


def near_form(unknown: Sequence[str], feed: pa.ChunkedArray) -> NearForm | None:
    """Return the first form in which the feed knows at least half of the ids; None: none does.

    Args:
        unknown: ids of the log that the feed does not know as they are.
        feed: the ids of the feed, string.
    """
    tried = pa.chunked_array([list(unknown)[:_TRIED]], pa.string())
    if not len(tried) or not len(feed):
        return None
    for difference, change in _CHANGES.items():
        if found := _found(tried, change(tried), feed, change(feed), difference, _ALIKE):
            return found
    return _listed(tried, feed) or _affixed(tried, feed) or _varied(tried, feed)


def _plain(pattern: str, instead: str) -> _Change:
    return lambda ids: pc.replace_substring_regex(ids, pattern, instead)


_SIGN = r"[\s_\-./:#|]"  # between the parts of an id
_ZEROS = "zeros before the number"
# Named in the order of trying: the first that finds enough is the difference.
_CHANGES: dict[str, _Change] = {
    "blanks around the id": pc.utf8_trim_whitespace,
    "upper and lower case": pc.utf8_lower,
    _ZEROS: _plain(r"^0+(\d)", r"\1"),
    "zeros before a number in the id": _plain(r"(^|\D)0+(\d)", r"\1\2"),
    "a decimal point after the number": _plain(r"\.0+$", ""),
    "blanks, case, zeros or invisible characters": plain_ids,
    "signs between its parts": lambda ids: pc.utf8_lower(pc.replace_substring_regex(ids, _SIGN, "")),
}


def _found(
    tried: pa.ChunkedArray,
    changed: pa.ChunkedArray,
    feed: pa.ChunkedArray,
    changed_feed: pa.ChunkedArray,
    difference: str,
    way_out: str,
) -> NearForm | None:
    there = pc.is_in(changed, value_set=changed_feed)
    share = (pc.sum(there).as_py() or 0) / len(tried)
    if share < _MOST_FOUND:
        return None
    place = there.to_pylist().index(True)
    known_as = feed[pc.index(changed_feed, changed[place]).as_py()].as_py()
    return NearForm(share, tried[place].as_py(), known_as, difference, way_out)


def _listed(tried: pa.ChunkedArray, feed: pa.ChunkedArray) -> NearForm | None:
    """Return the form of several ids in one."""
    found = [(text, ids) for text in tried.to_pylist() if (ids := [str(each) for each in members(text)]) != [text]]
    there = _there([each for _, ids in found for each in ids], feed)
    known = [(text, ids) for text, ids in found if there & {*ids}]
    if len(known) < _MOST_FOUND * len(tried):
        return None
    text, ids = known[0]
    way_out = "give --explode COLUMN with the column of these ids, which makes a row of each"
    first = next(each for each in ids if each in there)
    return NearForm(len(known) / len(tried), text, first, "several ids in one value", way_out)


def _there(ids: Sequence[str], feed: pa.ChunkedArray) -> set[str]:
    """Return the ids that the feed has."""
    return {*feed.filter(pc.is_in(feed, value_set=pa.array(ids, pa.string()))).to_pylist()}


def _affixed(tried: pa.ChunkedArray, feed: pa.ChunkedArray) -> NearForm | None:
    """Return the form of a part before or after the id, which the log alone or the feed alone has."""
    of_log = Counter[tuple[str, str]]()
    texts = tried.to_pylist()
    known = _there([part for text in texts for part in _parts(text)], feed)
    for text in texts:
        of_log.update({(text[: text.rindex(part)], text[text.rindex(part) + len(part) :])
                       for part in _parts(text) if part in known})  # fmt: skip
    candidates = [(before, after, True) for (before, after), _ in of_log.most_common(3)]
    candidates += [(*pair, True) for pair in _common_affixes(tried)]
    candidates += [(*pair, False) for pair in _common_affixes(feed)]
    for before, after, in_log in candidates:
        change = _without(before, after)
        logged, fed = (change(tried), feed) if in_log else (tried, change(feed))
        parts = [f"{json.dumps(part, ensure_ascii=False)} {where}"
                 for part, where in ((before, "before"), (after, "after")) if part]  # fmt: skip
        difference = f"{' and '.join(parts)} each id in {'the log' if in_log else 'the feed'}"
        if found := _found(tried, logged, feed, fed, difference, _ALIKE):
            return found
        zeros = _CHANGES[_ZEROS]
        if found := _found(tried, zeros(logged), feed, zeros(fed), f"{difference}, and {_ZEROS}", _ALIKE):
            return found
    return None


def _varied(tried: pa.ChunkedArray, feed: pa.ChunkedArray) -> NearForm | None:
    """Return the form of a part beside a sign that differs from id to id, such as a size or a language."""
    for place, pattern in (("last", rf"^(.+){_SIGN}[^{_SIGN[1:]}+$"), ("first", rf"^([^{_SIGN[1:]}+){_SIGN}.+$")):
        change = _plain(pattern, r"\1")
        for logged, fed, side in ((change(tried), feed, "log"), (tried, change(feed), "feed")):
            difference = f"a varying part behind the {place} sign of each id in the {side}"
            if found := _found(tried, logged, feed, fed, difference, _ALIKE):
                return found
    return None


def _parts(text: str) -> list[str]:
    """Return the ends and the beginnings of an id."""
    cuts = range(1, min(len(text), _AFFIX_CHARS + 1))
    return [*(text[cut:] for cut in cuts), *(text[:-cut] for cut in cuts)]


def _common_affixes(ids: pa.ChunkedArray) -> list[tuple[str, str]]:
    """Return the common beginning and end of all ids, without digits at the inner end, or up to a sign there."""
    found = []
    for turned in (ids, pc.utf8_reverse(ids)):
        low, high = (each.as_py() for each in (pc.min(turned), pc.max(turned)))
        same = next((n for n, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
        found.append(re.sub(r"\d+$", "", low[:same]))
    before, after = found[0], found[1][::-1]
    to_signs = (re.sub(r"[^\W_]+$", "", before), re.sub(r"^[^\W_]+", "", after))
    return [pair for pair in dict.fromkeys([(before, ""), ("", after), (before, after), to_signs]) if any(pair)]


def _without(before: str, after: str) -> _Change:
    return _plain(rf"^{re.escape(before)}(.+){re.escape(after)}$", r"\1")
