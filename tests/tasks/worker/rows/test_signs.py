"""Signs of an export that went wrong, at the level of the counts: which are found, and which bounds they meet."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from configs.schema.validation import SignsConfig
from tasks.worker.rows.signs import SIGNS, count_signs, judge_signs
from tests.support.pages.golden import Golden
from tests.support.workspace.spans import TYPES, row

ROWS = 200
Row = dict[str, Any]


def table(change: Callable[[Row], Row] = dict, rows: int = ROWS) -> pa.Table:
    made = [change(row(number, query=f"red lamp {number}")) for number in range(rows)]
    return pa.table({name: pa.array([each[name] for each in made], kind) for name, kind in TYPES.items()})


def some(share: float, **changes: Any) -> Callable[[Row], Row]:
    return lambda each: each | changes if int(each["row_id"][1:]) < share * ROWS else each


def failed(now: pa.Table, earlier: pa.Table | None = None) -> dict[str, str]:
    before = table() if earlier is None else earlier
    checks = judge_signs(count_signs(before), len(before), count_signs(now), len(now), SignsConfig())
    return {check.name: check.severity for check in checks if not check.passed}


def test_usual_rows_have_no_sign() -> None:
    assert failed(table()) == {}
    assert failed(table(lambda r: r | {"query": r["query"].upper(), "item": f"Größe É {r['item']} <3 & 5 > 4?"})) == {}


@pytest.mark.parametrize(
    ("change", "check", "severity"),
    [
        (some(1.0, query="Lamp", item=" lamp "), "queries differ from items", "critical"),
        (some(0.99, query="shoes"), "queries differ", "critical"),
        (some(0.33, query="test test"), "queries differ", "warning"),
        (some(0.7, item="Product"), "item texts differ", "critical"),
        (some(0.05, item="StraÃŸe"), "texts readable", "warning"),
        (some(0.2, item="StraÃŸe"), "texts readable", "critical"),
        (some(0.4, query="red lamp no. red", item="Red lamp"), "queries free of their items", "warning"),
        (some(0.7, query="old lamp of glass", item="Glass lamp, old"), "queries free of their items", "critical"),
        (lambda r: r | {"query": f"find {r['item_id']}"}, "queries free of their items", "critical"),
        (lambda r: r | {"item_id": f"i{int(r['row_id'][1:]) % 50}"}, "items have one text", "critical"),
        (some(0.5, item="black &amp; white"), "texts plain", "critical"),
        (some(0.05, query="Stra?e"), "texts readable", "warning"),
        (some(0.05, query="itâ€™s"), "texts readable", "warning"),
        (some(0.05, item="Stra\ufffde"), "texts readable", "warning"),
        (some(0.1, item="black &amp; white"), "texts plain", "warning"),
        (some(0.1, query="<b>lamp</b>"), "texts plain", "warning"),
        (some(1.0, time=row(0)["time"]), "times differ", "warning"),
    ],
)
def test_a_sign_is_named(change: Callable[[Row], Row], check: str, severity: str) -> None:
    assert failed(table(change))[check] == severity


def test_a_row_that_comes_twice_under_another_id_is_repeated() -> None:
    twice = pa.concat_tables([table(rows=100), table(lambda r: r | {"row_id": r["row_id"] + "b"}, rows=100)])
    assert failed(twice) == {"rows differ": "critical"}


def about(item: int, query: int, named: int = 1) -> Row:
    """A row about an item; one in `named` queries has a word of the item `query`, the others a word of their own."""
    word = f"lamp{query}" if query % named == 0 else f"it{query}"
    return row(item, query=f"some {word}", item=f"Lamp{item} of steel")


def searches(slip: int = 0, named: int = 1) -> pa.Table:
    made = [about(number, (number + slip) % ROWS, named) for number in range(ROWS)]
    return pa.table({name: pa.array([each[name] for each in made], kind) for name, kind in TYPES.items()})


def test_queries_of_other_items_stop_a_first_span_and_warn_where_a_champion_shows_the_loss() -> None:
    joined = "queries joined to their items"
    assert failed(searches(slip=1), searches()) == {joined: "warning"}
    first = judge_signs(dict.fromkeys(count_signs(searches()), 0), 0, count_signs(searches(1)), ROWS, SignsConfig())
    assert [(check.name, check.severity) for check in first if not check.passed] == [(joined, "critical")]
    assert failed(searches(), searches()) == {}
    assert failed(searches(named=4), searches(named=4)) == {}
    assert failed(searches(1, named=20), searches(named=20)) == {}, "queries with words of none tell nothing"
    assert failed(searches(1), searches(1)) == {}, "usual in this shop"


def test_what_is_usual_in_a_shop_is_no_sign() -> None:
    usual = table(some(0.6, query="shoes", item="shoes"))
    assert failed(usual, usual) == {}


def test_the_shares_of_a_first_span_count_in_full(golden: Golden) -> None:
    found = judge_signs({}, 0, count_signs(wrong := table(some(0.2, item="StraÃŸe"))), len(wrong), SignsConfig())
    (readable,) = [each for each in found if each.name == "texts readable"]
    assert (readable.passed, readable.severity) == (False, "critical")
    golden(readable.sentence)
    assert "--set validate.signs.garbled.stop=null" in readable.sentence
    usual = judge_signs({}, 0, count_signs(table()), ROWS, SignsConfig())
    assert all(each.passed for each in usual)


READABLE = [
    "Größe Ñandú João CAFÉ NESCAFÉ® POKÉ™ Maß… „Spaß“ ÉTÉ – SMÅ–BARN «café»…",
    "ŁÓDŹ żółć čeština İstanbul ığüşöç ÇA VA? PRÊT-À-PORTER DÉJÀ VU’S Â Ã Ð ð Þ þ 20 € ½ ²",
    "Привет мир СССР РОССИЯ СОСРЕДОТОЧЕНИЕ РЕСУРСОВ",
    "Ελληνικά ΑΒΓ שלום עולם مرحبا بالعالم",
    "日本語のテキスト 中文文本 한국어 हिन्दी",
    "🎁 👩‍👩‍👧 “x” – für Zoë & Søren ™…",
]


@pytest.mark.parametrize("text", READABLE)
def test_honest_languages_are_readable(text: str) -> None:
    assert count_signs(table(some(1.0, query=text, item=text)))["garbled"] == 0


@pytest.mark.parametrize(
    ("text", "encoding"),
    [(text, encoding) for encoding in ("latin-1", "cp1252")
     for text in ("Größe", "João", "Привет мир", "Ελληνικά", "中文文本", "हिन्दी", "🎁", "x–y", "łódź", "20 €", "™")]
    + [("Привет мир", "cp1251")],
)  # fmt: skip
def test_utf_8_read_as_another_encoding_is_garbled_in_any_script(text: str, encoding: str) -> None:
    misread = text.encode().decode(encoding, errors="replace").replace("\ufffd", "\u0081")  # cp1252 lacks five signs
    assert count_signs(table(some(1.0, item=misread)))["garbled"] == ROWS


def test_few_rows_are_not_judged() -> None:
    few = table(some(1.0, query="shoes"), rows=49)
    checks = judge_signs(count_signs(table()), ROWS, count_signs(few), 49, SignsConfig())
    assert len(checks) == len(SIGNS) + 1
    assert all(check.passed and check.observed is None for check in checks)
