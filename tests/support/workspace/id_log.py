"""A search log of ids and the feed of its items, over eight weeks in three languages.

Five items are renamed, five are deleted, and five are sold before the feed knows them. Seeded, so the same call writes
the same files.
"""

import datetime as dt
import json
import random
from pathlib import Path
from typing import Any, NamedTuple

WEEKS = tuple(f"2026-W{week:02d}" for week in range(2, 10))
_MONDAY = dt.datetime(2026, 1, 5, tzinfo=dt.UTC)  # of the first week
_EARLY, _RENAMED, _DELETED, _LATE = "2025-12-01", "2026-02-02", "2026-02-16", "2026-02-20"
_FROM_WEEK = 5  # counted from 0: late items are sold from here on

WORDS = {
    "en": (("red", "blue", "green", "black", "white"), ("lamp", "mug", "chair", "jacket", "kettle", "pan")),
    "de": (("rote", "blaue", "grüne", "schwarze", "weiße"), ("Leuchte", "Tasse", "Bank", "Hose", "Kanne", "Pfanne")),
    "ja": (("赤い", "青い", "緑の", "黒い", "白い"), ("ランプ", "カップ", "椅子", "上着", "やかん", "鍋")),
}
_ASKED = {
    "en": ("{}", "cheap {}", "{} for sale", "buy {}"),
    "de": ("{}", "{} kaufen", "günstige {}", "{} online"),
    "ja": ("{}", "{} 安い", "{} 通販", "{} 人気"),
}
_EVENTS = ("click", "click", "click", "cart", "purchase")


class IdLog(NamedTuple):
    """The files, and the ids of special items. `late_rows` of the log are about late items."""

    log: Path
    feed: Path  # as it was before the late items came
    feed_later: Path  # as it is at the end
    titles: dict[str, str]  # the newest ones
    renamed: tuple[str, ...]
    deleted: tuple[str, ...]
    late: tuple[str, ...]
    late_rows: int


class _Item(NamedTuple):
    sku: str
    locale: str
    title: str
    price: float
    category: str

    def record(self, at: str, **changes: Any) -> dict[str, Any]:
        known = {"sku": self.sku, "title": self.title, "price": self.price, "category": self.category}
        return known | {"locale": self.locale, "removed": False, "updated_at": f"{at}T08:00:00Z"} | changes


def write_id_log(folder: Path, rows_per_week: int = 120, seed: int = 7) -> IdLog:
    """Write the log and both states of the feed as JSON lines."""
    chance = random.Random(seed)
    items = [
        _Item(f"{locale}-{100 + number}", locale, title, round(chance.uniform(3, 90), 2), f"kind {number % 6}")
        for locale, (colours, things) in WORDS.items()
        for number, title in enumerate(f"{colour} {thing}" for colour in colours for thing in things)
    ]
    chance.shuffle(items)
    late, renamed, deleted = items[:5], items[5:10], items[10:15]
    first = [item.record(_EARLY) for item in items if item not in late]
    changes = [
        *(item.record(_RENAMED, title=f"{item.title} XL") for item in renamed),
        *(item.record(_DELETED, title=None, removed=True) for item in deleted),
        *(item.record(_LATE) for item in late),
    ]
    rows = [row for week in range(len(WEEKS)) for row in _searches(week, items, late, rows_per_week, chance)]
    ids = {item.sku for item in late}
    titles = {item.sku: item.title for item in items} | {item.sku: f"{item.title} XL" for item in renamed}
    return IdLog(
        _write(folder / "log.jsonl", rows),
        _write(folder / "feed.jsonl", first),
        _write(folder / "feed-later.jsonl", [*first, *changes]),
        titles,
        tuple(item.sku for item in renamed),
        tuple(item.sku for item in deleted),
        tuple(sorted(ids)),
        sum(row["sku"] in ids for row in rows),
    )


def _searches(
    week: int, items: list[_Item], late: list[_Item], count: int, chance: random.Random
) -> list[dict[str, Any]]:
    """Return the rows of one week; one in five is an impression of another item."""
    sold = [item for item in items if week >= _FROM_WEEK or item not in late]
    minutes = sorted(chance.randrange(7 * 24 * 60) for _ in range(count))
    rows = []
    for minute in minutes:
        item = chance.choice(sold)
        shown = chance.random() < 0.2
        seen = chance.choice(sold) if shown else item
        at = _MONDAY + dt.timedelta(weeks=week, minutes=minute)
        row = {"search": chance.choice(_ASKED[item.locale]).format(item.title), "sku": seen.sku, "at": at.isoformat()}
        event = "impression" if shown else chance.choice(_EVENTS)
        rows.append(row | {"event": event, "user": f"u{chance.randrange(40)}"})
    return rows


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path
