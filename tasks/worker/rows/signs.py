"""Signs of a faulty export, as shares of rows: garbled texts, one query everywhere, queries of other items.

Each share is compared with earlier spans, because a fault in one shop is usual in another. A first span has none, so
its shares count in full.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute

from configs.schema.stages import Bounds
from configs.schema.validation import SignsConfig
from tasks.contracts.outcomes import Check
from tasks.data.files.faulty_texts import MARKUP, MISREAD
from tasks.data.rows import ITEM, ITEM_ID, LABEL, QUERY, TIME, normal_text
from tasks.foundation.nouns import plural
from tasks.worker.catalogue.wrong_joins import SharedWords, shared_words
from tasks.worker.checks.verdicts import check_share, not_judged
from tasks.worker.rows.drift import MIN_ROWS

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

_GARBLED = MISREAD + r"|\pL\?\pL"  # and question marks inside words


class Sign(NamedTuple):
    """The name of a sign's check, a sentence about the rows that have it, and advice."""

    check: str
    sentence: str
    advice: str


SIGNS: dict[str, Sign] = {
    "query_is_item": Sign("queries differ from items", "have the item's text as their query",
                          "Is the right column mapped to query?"),
    "one_query": Sign("queries differ", "have one and the same query",
                      "Is it a test, a bot, or a default value? Leave its rows out of the export."),
    "one_item": Sign("item texts differ", "have one and the same item text", "Is it a default value?"),
    "query_of_item": Sign("queries free of their items",
                          "have a query that begins or ends with the first or last word of its item's text, or has "
                          "the item's id in it",
                          "Is a part of the item joined to the query? A search does not have it, so a model that "
                          "relies on it finds less."),
    "other_text": Sign("items have one text", "are about an item that has several texts in the span",
                       "Are ids and texts joined rightly in the export?"),
    "garbled": Sign("texts readable", "have a text with signs of a wrong character encoding",
                    "Read the source as UTF-8 and ingest the span again."),
    "markup": Sign("texts plain", "have a text with HTML in it", "Unescape the texts and ingest the span again."),
    "one_time": Sign("times differ", "have one and the same time",
                     "The newest text of an item can't be told from older ones of that time."),
    "repeated": Sign("rows differ", "repeat the query, item, label and time of another row under an id of their own",
                     "Were the rows exported twice?"),
}  # fmt: skip


# Counts of parts of an item in its query: the word of the query, and the word of the text that it equals.
PLACES = {
    "begins with first": (0, 0),
    "begins with last": (0, -1),
    "ends with first": (-1, 0),
    "ends with last": (-1, -1),
}
_WITH_ID = "has the id"
_WORDS = ("word of its item", "word of another item", "word of any item")  # as in `SharedWords`
COUNTS = (*(name for name in SIGNS if name != "query_of_item"), *PLACES, _WITH_ID, *_WORDS)
_JOINED = "queries joined to their items"
_JOIN_AGAIN = "Are queries, ids and texts joined rightly? If not, correct the export and ingest the span again."
_SHOWN = 3  # rows as examples
_SHOWN_CHARS = 60
_SHORTEST_ID = 3  # characters; a shorter id may be a word by chance


def count_signs(rows: pa.Table) -> dict[str, int]:
    """Return the number of rows with each sign, by the names of COUNTS."""
    if not len(rows):
        return dict.fromkeys(COUNTS, 0)
    texts = [[normal_text(text) for text in rows[name].to_pylist()] for name in (QUERY, ITEM)]
    return {
        "query_is_item": sum(query == item for query, item in zip(*texts, strict=True)),
        "one_query": _most(pa.array(texts[0])),
        "one_item": _most(pa.array(texts[1])),
        **_parts_of_items(texts[0], texts[1], rows[ITEM_ID].to_pylist()),
        "other_text": _with_several_texts(rows[ITEM_ID], pa.array(texts[1])),
        "garbled": _either(rows, _GARBLED),
        "markup": _either(rows, MARKUP),
        "one_time": _most(rows[TIME]),
        **dict(zip(_WORDS, shared_words(*texts)[1:], strict=True)),
        "repeated": len(rows) - rows.group_by([QUERY, ITEM_ID, LABEL, TIME]).aggregate([]).num_rows,
    }


def judge_signs(
    earlier: Mapping[str, int],
    earlier_rows: int,
    now: Mapping[str, int],
    now_rows: int,
    limits: SignsConfig,
    examples: Mapping[str, Sequence[str]] | None = None,
) -> list[Check]:
    """Return the check of each sign: the rise of its share over earlier spans; without any, the share itself.

    Args:
        examples: some rows by sign, from `examples_of`.
    """
    checks = []
    for name, sign in SIGNS.items():
        bounds = getattr(limits, name)
        if now_rows < MIN_ROWS or 0 < earlier_rows < MIN_ROWS:
            rows = f"{plural(earlier_rows, 'earlier row')} and {now_rows} in the window"
            why = f"{rows}; {MIN_ROWS} on each side are needed"
            checks.append(not_judged(sign.check, bounds, why))
            continue
        counted = (*PLACES, _WITH_ID) if name == "query_of_item" else (name,)
        share, before = max(
            ((now[each] / now_rows, earlier[each] / earlier_rows if earlier_rows else 0.0) for each in counted),
            key=lambda shares: shares[0] - shares[1],
        )
        usual = f"{before:.2%} in the spans before" if earlier_rows else "and no span is before it"
        shown = f", as {'; '.join(examples[name])}" if examples and examples.get(name) else ""
        sentence = f"{share:.2%} of {now_rows} rows {sign.sentence}{shown}, {usual}"
        rise = max(0.0, share - before)
        checks.append(check_share(sign.check, rise, bounds, f"signs.{name}", sentence, sign.advice, "more"))
    sides = ((earlier_rows, earlier), (now_rows, now))
    before, words = (SharedWords(rows, *(counts.get(name, 0) for name in _WORDS)) for rows, counts in sides)
    return [*checks, _joined(before, words, limits.misplaced)]


def _joined(before: SharedWords, now: SharedWords, bounds: Bounds) -> Check:
    """Return the check of words that queries share with other items than their own.

    A first span alone is stopped: later ones have a champion, whose loss the gates measure. A shop whose earlier spans
    are above the limit as well is judged by the rise: its queries rarely name the items.
    """
    if now.rows < MIN_ROWS or now.misplaced is None:
        why = f"{plural(now.rows, 'row')}; {MIN_ROWS} whose queries have words of items are needed"
        return not_judged(_JOINED, bounds, why)
    usual = before.misplaced if before.rows >= MIN_ROWS else None
    natural = usual if usual is not None and bounds.warn is not None and usual > bounds.warn else 0.0
    sentence = (
        f"{now.share(now.any):.1%} of {now.rows} rows have a query with a word of some item, {now.share(now.own):.1%} "
        f"with one of their own item, {now.share(now.other):.1%} with one of another by chance: {now.misplaced:.1%} of "
        f"the words belong to other items{f', {usual:.1%} in the spans before' if usual is not None else ''}"
    )
    share = max(0.0, now.misplaced - natural)
    bounds = bounds if not before.rows else Bounds(warn=bounds.warn, stop=None)
    return check_share(_JOINED, share, bounds, "signs.misplaced", sentence, _JOIN_AGAIN)


def examples_of(rows: pa.Table) -> dict[str, tuple[str, ...]]:
    """Return some texts with a sign that only the text shows, by sign."""
    found = {}
    for name, pattern in (("garbled", _GARBLED), ("markup", MARKUP)):
        texts = [rows[column].filter(pc.match_substring_regex(rows[column], pattern)) for column in (QUERY, ITEM)]
        found[name] = tuple(repr(_cut(each)) for column in texts for each in column[:_SHOWN].to_pylist())[:_SHOWN]
    pairs = zip(*(rows[column].to_pylist() for column in (QUERY, ITEM, ITEM_ID)), strict=True)
    of_item = (
        (query, item)
        for query, item, item_id in pairs
        if any(_parts_of_items([normal_text(query)], [normal_text(item)], [item_id]).values())
    )
    found["query_of_item"] = tuple(f"{_cut(query)!r} for {_cut(item)!r}" for query, item in islice(of_item, _SHOWN))
    return found


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _parts_of_items(queries: Sequence[str], items: Sequence[str], ids: Sequence[str]) -> dict[str, int]:
    """Count the rows whose query has a part of the item at its ends, or the item's id as a word.

    A text of one word is its own first and last word, so such queries and items are left to the sign `query_is_item`.
    """
    counts = dict.fromkeys((*PLACES, _WITH_ID), 0)
    for query, item, item_id in zip(queries, items, ids, strict=True):
        said, text = query.split(), item.split()
        counts[_WITH_ID] += len(item_id) >= _SHORTEST_ID and item_id.casefold() in said
        if len(said) > 1 and len(text) > 1 and said != text:
            for name, (of_query, of_item) in PLACES.items():
                counts[name] += said[of_query] == text[of_item]
    return counts


def _with_several_texts(ids: pa.ChunkedArray, texts: pa.Array) -> int:
    """Count the rows about items that have more than one text."""
    found = pa.table({"id": ids, "text": texts}).group_by("id").aggregate([("text", "count_distinct"), ("id", "count")])
    return int(pc.sum(found.filter(pc.greater(found["text_count_distinct"], 1))["id_count"]).as_py() or 0)


def _most(values: pa.Array | pa.ChunkedArray) -> int:
    """Return the count of the commonest value."""
    return int(pc.max(pc.value_counts(values).field("counts")).as_py() or 0)


def _either(rows: pa.Table, pattern: str) -> int:
    found = pc.or_(*(pc.match_substring_regex(rows[name], pattern) for name in (QUERY, ITEM)))
    return int(pc.sum(found).as_py() or 0)
