"""The files of docs/tutorial.md: a shop's weekly search logs, which name products by id, and two states of its feed.

Three languages, whose customers and titles use different words. Seeded, so the same call writes the same files.
"""

import csv
import datetime as dt
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

WEEKS = tuple(f"2026-W{week}" for week in range(40, 48))
FIRST_WEEKS = 6  # of the first log; each later week is a file of its own
BROKEN = 6  # counted from 0: the week whose first export is broken
_MONDAY = dt.datetime(2026, 9, 28, tzinfo=dt.UTC)  # of the first week
_EARLY, _LATER = "2026-09-25T04:00:00Z", "2026-11-09T04:00:00Z"  # states of the feed
_PER_TYPE = 24  # products, each in every language
_RENAMED, _DELETED, _NEW = 6, 6, 6
_EVENTS = ("impression", "click", "click", "click", "purchase")

# category, price; title : customers' words, in English, German and Japanese
_TYPES = """
clothing, 89 | rain jacket : anorak, waterproof | Regenjacke : anorak, friesennerz
    | 雨用 ジャケット : レインコート, 防水 上着
clothing, 59 | knitted jumper : sweater, pullover | Strickpullover : sweater, troyer
    | 編み ニット : セーター, 毛糸 トップス
shoes, 79 | running shoes : trainers, joggers | Laufschuhe : renner, turnschuhe
    | ランニング シューズ : 運動靴, スニーカー
shoes, 29 | house slippers : indoor mules, slipons | Hausschuhe : pantoffel, puschen
    | 室内 スリッパ : 上履き, ルームシューズ
kitchen, 45 | frying pan : skillet, griddle | Bratpfanne : skillet, tiegel
    | フライパン : 焼き 鍋, スキレット
kitchen, 39 | chef knife : kitchen blade, slicer | Kochmesser : klinge, schneider
    | 料理 ナイフ : 包丁, 万能 刃物
kitchen, 25 | lunch box : bento, sandwich tin | Brotdose : vesperbox, stullenbüchse
    | ランチ ボックス : 弁当箱, お弁当
garden, 25 | watering can : flower sprinkler, jug | Gießkanne : sprenger, wasserkrug
    | 水やり 缶 : じょうろ, 散水
garden, 75 | folding deckchair : sunlounger, recliner | Liegestuhl : sonnenliege, relaxsessel
    | 折りたたみ 寝椅子 : デッキチェア, リクライナー
sports, 29 | yoga mat : exercise pad, gym underlay | Yogamatte : turnunterlage, polster
    | ヨガ マット : 運動 敷物, 体操 用
sports, 45 | bike helmet : cycling lid, head guard | Fahrradhelm : radlerhut, kopfschutz
    | 自転車 ヘルメット : サイクル 帽, 頭部 保護
office, 39 | desk lamp : table light, reading light | Schreibtischlampe : leselicht, leuchte
    | デスク ライト : 卓上 照明, 読書 灯
office, 189 | swivel chair : work seat, rolling stool | Drehstuhl : bürosessel, rollhocker
    | 回転 チェア : 事務 椅子, オフィス 席
home, 39 | throw blanket : plaid, coverlet | Kuscheldecke : plaid, zudecke
    | ブランケット : 毛布, ひざ掛け
home, 15 | scented candle : wax taper, aroma light | Duftkerze : wachslicht, raumduft
    | 香り キャンドル : アロマ, ろうそく
bags, 85 | hiking backpack : rucksack, daypack | Wanderrucksack : ranzen, tourenbeutel
    | 登山 バックパック : リュック, 背負い かばん
"""
_COLOURS = """
navy : dark blue, midnight | marineblau : dunkelblau, nachtblau | ネイビー : 紺, 青
crimson : red, ruby | karminrot : rot, rubin | クリムゾン : 赤, 真っ赤
ivory : cream, off white | elfenbein : creme, wollweiß | アイボリー : 白, 乳白
emerald : green, jade | smaragd : grün, jade | エメラルド : 緑, 翡翠
charcoal : grey, slate | anthrazit : grau, schiefer | チャコール : 灰色, グレー
amber : yellow, golden | bernstein : gelb, golden | アンバー : 黄色, 金色
"""
_BRANDS = ("Nordvik", "Calderon", "Haldane", "Fjellhus", "Tremont", "Quillon", "Saltmarsh", "Lumenor")
_LOCALES = ("en", "de", "ja")


class TutorialFiles(NamedTuple):
    """The files, in one folder, and the ids of special products."""

    renamed: tuple[str, ...]
    deleted: tuple[str, ...]
    new: tuple[str, ...]


class _Product(NamedTuple):
    sku: str
    locale: str
    title: str
    said: tuple[tuple[str, ...], ...]  # by part of the title: the title's own word, then customers' words
    price: float
    category: str


def write_files(folder: Path, rows_per_week: int = 1000, seed: int = 5) -> TutorialFiles:
    """Write log.csv, log-W46-broken.csv, log-W46.csv, log-W47.csv, feed.jsonl and feed-W46.jsonl."""
    chance = random.Random(seed)
    products = list(_products(chance))
    chance.shuffle(products)
    new, renamed, deleted = products[:_NEW], products[_NEW : _NEW + _RENAMED], products[-_DELETED:]
    early = [each for each in products if each not in new]
    changes = [
        *(_record(each, _LATER) for each in new),
        *(_record(each, _LATER, title=f"{each.title} 2027") for each in renamed),
        *(_record(each, _LATER, title=None, removed=True) for each in deleted),
    ]
    _write(folder / "feed.jsonl", [_record(each, _EARLY) for each in early])
    _write(folder / "feed-W46.jsonl", changes)
    weeks = []
    for week in range(len(WEEKS)):
        gone = deleted if week >= BROKEN else new
        weeks.append(_week(week, [each for each in products if each not in gone], rows_per_week, chance))
    _write_log(folder / "log.csv", [row for week in weeks[:FIRST_WEEKS] for row in week])
    for week, rows in list(enumerate(weeks))[FIRST_WEEKS:]:
        _write_log(folder / f"log-{WEEKS[week][5:]}.csv", rows)
    searches = [row["search"] for row in weeks[BROKEN]]
    slipped = [row | {"search": said} for row, said in zip(weeks[BROKEN], [searches[-1], *searches], strict=False)]
    _write_log(folder / f"log-{WEEKS[BROKEN][5:]}-broken.csv", slipped)
    return TutorialFiles(*(tuple(each.sku for each in some) for some in (renamed, deleted, new)))


def _products(chance: random.Random) -> Iterator[_Product]:
    types = [[cell.strip() for cell in line.split("|")] for line in _TYPES.replace("\n    ", "").strip().splitlines()]
    colours = [line.split("|") for line in _COLOURS.strip().splitlines()]
    for kind, (about, *names) in enumerate(types):
        category, _, price = about.partition(", ")
        for number in range(_PER_TYPE):
            brand, colour = chance.choice(_BRANDS), chance.choice(colours)
            cost = round(float(price) * chance.uniform(0.7, 1.5), 2)
            for locale, name, shade in zip(_LOCALES, names, colour, strict=True):
                said = (_terms(shade), _terms(name), (brand, brand.lower()))
                title = " ".join(each[0] for each in said)
                yield _Product(f"{kind:02}{number:02}-{locale}", locale, title, said, cost, category)


def _terms(cell: str) -> tuple[str, ...]:
    title, _, others = cell.partition(":")
    return (title.strip(), *(each.strip() for each in others.split(",")))


def _record(product: _Product, at: str, **changes: Any) -> dict[str, Any]:
    known = {"sku": product.sku, "title": product.title, "category": product.category, "locale": product.locale}
    return known | {"price": product.price, "removed": False, "updated_at": at} | changes


def _week(week: int, on_sale: list[_Product], count: int, chance: random.Random) -> list[dict[str, str]]:
    """Return a week's rows: a customer asks for a product, and it is shown, or now and then another one."""
    rows = []
    for minute in sorted(chance.randrange(7 * 24 * 60) for _ in range(count)):
        wanted, event = chance.choice(on_sale), chance.choice(_EVENTS)
        shown = chance.choice(on_sale) if event == "impression" else wanted
        at = _MONDAY + dt.timedelta(weeks=week, minutes=minute)
        time = at.isoformat().replace("+00:00", "Z")
        rows.append({"searched_at": time, "search": _query(wanted, chance), "sku": shown.sku, "event": event})
    return rows


def _query(product: _Product, chance: random.Random) -> str:
    colour, name, brand = product.said
    parts = [chance.choice(name[1:]) if chance.random() < 0.8 else name[0].lower()]
    parts += [chance.choice(colour[1:])] if chance.random() < 0.8 else []
    parts += [brand[1]] if chance.random() < 0.6 else []
    chance.shuffle(parts)
    return " ".join(parts)


def _write(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def _write_log(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    write_files(Path(sys.argv[1]))
