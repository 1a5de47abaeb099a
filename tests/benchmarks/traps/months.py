"""Months of the demo's shop that are wrong, and months that are honest however unusual: what is done to their rows."""

import html
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from flows.demo.search_log import FIRST_MONTH, Row, shop_rows

BEFORE, ROWS, SEED = 4, 2000, 7  # months before the trap, rows of a month, the shop
FIRST = FIRST_MONTH.replace(month=6)
MONTH = f"{FIRST.year}-{FIRST.month + BEFORE:02d}"
_LATER = 8  # a month with other products on sale


class Month(NamedTuple):
    """`change` gets the clean rows of the month, in order, and may change them."""

    change: Callable[[list[Row]], Iterable[Row]]
    wrong: bool


def rows_of(month: int, rows: int = ROWS) -> list[Row]:
    """Return the rows of a month, counted from 0."""
    return [row for row in shop_rows(month + 1, rows, SEED, FIRST) if row["query_id"].startswith(f"q{month:03d}-")]


def clean_rows() -> list[Row]:
    """Return rows of the month that no trap has touched, of products that were bought."""
    return [row for row in rows_of(BEFORE) if _whole(row) and row["bought"] == 1.0]


def _whole(row: Row) -> bool:
    return bool(row["product"] and row["query"] and len(row["query"]) < 1000 and row["price"] > 0)


def _each(**changes: Callable[[Row], object]) -> Callable[[list[Row]], list[Row]]:
    """Change columns of each row; a change sees the row as it was."""
    return lambda rows: [row | {name: change(row) for name, change in changes.items()} for row in rows]


def _some(share: float, **changes: Callable[[Row], object]) -> Callable[[list[Row]], list[Row]]:
    """The same for a share of the rows, drawn at random."""
    change = _each(**changes)
    return lambda rows: [
        change([row])[0] if random.Random(f"some/{at}").random() < share else row for at, row in enumerate(rows)
    ]


def _permuted(column: str) -> Callable[[list[Row]], list[Row]]:
    """Give each value of the column the place of another one, the same in all rows."""

    def change(rows: list[Row]) -> list[Row]:
        values = sorted({str(row[column]) for row in rows if row[column]})
        shuffled = random.Random(column).sample(values, len(values))
        others = dict(zip(values, shuffled, strict=True))
        return [row | {column: others.get(str(row[column]), row[column])} for row in rows]

    return change


def _shuffled(*columns: str) -> Callable[[list[Row]], list[Row]]:
    def change(rows: list[Row]) -> list[Row]:
        others = random.Random(columns[0]).sample(rows, len(rows))
        return [row | {c: other[c] for c in columns} for row, other in zip(rows, others, strict=True)]

    return change


def _slipped(*columns: str) -> Callable[[list[Row]], list[Row]]:
    """Give each row the columns of the row before."""
    return lambda rows: [
        row | {c: before[c] for c in columns} for row, before in zip(rows, [rows[-1], *rows[:-1]], strict=True)
    ]


def _garbled(text: str | None) -> str | None:
    return text and text.encode().decode("latin-1")


def _translated(rows: list[Row]) -> list[Row]:
    """Give each product its title in the other language, as far as that is known."""
    known = {row["product_id"]: row["product"] for month in range(BEFORE + 1) for row in rows_of(month)}
    other = {"en": "de", "de": "en"}
    return [
        row | {"product": known.get(f"{row['product_id'][:-2]}{other[row['locale']]}", row["product"])} for row in rows
    ]


def _re_dated(rows: list[Row], others: list[Row]) -> list[Row]:
    """Give other rows the times and the ids of the month, in turn."""
    return [
        other | {"searched_at": row["searched_at"], "query_id": row["query_id"]}
        for row, other in zip(rows, others, strict=False)
    ]


def _edited(text: str | None) -> str | None:
    return text and f"{text} (2026)"


def _typed(query: str) -> str:
    """Swap two letters of every third word."""
    words = query.split()
    return " ".join(w[0] + w[2] + w[1] + w[3:] if at % 3 == 0 and len(w) > 3 else w for at, w in enumerate(words))


def _title_edits(rows: list[Row]) -> list[Row]:
    edited = {pid for pid in {row["product_id"] for row in rows} if random.Random(f"edit/{pid}").random() < 0.07}
    return [row | {"product": _edited(row["product"])} if row["product_id"] in edited else row for row in rows]


def _friday(rows: list[Row]) -> list[Row]:
    """Half of all searches are for thirty products."""
    wanted = sorted({row["product_id"] for row in rows if _whole(row)})[:: max(1, len(rows) // 60)][:30]
    hot = [row for month in range(BEFORE + 1) for row in rows_of(month) if row["product_id"] in wanted and _whole(row)]
    chance = random.Random("friday")
    return _re_dated(rows, [chance.choice(hot) if at % 2 else row for at, row in enumerate(rows)])


def _new_items(rows: list[Row]) -> list[Row]:
    known = {row["product_id"] for month in range(BEFORE) for row in rows_of(month)}
    later = [row for row in rows_of(_LATER) if row["product_id"] not in known]
    return _re_dated(rows, [later[at % len(later)] if at % 3 == 0 else row for at, row in enumerate(rows)])


def _french(rows: list[Row]) -> list[Row]:
    """A sixth of the English rows are of a new market, which sells the same under ids of its own."""

    def french(row: Row) -> Row:
        return row | {"locale": "fr", "product_id": row["product_id"][:-2] + "fr",
                      "product": row["product"] and f"{row['product']} pour toute la maison",
                      "query": f"je cherche {row['query']}"}  # fmt: skip

    return [french(row) if row["locale"] == "en" and at % 6 == 0 else row for at, row in enumerate(rows)]


def _heads(rows: list[Row]) -> list[Row]:
    """All rows are of 150 searches, which many customers made."""
    chance = random.Random("heads")
    whole = [row for row in rows if _whole(row)][:150]
    return _re_dated(rows, [chance.choice(whole) for _ in rows])


_TRUE, _FALSE = (lambda _: 1.0), (lambda _: 0.0)

MONTHS: dict[str, Month] = {
    # --- wrong ---
    "item ids joined wrongly": Month(_permuted("product_id"), True),
    "item ids slipped by one row": Month(_slipped("product_id"), True),
    "item ids in upper case, with a blank": Month(_each(product_id=lambda r: r["product_id"].upper() + " "), True),
    "item ids with a zero-width space": Month(_each(product_id=lambda r: "\u200b" + r["product_id"]), True),
    "the row's id as the item's": Month(_each(product_id=lambda r: r["query_id"]), True),
    "blank item ids": Month(_some(0.3, product_id=lambda _: " \u00a0"), True),
    "texts exchanged between half of the items": Month(
        lambda rows: [
            row if int(row["product_id"][1:6]) % 2 else other
            for row, other in zip(rows, _permuted("product")(rows), strict=True)
        ],
        True,
    ),
    "the item's id as its text": Month(_each(product=lambda r: r["product"] and r["product_id"]), True),
    "all items alike": Month(_each(product=lambda r: r["product"] and "Product"), True),
    "titles cut off after ten characters": Month(_each(product=lambda r: r["product"] and r["product"][:10]), True),
    "titles garbled (mojibake)": Month(_each(product=lambda r: _garbled(r["product"])), True),
    "titles and queries escaped as HTML": Month(
        _each(
            product=lambda r: r["product"] and html.escape(f"<b>{r['product']}</b>"),
            query=lambda r: html.escape(f"<q>{r['query']}</q>"),
        ),
        True,
    ),
    "titles translated": Month(_translated, True),
    "half of the titles empty": Month(_some(0.5, product=lambda _: " "), True),
    "query = item text": Month(_each(query=lambda r: r["product"] or r["query"]), True),
    "query = item id": Month(_each(query=lambda r: r["product_id"]), True),
    "query = category": Month(_each(query=lambda r: r["category"]), True),
    "99 % one query": Month(_some(0.99, query=lambda _: "shoes"), True),
    "test traffic: a third of the rows": Month(_some(0.33, query=lambda _: "test test"), True),
    "queries slipped by one row": Month(_slipped("query"), True),
    "queries cut off after four characters": Month(_each(query=lambda r: r["query"][:4]), True),
    "queries garbled (mojibake)": Month(_each(query=lambda r: _garbled(r["query"])), True),
    "a third of the queries invisible": Month(_some(0.33, query=lambda _: "\u200b"), True),
    "labels inverted": Month(_each(bought=lambda r: 1 - r["bought"] if r["bought"] in (0, 1) else 7.0), True),
    "labels shuffled": Month(_shuffled("bought"), True),
    "all labels 1": Month(_each(bought=_TRUE), True),
    "all labels 0": Month(_each(bought=_FALSE), True),
    "prices in cents": Month(_each(price=lambda r: r["price"] * 100), True),
    "prices slipped by one row": Month(_slipped("price"), True),
    "categories slipped by one row": Month(_slipped("category"), True),
    "every row twice, with another id": Month(
        lambda rows: [each for row in rows for each in (row, row | {"query_id": row["query_id"] + "b"})], True
    ),
    "one locale missing": Month(lambda rows: [row for row in rows if row["locale"] == "en"], True),
    "all times equal": Month(_each(searched_at=lambda _: f"{MONTH}-03T00:00:00Z"), True),
    "the month before once more": Month(lambda rows: _re_dated(rows, rows_of(BEFORE - 1)), True),
    "three quarters of the rows missing": Month(lambda rows: rows[::4], True),
    # --- honest ---
    "as usual": Month(list, False),
    "a sale: prices halved": Month(_each(price=lambda r: round(r["price"] / 2, 2)), False),
    "prices raised by 20 %": Month(_each(price=lambda r: round(r["price"] * 1.2, 2)), False),
    "a third of the rows about new items": Month(_new_items, False),
    "a new category": Month(
        _each(category=lambda r: "outdoor" if r["category"] in ("garden", "sports") else r["category"]), False
    ),
    "a new locale": Month(_french, False),
    "few rows": Month(lambda rows: rows[:250], False),
    "many rows": Month(lambda rows: _re_dated(rows_of(BEFORE, 2 * ROWS), rows_of(BEFORE, 2 * ROWS)), False),
    "half of the rows missing at random": Month(lambda rows: rows[::2], False),
    "more typing errors": Month(_some(0.4, query=lambda r: _typed(r["query"])), False),
    "longer queries": Month(_each(query=lambda r: f"I am looking for {r['query']} please"), False),
    "queries in capitals": Month(_each(query=lambda r: r["query"].upper()), False),
    "more is bought": Month(lambda rows: [r for at, r in enumerate(rows) if r["bought"] or at % 3 == 0], False),
    "less is bought": Month(lambda rows: [r for at, r in enumerate(rows) if not r["bought"] or at % 2], False),
    "7 % of the titles edited": Month(_title_edits, False),
    "titles in capitals": Month(_each(product=lambda r: r["product"] and r["product"].upper()), False),
    "Black Friday: half of the searches for 30 products": Month(_friday, False),
    "a quarter of the items gone": Month(
        lambda rows: [row for row in rows if int(row["product_id"][1:6]) % 4], False
    ),
    "head queries alone": Month(_heads, False),
    "a season: garden and sports": Month(
        lambda rows: [r for at, r in enumerate(rows) if r["category"] in ("garden", "sports") or at % 3 == 0], False
    ),
    "items of the first month return": Month(
        lambda rows: _re_dated(rows, [b if at % 2 else rows[at] for at, b in enumerate(rows_of(0))]), False
    ),
    "rows in another order": Month(lambda rows: sorted(rows, key=lambda row: row["product_id"]), False),
}  # fmt: skip
