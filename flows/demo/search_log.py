"""The demo's input: the search log of a synthetic shop, month by month, in two languages.

Seeded, so the same call writes the same bytes. Customers and titles use different words for the same thing, assortment
and slang change from month to month, and a few percent of the rows are broken, as in any real log.
"""

import datetime as dt
import gzip
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from flows.demo import words

FIRST_MONTH = dt.date(2026, 1, 1)
LOCALES = ("en", "de")
PRODUCTS_PER_TYPE = 40
TYPES_ON_SALE, NEW_TYPES_PER_SPAN = 24, 3
BRANDS_ON_SALE, NEW_BRANDS_PER_SPAN = 16, 2
BOUGHT_SHARE = 0.75
DIRTY_SHARE = 0.03
OVERLONG_CHARS = 6000

# Probabilities that a customer names an attribute, names it as the title does, mistypes a word, adds noise.
_NAMES = {"brand": 0.8, "colour": 0.7, "material": 0.4, "size": 0.35}
_AS_IN_TITLE = 0.1
_TYPO = 0.05
_NOISE = 0.25

Row = dict[str, Any]


class Term(NamedTuple):
    """The title word and the query words for a thing in one locale."""

    title: str
    queries: tuple[str, ...]


class Thing(NamedTuple):
    """A type, brand, colour, material or size. `factor` multiplies the price; a type's is its price."""

    factor: float
    categories: frozenset[str]
    terms: dict[str, Term]


class Product(NamedTuple):
    number: int
    price: float
    things: dict[str, Thing]  # by attribute


def write_shop(
    path: Path, spans: int, rows_per_span: int, seed: int, first: dt.date = FIRST_MONTH, broken: int | None = None
) -> None:
    """Write the log of `spans` months from the month `first` on as gzipped JSON lines, atomically.

    A longer log begins with the rows of a shorter one with the same seed; `first` changes only their times. In the
    month `broken`, counted from 0, each row has the query of the row before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as packed:
            for row in shop_rows(spans, rows_per_span, seed, first, broken):
                packed.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def shop_rows(
    spans: int, rows_per_span: int, seed: int, first: dt.date = FIRST_MONTH, broken: int | None = None
) -> Iterator[Row]:
    """Yield the rows of `write_shop`, oldest first."""
    types, brands, products = _assortment(seed)
    for span in range(spans):
        chance = random.Random(f"{seed}/{span}")
        types_now = _on_sale(types, TYPES_ON_SALE, NEW_TYPES_PER_SPAN, span)
        brands_now = _on_sale(brands, BRANDS_ON_SALE, NEW_BRANDS_PER_SPAN, span)
        on_sale = [p for p in products if p.things["type"] in types_now and p.things["brand"] in brands_now]
        rows = _month(chance, span, on_sale, _moments(chance, span, rows_per_span, first))
        yield from _slipped(rows) if span == broken else rows


def _month(chance: random.Random, span: int, on_sale: list[Product], moments: list[str]) -> Iterator[Row]:
    previous_id = None
    for number, moment in enumerate(moments):
        row = _row(chance, span, on_sale)
        row = {"query_id": f"q{span:03d}-{number:06d}", "searched_at": moment} | row
        if chance.random() < DIRTY_SHARE:
            chance.choice(_DIRT)(row, previous_id or row["query_id"])
        previous_id = row["query_id"]
        yield row


def _slipped(rows: Iterator[Row]) -> Iterator[Row]:
    """Give each row the query of the row before, as an export with an off-by-one join does.

    Every single row and column looks right: only a model that was trained on them shows the error.
    """
    before = None
    for row in rows:
        query = row["query"]
        yield row | {"query": query if before is None else before}
        before = query


def month_start(first: dt.date, span: int) -> dt.datetime:
    """Return the start of the month that is `span` months after the month of `first`."""
    month = first.month - 1 + span
    return dt.datetime(first.year + month // 12, month % 12 + 1, 1, tzinfo=dt.UTC)


def _assortment(seed: int) -> tuple[list[Thing], list[Thing], list[Product]]:
    """Return types and brands in the order of their fashion, and all products of all months."""
    chance = random.Random(f"{seed}/assortment")
    types = [_thing(terms, float(price), category) for category, price, *terms in _table(words.TYPES)]
    brands = [_thing([*terms, *terms], float(factor)) for factor, *terms in _table(words.BRANDS)]
    colours = [_thing(terms) for terms in _table(words.COLOURS)]
    materials = [_thing(terms, 1.0, categories) for categories, *terms in _table(words.MATERIALS)]
    sizes = [_thing(terms, float(factor)) for factor, *terms in _table(words.SIZES)]
    chance.shuffle(types)
    chance.shuffle(brands)
    products = []
    for kind in types:
        suited = [material for material in materials if material.categories & kind.categories]
        for _ in range(PRODUCTS_PER_TYPE):
            things = {
                "type": kind,
                "brand": chance.choice(brands),
                "colour": chance.choice(colours),
                "material": chance.choice(suited),
                "size": chance.choice(sizes),
            }
            price = chance.uniform(0.9, 1.1)
            for thing in things.values():
                price *= thing.factor
            products.append(Product(len(products), round(price, 2), things))
    return types, brands, products


def _table(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in text.strip().splitlines()]


def _thing(terms: list[str], factor: float = 1.0, categories: str = "") -> Thing:
    """Make a thing. `terms` has title and queries of the first locale, then of the second."""
    by_locale = {
        locale: Term(title, tuple(query.strip() for query in queries.split(",")))
        for locale, title, queries in zip(LOCALES, terms[::2], terms[1::2], strict=True)
    }
    return Thing(factor, frozenset(categories.split()), by_locale)


def _on_sale(things: list[Thing], count: int, new_per_span: int, span: int) -> list[Thing]:
    """Return the things on sale: a window over `things` that moves with each span and wraps around."""
    start = span * new_per_span
    return [things[(start + place) % len(things)] for place in range(count)]


def _moments(chance: random.Random, span: int, count: int, first: dt.date) -> list[str]:
    """Return times within the month, in order."""
    usual = _seconds(FIRST_MONTH, span)  # draws for a month of fixed length, so that `first` changes no other draw
    start, length = month_start(first, span), _seconds(first, span)
    seconds = sorted(chance.randrange(usual) * length // usual for _ in range(count))
    return [(start + dt.timedelta(seconds=s)).isoformat().replace("+00:00", "Z") for s in seconds]


def _seconds(first: dt.date, span: int) -> int:
    return int((month_start(first, span + 1) - month_start(first, span)).total_seconds())


def _row(chance: random.Random, span: int, on_sale: list[Product]) -> Row:
    """Return a search for a product: it is shown and bought, or another one is shown and not bought."""
    locale = chance.choice(LOCALES)
    wanted = chance.choice(on_sale)
    bought = chance.random() < BOUGHT_SHARE
    shown = wanted if bought else _unwanted(chance, wanted, on_sale)
    return {
        "query": _query(chance, span, wanted, locale),
        "product": _title(shown, locale),
        "product_id": f"p{shown.number:05d}-{locale}",
        "category": next(iter(shown.things["type"].categories)),
        "locale": locale,
        "price": shown.price,
        "bought": 1.0 if bought else 0.0,
    }


def _unwanted(chance: random.Random, wanted: Product, on_sale: list[Product]) -> Product:
    """Return another product: half the time of the same type, else any."""
    kind, brand, colour = wanted.things["type"], wanted.things["brand"], wanted.things["colour"]
    near = chance.random() < 0.5
    found = [
        product
        for product in on_sale
        if (product.things["type"] is kind) == near
        and product.things["brand"] is not brand
        and product.things["colour"] is not colour
    ]
    return chance.choice(found)


def _title(product: Product, locale: str) -> str:
    """Return the product's listing, the same in every row."""
    chance = random.Random(product.number)
    term = {attribute: thing.terms[locale].title for attribute, thing in product.things.items()}
    parts = [term["brand"], term["type"], term["colour"], term["material"], term["size"]]
    if chance.random() < 0.5:
        parts = [term["size"], term["colour"], term["type"], term["brand"], term["material"]]
    if chance.random() < 0.6:
        parts.append(chance.choice(words.TITLE_NOISE[locale]))
    return " ".join(parts)


def _query(chance: random.Random, span: int, product: Product, locale: str) -> str:
    """Return a customer's query for this product: always with the type, other attributes at random."""
    parts = []
    for attribute, thing in product.things.items():
        if chance.random() < _NAMES.get(attribute, 1.0):
            term = thing.terms[locale]
            part = term.title.lower() if chance.random() < _AS_IN_TITLE else _said(chance, span, term.queries)
            parts.append(" ".join(_typed(chance, word) for word in part.split()))
    chance.shuffle(parts)
    if chance.random() < _NOISE:
        parts.insert(chance.choice((0, len(parts))), chance.choice(words.QUERY_NOISE[locale]))
    return " ".join(parts)


def _said(chance: random.Random, span: int, queries: tuple[str, ...]) -> str:
    """Return one of the words for a thing; the favourite changes from span to span."""
    weights = [3 if place == span % len(queries) else 1 for place in range(len(queries))]
    return chance.choices(queries, weights)[0]


def _typed(chance: random.Random, word: str) -> str:
    if len(word) < 5 or chance.random() >= _TYPO:
        return word
    place = chance.randrange(1, len(word) - 1)
    swapped = word[:place] + word[place + 1] + word[place] + word[place + 2 :]
    return chance.choice((swapped, word[:place] + word[place + 1 :], word[:place] + word[place] + word[place:]))


# Functions that break a row in place, given the id of the row before.
_DIRT: tuple[Callable[[Row, str], None], ...] = (
    lambda row, _: row.update(product=None),
    lambda row, _: row.update(query=""),
    lambda row, _: row.update(price=-row["price"]),
    lambda row, previous_id: row.update(query_id=previous_id),
    lambda row, _: row.update(query=(row["query"] + " ") * (OVERLONG_CHARS // len(row["query"]))),
    lambda row, _: row.update(bought=7.0),
)
