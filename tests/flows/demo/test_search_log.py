import datetime as dt
import gzip
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from flows.demo.search_log import OVERLONG_CHARS, shop_rows, write_shop

SPANS, ROWS = 4, 2000
COLUMNS = ["query_id", "searched_at", "query", "product", "product_id", "category", "locale", "price", "bought"]


@pytest.fixture(scope="module")
def log() -> list[dict[str, Any]]:
    return list(shop_rows(SPANS, ROWS, seed=5))


@pytest.fixture(scope="module")
def clean(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        row for row in log if row["product"] and row["query"] and row["bought"] in (0, 1) and len(row["query"]) < 200
    ]


def month(rows: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    return [row for row in rows if row["searched_at"].startswith(f"2026-{number:02d}-")]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a.jsonl.gz", 1), ("b.jsonl.gz", 1), ("c.jsonl.gz", 2)):
        write_shop(tmp_path / "deep" / name, spans=2, rows_per_span=50, seed=seed)
    one, same, other = (path.read_bytes() for path in sorted((tmp_path / "deep").iterdir()))
    assert one == same != other
    lines = gzip.decompress(one).decode().splitlines()
    assert [json.loads(line) for line in lines] == list(shop_rows(2, 50, 1))


def test_a_longer_log_begins_with_the_shorter_one() -> None:
    assert list(islice(shop_rows(3, 40, 9), 80)) == list(shop_rows(2, 40, 9))


def test_an_interrupted_writing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: Any) -> Any:
        yield {"query": "lamp"}
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.demo.search_log.shop_rows", dies)
    with pytest.raises(KeyboardInterrupt):
        write_shop(tmp_path / "shop.jsonl.gz", 1, 10, 1)
    assert list(tmp_path.iterdir()) == []


def test_rows_have_all_columns_and_are_in_order(log: list[dict[str, Any]]) -> None:
    assert {tuple(row) for row in log} == {tuple(COLUMNS)}
    times = [dt.datetime.fromisoformat(row["searched_at"]) for row in log]
    assert times == sorted(times)
    assert [len(month(log, number)) for number in (1, 2, 3, 4)] == [ROWS] * SPANS


def test_another_first_month_changes_nothing_but_the_times() -> None:
    def without_times(rows: Iterator[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row | {"searched_at": ""} for row in rows]

    later = dt.date(2026, 11, 1)  # months of other lengths
    assert without_times(shop_rows(4, 200, 9, later)) == without_times(shop_rows(4, 200, 9))
    times = [row["searched_at"] for row in shop_rows(4, 200, 9, later)]
    assert times == sorted(times)
    assert Counter(time[:7] for time in times) == dict.fromkeys(("2026-11", "2026-12", "2027-01", "2027-02"), 200)


def test_in_a_broken_month_alone_each_row_has_the_query_of_the_row_before() -> None:
    right, broken = list(shop_rows(3, 50, 9)), list(shop_rows(3, 50, 9, broken=1))
    assert (broken[:50], broken[100:]) == (right[:50], right[100:])
    assert [row["query"] for row in broken[50:100]] == [right[50]["query"], *(row["query"] for row in right[50:99])]
    assert [row | {"query": ""} for row in broken] == [row | {"query": ""} for row in right]


def test_spans_continue_into_the_next_year() -> None:
    assert [row["searched_at"][:7] for row in shop_rows(14, 1, 1)][10:] == ["2026-11", "2026-12", "2027-01", "2027-02"]


def test_three_of_four_are_bought_in_both_locales(clean: list[dict[str, Any]]) -> None:
    for locale in ("en", "de"):
        rows = [row for row in clean if row["locale"] == locale]
        assert len(rows) == pytest.approx(len(clean) / 2, rel=0.05)
        assert sum(row["bought"] for row in rows) == pytest.approx(0.75 * len(rows), rel=0.05)


def test_an_item_has_one_text_one_price_and_one_locale(clean: list[dict[str, Any]]) -> None:
    about: dict[str, set[tuple[str, float, str, str]]] = {}
    for row in clean:
        facts = (row["product"], abs(row["price"]), row["locale"], row["category"])
        about.setdefault(row["product_id"], set()).add(facts)
    assert {len(facts) for facts in about.values()} == {1}
    assert {facts[2] for (facts,) in about.values()} == {"en", "de"}
    assert len({facts[3] for (facts,) in about.values()}) >= 8
    assert len(about) > 1000


BROKEN: dict[str, Callable[[dict[str, Any]], bool]] = {
    "null product": lambda row: row["product"] is None,
    "empty query": lambda row: row["query"] == "",
    "negative price": lambda row: row["price"] < 0,
    "overlong query": lambda row: len(row["query"]) > OVERLONG_CHARS / 2,
    "absurd label": lambda row: row["bought"] == 7.0,
}


@pytest.mark.parametrize("number", range(1, SPANS + 1))
def test_a_few_percent_of_each_month_are_broken_in_each_way(log: list[dict[str, Any]], number: int) -> None:
    rows = month(log, number)
    counts = {name: sum(map(is_broken, rows)) for name, is_broken in BROKEN.items()}
    counts["doubled id"] = len(rows) - len({row["query_id"] for row in rows})
    assert all(count >= 2 for count in counts.values()), counts
    assert 0.02 < sum(counts.values()) / len(rows) < 0.05


def recall_at_10(rows: list[dict[str, Any]], score: Callable[[str, str], float]) -> float:
    """Of the bought products among all that were shown."""
    titles = sorted({row["product"] for row in rows})
    bought = [row for row in rows if row["bought"] == 1.0][:60]
    hits = 0
    for row in bought:
        best = sorted(titles, key=lambda title: -score(row["query"], title))[:10]
        hits += row["product"] in best
    return hits / len(bought)


def test_learnt_words_find_more_than_shared_words(clean: list[dict[str, Any]]) -> None:
    january = month(clean, 1)
    train, test = january[:1600], january[1600:]
    together: Counter[tuple[str, str]] = Counter()
    asked: Counter[str] = Counter()
    titled: Counter[str] = Counter()
    bought = [row for row in train if row["bought"] == 1.0]
    for row in bought:
        asked.update(set(words(row["query"])))
        titled.update(set(words(row["product"])))
        together.update((q, t) for q in set(words(row["query"])) for t in set(words(row["product"])))

    def in_common(query: str, title: str) -> float:
        return len({*words(query)} & {*words(title)})

    def learnt(query: str, title: str) -> float:
        """How much more often than by chance the words were seen together."""
        pairs = ((q, t) for q in words(query) for t in words(title))
        return sum(
            max(0.0, math.log(together[q, t] * len(bought) / (asked[q] * titled[t]))) * together[q, t] / asked[q]
            for q, t in pairs
            if together[q, t]
        )

    assert recall_at_10(test, in_common) < 0.35
    assert recall_at_10(test, learnt) > 0.65


def test_the_vocabulary_changes_over_time(clean: list[dict[str, Any]]) -> None:
    def common(number: int, column: str) -> set[str]:
        counts = Counter(word for row in month(clean, number) for word in words(row[column]))
        return {word for word, count in counts.items() if count >= 10}

    for column in ("query", "product"):
        first, last = common(1, column), common(SPANS, column)
        assert len(last - first) > 0.1 * len(last)
        assert len(first - last) > 0.1 * len(first)
        assert len(first & last) > 0.4 * len(first)
