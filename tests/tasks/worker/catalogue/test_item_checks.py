"""A span's items next to the catalogue before it: which months are stopped, which are warned of, which pass."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.load import load_config
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.outcomes import Check, Phases, StageResult
from tasks.contracts.profiles import KnownRelation
from tasks.contracts.references import FeedRef, RowsRef
from tasks.data.rows import DELETED, FEED_KIND
from tasks.worker import validate
from tasks.worker.catalogue.against import SpanItems, compare_items
from tasks.worker.catalogue.build import build
from tasks.worker.catalogue.item_checks import item_checks
from tasks.worker.catalogue.sources import Sources
from tests.support.pages.golden import Golden
from tests.support.workspace.jobs import with_held
from tests.support.workspace.spans import APRIL, FEATURES, MARCH, SCRATCH, TYPES, job, row, validated, write_span

CONFIG = load_config(None, [SCRATCH, *FEATURES])
KNOWN = 300
CHANGED, DOUBLED, NEW = "known items as before", "items not doubled", "items known"
PRICE, BRAND, ALIKE = "price related to before", "brand related to before", "new items differ"
FIT = "new items fit their queries"

Row = dict[str, Any]


def month(start: int = 0, count: int = KNOWN, change: Callable[[Row], Row] = dict) -> list[Row]:
    return [change(row(number)) for number in range(start, start + count)]


def first(some: int, change: Callable[[Row], Row]) -> Callable[[Row], Row]:
    """Change the items with the first `some` numbers alone."""
    return lambda each: change(each) if int(each["row_id"][1:]) < some else each


@pytest.fixture
def before(store: DirectoryStore, tmp_path: Path) -> RowsRef:
    return validated(store, tmp_path, month())


def compared(
    store: DirectoryStore, tmp_path: Path, rows: Sequence[Row], before: Sources, *built: Sources
) -> SpanItems | None:
    """Compare, once without an earlier catalogue and once with those of `built`, which must not matter."""
    path = tmp_path / "now.parquet"
    pq.write_table(pa.table({name: pa.array([r[name] for r in rows], kind) for name, kind in TYPES.items()}), path)
    bases = [build(store, sources, (), CONFIG) for sources in built]
    found = compare_items(store, "2026-03", [path], before, bases, CONFIG)
    assert compare_items(store, "2026-03", [path], before, (), CONFIG) == found
    return found


# The span before to the one before it.
RELATED = {name: KnownRelation(items=KNOWN, kept=1.0) for name in ("price", "brand")}


def failed(found: SpanItems | None, usual: dict[str, KnownRelation] = RELATED) -> dict[str, str]:
    """The failed checks by name, with their severity."""
    assert found is not None
    checks = item_checks([found], CONFIG.validate_.items, lambda: usual)
    return {check.name: check.severity for check in checks if not check.passed}


def other_ids(each: Row) -> Row:
    """The id of the item after it: the join is off by one."""
    return each | {"item_id": row((int(each["row_id"][1:]) + 1) % KNOWN)["item_id"]}


WRONG: dict[str, tuple[Callable[[Row], Row], dict[str, str]]] = {
    "ids joined wrongly": (other_ids, {CHANGED: "critical", "price of known items as before": "warning",
                                       PRICE: "critical",
                                       "brand of known items as before": "warning", BRAND: "critical"}),
    "texts are ids": (lambda r: r | {"item": r["item_id"]}, {CHANGED: "critical"}),
    "a fifth is truncated": (first(60, lambda r: r | {"item": r["item"][:8]}), {CHANGED: "warning"}),
    "ids in upper case": (lambda r: r | {"item_id": r["item_id"].upper() + " "},
                          {DOUBLED: "critical", NEW: "warning"}),
    "ids as floats, of few": (first(20, lambda r: r | {"item_id": f"\u200b{r['item_id']}"}), {DOUBLED: "warning"}),
    "ids of another system": (lambda r: r | {"item_id": f"sku-{r['item_id'][::-1]}"},
                              {DOUBLED: "critical", NEW: "warning"}),
    "another shop": (lambda r: r | {"item_id": f"x{r['item_id']}", "item": f"Chair {r['item']}"}, {NEW: "warning"}),
    "prices raised": (lambda r: r | {"price": r["price"] + 1}, {"price of known items as before": "warning"}),
    "prices of other items": (lambda r: r | {"price": row(int(r["row_id"][1:]) * 11 % KNOWN + 1)["price"]},
                              {"price of known items as before": "warning", PRICE: "critical"}),
    "prices in cents": (lambda r: r | {"price": r["price"] * 100},
                        {"price of known items as before": "warning", "unit of price": "critical"}),
    "brands exchanged": (lambda r: r | {"brand": {"acme": "zen", "zen": "acme"}[r["brand"]]},
                         {"brand of known items as before": "warning", BRAND: "critical"}),
    "brands with other names": (lambda r: r | {"brand": f"{r['brand']} ltd"},
                                {"brand of known items as before": "warning"}),
}  # fmt: skip


@pytest.mark.parametrize("trap", WRONG)
def test_a_wrong_month_is_named(store: DirectoryStore, tmp_path: Path, before: RowsRef, trap: str) -> None:
    change, expected = WRONG[trap]
    found = compared(store, tmp_path, month(change=change), sources := Sources((before,), ()), sources)
    assert failed(found) == expected


def test_values_that_may_be_unrelated_by_nature_do_not_stop_a_second_span(
    store: DirectoryStore, tmp_path: Path, before: RowsRef
) -> None:
    """The price of each sale, say: one span before does not tell."""
    change, _ = WRONG["prices of other items"]
    found = compared(store, tmp_path, month(change=change), sources := Sources((before,), ()), sources)
    assert failed(found, {})[PRICE] == "warning"


HONEST: dict[str, list[Row]] = {
    "the same items": month(),
    "a third new items": month(start=100),
    "titles edited": month(change=first(25, lambda r: r | {"item": f"{r['item']}, new"})),
    "another case and blanks": month(change=lambda r: r | {"item": f" {r['item'].upper().replace(' ', '  ')}"}),
    "few known items, all edited": month(start=250, count=150, change=first(300, lambda r: r | {"item": "new"})),
}


@pytest.mark.parametrize("kind", HONEST)
def test_an_honest_month_passes(store: DirectoryStore, tmp_path: Path, before: RowsRef, kind: str) -> None:
    assert failed(compared(store, tmp_path, HONEST[kind], sources := Sources((before,), ()), sources)) == {}


def test_numbers_that_became_fractions_are_known_items(store: DirectoryStore, tmp_path: Path) -> None:
    numbered = validated(store, tmp_path, month(change=lambda r: r | {"item_id": str(int(r["row_id"][1:]) + 7)}))
    now = month(change=lambda r: r | {"item_id": f"{int(r['row_id'][1:]) + 7}.0", "item": f"{r['item']}!"})
    found = compared(store, tmp_path, now, Sources((numbered,), ()))
    assert found is not None
    assert (found.new, found.same_id, found.same_text) == (KNOWN, KNOWN, 0)
    assert found.doubles[0] == "'10.0'"


def test_texts_that_an_item_feed_announced_are_known(store: DirectoryStore, tmp_path: Path, before: RowsRef) -> None:
    """The way out for a shop that rewrites its titles; the released catalogue may lack the feed."""
    later = month(change=lambda r: r | {"item": f"Now: {r['item']}", DELETED: False})
    folder = tmp_path / "feed"
    folder.mkdir()
    types = {name: kind for name, kind in TYPES.items() if name in ("time", "item", "item_id", "price", "brand")}
    columns = {name: pa.array([each[name] for each in later], kind) for name, kind in types.items()}
    moved = [each["time"].replace(day=28) for each in later]
    columns |= {"time": pa.array(moved, types["time"]), DELETED: pa.array([False] * KNOWN)}
    pq.write_table(pa.table(columns), folder / "part-00000.parquet")
    feed = FeedRef(name="2026-03", version=1)
    commit(store, feed.prefix, folder, FEED_KIND, {"rows": KNOWN})
    without = Sources((before,), ())
    assert failed(compared(store, tmp_path, later, without)) == {CHANGED: "critical"}
    assert failed(compared(store, tmp_path, later, Sources((before,), (feed,)), without)) == {}


def test_a_catalogue_with_the_wrong_version_of_the_span_is_not_compared_with(
    store: DirectoryStore, tmp_path: Path, before: RowsRef
) -> None:
    """A correction would be called a change of all items."""
    wrong = validated(store, tmp_path, month(change=other_ids), "2026-03")
    assert failed(compared(store, tmp_path, month(), Sources((before,), ()), Sources((before, wrong), ()))) == {}


def test_the_first_span_has_nothing_to_differ_from(store: DirectoryStore, tmp_path: Path) -> None:
    assert compared(store, tmp_path, month(), Sources((), ())) is None
    assert item_checks([], CONFIG.validate_.items) == []


def test_the_worst_span_is_named_with_numbers_and_the_way_out(
    store: DirectoryStore, tmp_path: Path, before: RowsRef, golden: Golden
):
    wrong = compared(store, tmp_path, month(change=other_ids), Sources((before,), ()))
    assert wrong is not None
    good = wrong._replace(span="2026-02", changed=0, changes=())
    checks: dict[str, Check] = {each.name: each for each in item_checks([good, wrong], CONFIG.validate_.items)}
    said = checks[CHANGED].sentence
    golden(said)
    assert "--set validate.items.changed.stop=null" in said


def test_new_items_with_one_text_stop_unless_known_ones_are_alike_too(
    store: DirectoryStore, tmp_path: Path, golden: Golden
) -> None:
    def alike(each: Row) -> Row:
        return each | {"item": "Coming soon"}

    usual = validated(store, tmp_path, month(), "2026-01")
    now = month(count=KNOWN // 2) + month(start=KNOWN, count=150, change=alike)
    found = compared(store, tmp_path, now, Sources((usual,), ()))
    assert failed(found) == {ALIKE: "critical"}
    assert found is not None
    said = next(each.sentence for each in item_checks([found], CONFIG.validate_.items) if each.name == ALIKE)
    golden(said)
    assert "'Coming soon'" in said
    variants = validated(store, tmp_path, month(change=lambda r: r | {"item": f"Lamp {int(r['row_id'][1:]) // 3}"}))
    more = month(start=KNOWN, count=150, change=lambda r: r | {"item": f"Chair {int(r['row_id'][1:]) // 3}"})
    both = [*month(change=lambda r: r | {"item": f"Lamp {int(r['row_id'][1:]) // 3}"}), *more]
    assert failed(compared(store, tmp_path, both, Sources((variants,), ()))) == {}


def searched(each: Row, shift: int = 0) -> Row:
    """The query has a word of the item, or of the one so many further on."""
    number = int(each["row_id"][1:])
    return each | {"query": f"a lamp{number}", "item": f"Lamp{number + shift} of steel"}


FITTING: dict[str, tuple[Callable[[Row], Row], dict[str, str]]] = {
    "their own": (searched, {}),
    "those of other new items": (lambda r: searched(r, 1), {FIT: "critical"}),
    "of two in three exchanged": (lambda r: searched(r, (0, 1, -1)[int(r["row_id"][1:]) % 3]), {FIT: "warning"}),
    "another language": (lambda r: searched(r) | {"query": f"eine leuchte{r['row_id']}"}, {FIT: "warning"}),
}


@pytest.mark.parametrize("texts", FITTING)
def test_new_items_with_texts_of_others_stop(store: DirectoryStore, tmp_path: Path, texts: str) -> None:
    """They have no earlier text to differ from."""
    change, expected = FITTING[texts]
    known = validated(store, tmp_path, month(change=searched))
    now = month(change=searched) + month(start=KNOWN, count=150, change=change)
    assert failed(compared(store, tmp_path, now, Sources((known,), ()))) == expected


def test_queries_that_share_no_words_with_known_items_judge_no_new_ones(store: DirectoryStore, tmp_path: Path) -> None:
    known = validated(store, tmp_path, month(change=lambda r: searched(r, 1)))
    now = month(count=KNOWN + 150, change=lambda r: searched(r, 1))
    found = compared(store, tmp_path, now, Sources((known,), ()))
    assert found is not None
    (check,) = (each for each in item_checks([found], CONFIG.validate_.items) if each.name == FIT)
    assert check.sentence.startswith("Not judged: ")


def test_a_feature_that_never_agreed_with_itself_may_go_on_so(
    store: DirectoryStore, tmp_path: Path, before: RowsRef
) -> None:
    """As the number in stock: the span before tells that it is usual, and is only looked at if a relation is weak."""
    found = compared(store, tmp_path, month(change=WRONG["prices of other items"][0]), Sources((before,), ()))
    usual = compared(store, tmp_path, month(), Sources((before,), ()))
    assert found is not None
    assert usual is not None
    limits, asked = CONFIG.validate_.items, []

    def as_now() -> dict[str, KnownRelation]:
        asked.append(True)
        return {name: KnownRelation(items=each.items, kept=each.kept) for name, each in found.relations.items()}

    assert all(each.passed for each in item_checks([found], limits, as_now) if each.name == PRICE)
    assert asked == [True]
    item_checks([usual], limits, as_now)
    assert asked == [True]


@pytest.mark.parametrize("recorded", [True, False])
def test_the_relation_of_the_span_before_is_read_from_its_profile(
    store: DirectoryStore, tmp_path: Path, before: RowsRef, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    """No earlier span is compared with those before it again: of years of rows that would be all."""
    asked: list[str] = []

    def noted(store: Store, span: str, *others: Any) -> SpanItems | None:
        asked.append(span)
        return compare_items(store, span, *others)

    monkeypatch.setattr(validate, "compare_items", noted)
    (before,) = with_held(store, CONFIG, before)
    write_span(store, tmp_path, MARCH, month(change=WRONG["prices of other items"][0]))
    outcome = validate.judge(job(store, [MARCH], [before]))
    result = StageResult(run_key="k", attempt=1, config_sha256="", phases=Phases(), outcome=outcome)
    if recorded:
        store.write("runs/k/validate/result.json", result.to_json())
    write_span(store, tmp_path, APRIL, month(change=lambda r: r | {"price": float(r["row_id"][1:])}))
    (price,) = (
        each for each in validate.judge(job(store, [APRIL], [before, *outcome.rows])).checks if each.name == PRICE
    )
    assert asked == [MARCH.name, APRIL.name]
    assert ("in the span before" in price.sentence) == recorded
