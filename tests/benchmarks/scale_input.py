"""The input of the scale benchmark: items and rows of an invented shop, as many as are asked for, always the same."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROW_COLUMNS = "id=query_id,query=query,item=product,item_id=product_id,label=bought"
_BRANDS = (
    "Acme",
    "Nordic",
    "Alpina",
    "Kite",
    "Morrow",
    "Vela",
    "Lumo",
    "Tarn",
    "Birk",
    "Osprey",
    "Quill",
    "Rook",
    "Sable",
)
_THINGS = ("anorak", "scarf", "kettle", "desk lamp", "running shoes", "backpack", "towel", "armchair",
           "mirror", "wall clock", "tent", "sleeping bag", "jacket", "teapot", "rug", "bookshelf")  # fmt: skip
_COLOURS = ("red", "blue", "green", "black", "white", "grey", "yellow")
_MATERIALS = ("wool", "cotton", "steel", "oak", "linen")
_CATEGORIES = ("clothes", "home", "outdoor", "kitchen")
_ROWS_ABOUT_AN_ITEM = 5


def write_items(path: Path, count: int, changed: bool = False, first: int = 0) -> Path:
    """Write `count` items of a feed; `changed`: the same items a month later, with other texts."""
    when, more = ("2026-04-02T00:00:00Z", "new ") if changed else ("2026-03-01T00:00:00Z", "")
    _write(
        path,
        (
            {"sku": f"s{n:07d}", "title": more + _title(n), "updated_at": when, **_features(n)}
            for n in range(first, first + count)
        ),
    )
    return path


def write_rows(path: Path, count: int) -> Path:
    """Write `count` searches of one month, five about each item; three in four found what they wanted."""
    _write(path, (_row(n, n // _ROWS_ABOUT_AN_ITEM) for n in range(count)))
    return path


def _row(number: int, item: int) -> dict[str, Any]:
    words = _title(item).lower().split()
    return {
        "query_id": f"q{number:08d}",
        "searched_at": f"2026-03-{number % 28 + 1:02d}T{number % 24:02d}:00:00Z",
        "query": " ".join(words[number % 3 :]),
        "product": _title(item),
        "product_id": f"p{item:07d}",
        "bought": float(number % 4 > 0),
        **_features(item),
    }


def _features(item: int) -> dict[str, Any]:
    category = _CATEGORIES[item % len(_CATEGORIES)]
    return {"price": round(5 + item * 7919 % 20000 / 100, 2), "category": category, "locale": ("en", "de")[item % 2]}


def _title(item: int) -> str:
    choices = (_BRANDS, _THINGS, _COLOURS, _MATERIALS)
    words = [words[item * (2 * place + 3) % len(words)] for place, words in enumerate(choices)]
    # All numbers have seven digits: a digit is a token, and a million items would have more tokens each than a tenth.
    return f"{' '.join(words)} {item % 100} cm model {item:07d}"


def _write(path: Path, records: Iterator[dict[str, Any]]) -> None:
    with path.open("w") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
