"""The join of a log and the item feed: measured at ingest, at the dry-run, and named in the form that differs."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from configs.load import load_config
from infra.store.directory import DirectoryStore
from tasks.contracts.references import FeedRef
from tasks.contracts.spans import SpanKind
from tasks.data import join as module
from tasks.data.canonical import ITEMS
from tasks.data.ingest import IngestSummary, ingest
from tasks.data.join import join_of, near_form
from tasks.data.span_versions import list_feeds, list_spans
from tasks.foundation.errors import DataError
from tasks.planning.next_run import plan_run
from tasks.preflight.checks import check_plan
from tasks.preflight.enough import enough
from tests.support.pages.golden import Golden
from tests.support.workspace.inputs import write_input
from tests.support.workspace.logs import item, write_feed

IDS = [f"P{number:05}EN" for number in range(100, 300)]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def feed(store: DirectoryStore, ids: list[str], deleted: int = 0, day: str = "2026-01-02") -> IngestSummary:
    rows = [{"sku": each, "title": f"lamp {each}", "at": day, "deleted": n < deleted} for n, each in enumerate(ids)]
    source = write_input(store.root.parent / "feed.jsonl", rows)
    return ingest(store, source, None, "at", SpanKind.month, {"id": "sku", "text": "title"}, ITEMS)


def log(store: DirectoryStore, ids: list[str]) -> IngestSummary:
    rows = [{"q": f"search {n}", "sku": each, "at": "2026-01-05"} for n, each in enumerate(ids)]
    source = write_input(store.root.parent / "log.jsonl", rows)
    return ingest(store, source, None, "at", SpanKind.month, {"query": "q", "item_id": "sku"})


def problem(summary: IngestSummary) -> str:
    return next((each.text for each in summary.problems if each.kind == "join"), "")


def test_ingest_and_dry_run_measure_the_join_whichever_file_comes_first(store: DirectoryStore) -> None:
    assert log(store, [*IDS, IDS[0], "X1", "X2"]).join is None
    second = feed(store, IDS, deleted=17)
    assert second.join is not None
    found = (second.join.ids, second.join.known, second.join.deleted, second.join.rows, second.join.rows_known)
    assert found == (202, 200, 17, 203, 201)
    assert second.join.examples == ("X1", "X2")
    assert second.join.whole
    assert any("99 % of" in note and "(17 of" in note for note in second.notes)
    assert enough(store, plan_run(store, load_config())).join == second.join
    feed(store, IDS[:5], day="2026-02-01")  # on sale again: the newest record counts
    assert log(store, [*IDS, IDS[0], "X1", "X2"]).join == second.join.model_copy(update={"deleted": 12})


def test_a_log_of_other_ids_is_named_and_refused_before_a_run(store: DirectoryStore) -> None:
    feed(store, IDS)
    assert problem(log(store, [*IDS, *(f"X{n}" for n in range(8))])) == ""
    store.delete("spans")
    said = problem(log(store, [*IDS, *(f"X{n}" for n in range(60))]))
    assert "76.9 % of" in said
    assert "ingest the missing items" in said
    with pytest.raises(DataError, match=r"'X1', 'X10'.*max_bad_share"):
        check_plan(store, plan_run(store, load_config()))
    check_plan(store, plan_run(store, load_config(overrides=["validate.max_bad_share=0.3"])))


@pytest.mark.parametrize(
    ("change", "difference", "way_out"),
    [
        (str.lower, "upper and lower case", "alike"),
        (lambda each: f"{each} ", "blanks around", "alike"),
        (lambda each: f" {each.lower()}\u200b", "blanks, case, zeros or invisible", "alike"),
        (lambda each: each[0] + each[1:].lstrip("0"), "zeros before a number in the id", "alike"),
        (lambda each: f"{each[0]}-{each[1:]}", "signs between its parts", "alike"),
        (lambda each: f"gid://shop/{each}", '"gid://shop/" before each id in the log', "alike"),
        (lambda each: f"{each}.html", '".html" after each id in the log', "alike"),
        (
            lambda each: f"https://shop.example/p/{each}?ref=s",
            '"https://shop.example/p/" before and "?ref=s" after',
            "alike",
        ),
        (lambda each: each[1:-2].lstrip("0"), '"P" before and "EN" after each id in the feed, and zeros', "alike"),
        (lambda each: each[1:], '"P" before each id in the feed', "alike"),
        (lambda each: each[1:-2], '"P" before and "EN" after each id in the feed', "alike"),
        (
            lambda each: f"{each}-{'SML'[int(each[-3]) % 3]}",
            "a varying part behind the last sign of each id in the log",
            "alike",
        ),
        (
            lambda each: f"{each}/{'SML'[int(each[-3]) % 3]}-{each[3:5]}",
            "a varying part behind the first sign of each id in the log",
            "alike",
        ),
        (lambda each: f"{each}|{IDS[0]}", "several ids in one value", "--explode"),
        (lambda each: json.dumps([each]), "several ids in one value", "--explode"),
        (lambda each: f"['{each}', '{IDS[3]}']", "several ids in one value", "--explode"),
    ],
)
def test_ids_in_another_form_are_named_with_the_way_out(
    store: DirectoryStore, change: Callable[[str], str], difference: str, way_out: str
) -> None:
    feed(store, IDS)
    said = problem(log(store, [*IDS[:20], *(change(each) for each in IDS[50:150])]))
    assert f"differ by {difference}" in said
    assert repr(change(IDS[50]))[:20] in said or "feed" in difference
    assert way_out in said


def test_numbers_are_told_from_codes_with_zeros_and_points(store: DirectoryStore) -> None:
    numbers = [str(number) for number in range(100, 200)]
    for change, difference in ((lambda n: f"{n:0>6}", "zeros before the number"), (lambda n: f"{n}.0", "decimal")):
        found = near_form([change(each) for each in numbers], pa.chunked_array([numbers]))
        assert found is not None
        assert difference in found.difference
        assert found.known_as == "100"
    assert near_form(["x", "y"], pa.chunked_array([numbers])) is None


def test_a_feed_of_variants_is_told_from_a_log_of_products(golden: Golden) -> None:
    variants = [f"{each}_{size}" for each in IDS for size in ("S", "M", "XL")]
    found = near_form(IDS[:50], pa.chunked_array([variants]))
    assert found is not None
    golden(found.difference)
    assert (found.example, found.known_as) == (IDS[0], f"{IDS[0]}_S")


def test_a_large_log_and_a_long_history_of_feeds_are_sampled(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third id is looked for, in the newest feeds alone; the share is about the same."""
    for month in ("01", "02", "03"):
        ref = FeedRef(name=f"2026-{month}", version=1)
        write_feed(store, tmp_path, ref, [item(each, "lamp", f"2026-{month}-02") for each in IDS])
    log(store, [*IDS, *(f"X{n}" for n in range(100))])
    monkeypatch.setattr(module, "MOST_IDS", 100)
    monkeypatch.setattr(module, "FEED_ROWS", 300)
    found = join_of(store, list_spans(store), list_feeds(store))
    assert found is not None
    assert (found.ids, found.whole) == (100, False)
    assert found.known == pytest.approx(67, abs=1)
