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
    first: bool = False  # nothing was ingested before it


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


def _known_before() -> set[str]:
    return {row["product_id"] for month in range(BEFORE) for row in rows_of(month)}


def _about_new_items(*columns: str, of: Callable[[list[Row]], list[Row]]) -> Callable[[list[Row]], list[Row]]:
    """Change columns of the rows about items that no month before has; `of` changes these rows alone."""

    def change(rows: list[Row]) -> list[Row]:
        known = _known_before()
        changed = iter(of([row for row in rows if row["product_id"] not in known]))
        return [
            row if row["product_id"] in known else row | {name: other[name] for name in columns}
            for row, other in ((row, row if row["product_id"] in known else next(changed)) for row in rows)
        ]

    return change


def _siblings(rows: list[Row]) -> list[Row]:
    """A quarter of what was bought is another product of the same category and language."""
    kinds: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if _whole(row):
            kinds.setdefault((row["category"], row["locale"]), []).append(row)
    chance = random.Random("siblings")

    def sibling(row: Row) -> Row:
        other = chance.choice(kinds[row["category"], row["locale"]])
        return row | {name: other[name] for name in ("product", "product_id", "price")}

    return [sibling(row) if row["bought"] == 1.0 and chance.random() < 0.25 else row for row in rows]


def _one_item(share: float, **changes: Callable[[Row], object]) -> Callable[[list[Row]], list[Row]]:
    """A share of the rows is about one item of the month."""

    def change(rows: list[Row]) -> list[Row]:
        item = next(row for row in rows if _whole(row))
        of_item = {name: item[name] for name in ("product", "product_id", "category", "locale", "price")}
        about = _some(share, **{name: (lambda _, v=value: v) for name, value in of_item.items()}, **changes)
        return about(rows)

    return change


def _flash_sale(rows: list[Row]) -> list[Row]:
    """A fifth of the rows are searches of one product, as its customers make them, in its five words."""
    item = next(row for row in rows if _whole(row) and row["bought"] == 1.0)
    words, chance = item["product"].lower().split(), random.Random("flash")

    def searched(row: Row) -> Row:
        said = chance.sample(words, k=min(len(words), chance.randint(2, 4)))
        return item | {"query": " ".join(said), "query_id": row["query_id"], "searched_at": row["searched_at"]}

    return [searched(row) if chance.random() < 0.2 else row for row in rows]


def _price_list(rows: list[Row]) -> list[Row]:
    """Each product has a new price, between 20 % less and 25 % more."""
    return [
        row | {"price": round(row["price"] * random.Random(row["product_id"][:-2]).uniform(0.8, 1.25), 2)}
        for row in rows
    ]


_KANA = "アイウエオカキクケコサシスセソタチツテトナニヌネノハヒフヘホマミムメモヤユヨラリルレロワン"


def _kana(text: str) -> str:
    """Spell each word in Japanese signs, the same word always alike."""
    return " ".join("".join(_KANA[ord(sign) % len(_KANA)] for sign in word) for word in text.lower().split())


def _japanese(rows: list[Row]) -> list[Row]:
    """A sixth of the English rows are of a new market in another script."""

    def japanese(row: Row) -> Row:
        return row | {"locale": "ja", "product_id": row["product_id"][:-2] + "ja",
                      "product": row["product"] and _kana(row["product"]), "query": _kana(row["query"])}  # fmt: skip

    return [japanese(row) if row["locale"] == "en" and at % 6 == 0 else row for at, row in enumerate(rows)]


def _exchanged_in(*categories: str) -> Callable[[Row], object]:
    """Turn the labels of some categories round."""
    return lambda row: 1 - row["bought"] if row["category"] in categories and row["bought"] in (0, 1) else row["bought"]


def _prices_within_categories(rows: list[Row]) -> list[Row]:
    """Each product has the price of another one of its category."""
    prices = {row["product_id"][:-2]: (row["category"], row["price"]) for row in rows if _whole(row)}
    others: dict[str, float] = {}
    for category in sorted({kind for kind, _ in prices.values()}):
        ids = sorted(each for each, (kind, _) in prices.items() if kind == category)
        mixed = random.Random(category).sample(ids, len(ids))
        others |= {each: prices[other][1] for each, other in zip(ids, mixed, strict=True)}
    return [row | {"price": others.get(row["product_id"][:-2], row["price"])} for row in rows]


_TRUE, _FALSE = (lambda _: 1.0), (lambda _: 0.0)
_BOUGHT_PRICE = _each(price=lambda r: r["price"] if r["bought"] == 1.0 else None)
_GARBLED_TITLES = _each(product=lambda r: _garbled(r["product"]))

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
    "labels inverted in two of nine categories": Month(_each(bought=_exchanged_in("garden", "sports")), True),
    "labels shuffled in one category": Month(
        lambda rows: [
            row | {"bought": other["bought"]} if row["category"] == "garden" else row
            for row, other in zip(rows, _shuffled("bought")(rows), strict=True)
        ],
        True,
    ),
    "all labels 0 in one locale": Month(
        _each(bought=lambda r: 0.0 if r["locale"] == "de" else r["bought"]), True
    ),
    "the price is missing where nothing was bought": Month(_BOUGHT_PRICE, True),
    "new items with a placeholder title": Month(
        _about_new_items("product", of=_each(product=lambda r: r["product"] and "New product")), True
    ),
    "titles of new items exchanged": Month(_about_new_items("product", of=_permuted("product")), True),
    "the last word of the title in the query": Month(
        _each(query=lambda r: f"{r['query']} {r['product'].split()[-1].lower()}" if r["product"] else r["query"]), True
    ),
    "a quarter of the clicks joined to a sibling": Month(_siblings, True),
    "a bot: 15 % of the rows on one item": Month(_one_item(0.15), True),
    "one item for all rows": Month(_one_item(1.0), True),
    "locales exchanged": Month(_each(locale=lambda r: {"en": "de", "de": "en"}[r["locale"]]), True),
    "queries of the other locale": Month(
        lambda rows: [
            row | {"query": other["query"]} if row["bought"] == 1.0 else row
            for row, other in zip(rows, _re_dated(rows, sorted(rows, key=lambda r: r["locale"])), strict=True)
        ],
        True,
    ),
    "item ids in upper case": Month(_each(product_id=lambda r: r["product_id"].upper()), True),
    "staging ids": Month(_each(product_id=lambda r: f"stg-{r['product_id']}"), True),
    "a default category in 40 % of the rows": Month(_some(0.4, category=lambda _: "unknown"), True),
    "queries escaped as HTML": Month(_each(query=lambda r: html.escape(f"<q>{r['query']}</q>")), True),
    "prices exchanged within each category": Month(_prices_within_categories, True),
    "the first month: titles garbled": Month(_GARBLED_TITLES, True, first=True),
    "the first month: item ids slipped by one row": Month(_slipped("product_id"), True, first=True),
    "the first month: queries slipped by one row": Month(_slipped("query"), True, first=True),
    "the first month: all items alike": Month(_each(product=lambda r: r["product"] and "Product"), True, first=True),
    "the first month: 99 % one query": Month(_some(0.99, query=lambda _: "shoes"), True, first=True),
    "the first month: the price is missing where nothing was bought": Month(_BOUGHT_PRICE, True, first=True),
    "the first month: labels shuffled": Month(_shuffled("bought"), True, first=True),
    "the first month: garbled titles, slipped prices, the last word in the query": Month(
        lambda rows: MONTHS["the last word of the title in the query"].change(
            _slipped("price")([*_GARBLED_TITLES(rows)])
        ),
        True,
        first=True,
    ),
    # --- honest ---
    "the first month, as usual": Month(list, False, first=True),
    "all prices changed: a new price list": Month(_price_list, False),
    "prices in another currency": Month(_each(price=lambda r: round(r["price"] * 1.1713, 2)), False),
    "a third of the prices missing": Month(_some(0.33, price=lambda _: None), False),
    "a taxonomy with other names": Month(_each(category=lambda r: f"{r['category']} 2026"), False),
    "a new language in another script": Month(_japanese, False),
    "a flash sale: a fifth of the searches for one product": Month(_flash_sale, False),
    "a department closes": Month(lambda rows: [row for row in rows if row["category"] != "garden"], False),
    "queries with accents, emoji and quotes": Month(
        _some(0.5, query=lambda r: f"“{r['query']}” – für Zoë & Søren 🎁 ™…"), False
    ),
    "a fifth of the queries completed from titles": Month(
        _some(0.2, query=lambda r: r["product"].lower() if r["product"] else r["query"]), False
    ),
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
