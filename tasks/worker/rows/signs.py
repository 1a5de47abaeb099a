"""Signs of a faulty export, as shares of rows: garbled texts, one query everywhere, queries that equal their items.

Each share is compared with earlier spans, because a fault in one shop is usual in another.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute

from configs.schema.validation import SignsConfig
from tasks.contracts.outcomes import Check
from tasks.data.files.shapes import MARKUP, MISREAD
from tasks.data.rows import ITEM, ITEM_ID, LABEL, QUERY, TIME, normal_text
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
    "garbled": Sign("texts readable", "have a text with signs of a wrong character encoding",
                    "Read the source as UTF-8 and ingest the span again."),
    "markup": Sign("texts plain", "have a text with HTML in it", "Unescape the texts and ingest the span again."),
    "one_time": Sign("times differ", "have one and the same time",
                     "The newest text of an item can't be told from older ones of that time."),
    "repeated": Sign("rows differ", "repeat the query, item, label and time of another row under an id of their own",
                     "Were the rows exported twice?"),
}  # fmt: skip


def count_signs(rows: pa.Table) -> dict[str, int]:
    """Return the number of rows with each sign."""
    if not len(rows):
        return dict.fromkeys(SIGNS, 0)
    texts = [[normal_text(text) for text in rows[name].to_pylist()] for name in (QUERY, ITEM)]
    return {
        "query_is_item": sum(query == item for query, item in zip(*texts, strict=True)),
        "one_query": _most(pa.array(texts[0])),
        "one_item": _most(pa.array(texts[1])),
        "garbled": _either(rows, _GARBLED),
        "markup": _either(rows, MARKUP),
        "one_time": _most(rows[TIME]),
        "repeated": len(rows) - rows.group_by([QUERY, ITEM_ID, LABEL, TIME]).aggregate([]).num_rows,
    }


def judge_signs(
    earlier: Mapping[str, int], earlier_rows: int, now: Mapping[str, int], now_rows: int, limits: SignsConfig
) -> list[Check]:
    """Return the check of each sign: the rise of its share over earlier spans."""
    checks = []
    for name, sign in SIGNS.items():
        bounds = getattr(limits, name)
        if min(earlier_rows, now_rows) < MIN_ROWS:
            why = f"{earlier_rows} earlier rows and {now_rows} in the window; {MIN_ROWS} on each side are needed"
            checks.append(not_judged(sign.check, bounds, why))
            continue
        share, before = now[name] / now_rows, earlier[name] / earlier_rows
        sentence = f"{share:.2%} of {now_rows} rows {sign.sentence}, {before:.2%} in the spans before"
        rise = max(0.0, share - before)
        checks.append(check_share(sign.check, rise, bounds, f"signs.{name}", sentence, sign.advice, "more"))
    return checks


def _most(values: pa.Array | pa.ChunkedArray) -> int:
    """Return the count of the commonest value."""
    return int(pc.max(pc.value_counts(values).field("counts")).as_py() or 0)


def _either(rows: pa.Table, pattern: str) -> int:
    found = pc.or_(*(pc.match_substring_regex(rows[name], pattern) for name in (QUERY, ITEM)))
    return int(pc.sum(found).as_py() or 0)
