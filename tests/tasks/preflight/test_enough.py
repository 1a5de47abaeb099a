"""The amounts that a dry-run expects are counted on the rows as ingested, and nothing is written for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import infra.compute.factory
from configs.load import load_config
from infra.store.directory import DirectoryStore
from tasks.contracts.references import FeedRef, HoldoutRule, SpanRef
from tasks.data.holdout import held_out
from tasks.planning.next_run import plan_run
from tasks.preflight import enough as module
from tasks.preflight.enough import Enough, enough
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.workspace.inputs import review, run, write_input
from tests.support.workspace.logs import click, item, write_feed, write_log

HEAD = "heads.classification={weight: 0.1, input: query, negative_max: 1.0, positive_min: 3.0}"
ROWS = [review(number, "2026-01-05", text=f"query {number // 2}") for number in range(400)]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    run(store, write_input(tmp_path / "input", [*ROWS, review(400, "2026-01-05", text=None)]))
    return store


def expected(store: DirectoryStore, *overrides: str) -> Enough:
    return enough(store, plan_run(store, load_config(overrides=overrides)))


def held(row: dict[str, Any]) -> bool:
    rule = HoldoutRule(group="query_and_item", share=0.3, measured=0.3)
    return bool(held_out(pa.table({"query": [row["text"]], "item": [row["title"]]}), rule)[0])


def test_rows_pairs_steps_and_held_out_queries_are_counted(store: DirectoryStore) -> None:
    found = expected(store, "evaluate.holdout_share=0.3", "train.batch_rows=64", "train.epochs=3")
    aside = [row for row in ROWS if held(row)]
    assert 80 < len(aside) < 160
    assert (found.rows, found.rows_read, found.rows_unusable) == (401, 401, 1)
    assert found.training_rows == found.training_pairs == 400 - len(aside)
    assert found.steps == -(-(400 - len(aside)) // 64) * 3
    assert (found.held_pairs, found.held_queries) == (len(aside), len({row["text"] for row in aside}))
    assert found.earlier_queries == 0
    alone = {row["text"] for row in aside if all(held(other) for other in ROWS if other["text"] == row["text"])}
    assert 0 < found.unseen_queries <= len(alone) < found.held_queries


def test_only_positives_are_pairs_if_the_head_says_so(store: DirectoryStore) -> None:
    found = expected(store, HEAD, "heads.contrastive.positives_only=true", "evaluate.holdout_share=0.3")
    positive = [row for row in ROWS if row["stars"] >= 3.0]
    assert found.training_rows == 400 - sum(map(held, ROWS))
    assert found.training_pairs == len(positive) - sum(map(held, positive))
    assert found.held_pairs == sum(map(held, positive))


def test_bad_labels_that_are_trained_as_hits_are_counted(store: DirectoryStore) -> None:
    """The head reads them, and each is a hit all the same."""
    bad = sum(row["stars"] <= 1.0 for row in ROWS)
    assert expected(store, HEAD).bad_as_hits == bad
    assert expected(store, HEAD, "heads.contrastive.positives_only=true").bad_as_hits == 0
    without = expected(store)
    assert without.bad_as_hits == sum(row["stars"] == 0.0 for row in ROWS)
    assert without.labels == (0.0, 4.0)


def test_spans_with_far_fewer_rows_than_usual_are_named(store: DirectoryStore, tmp_path: Path) -> None:
    rows = [review(number, f"2026-0{month}-05") for month in (2, 3, 4) for number in range(40 if month == 3 else 399)]
    run(store, write_input(tmp_path / "more", rows))
    found = enough(store, plan_run(store, load_config(), "2026-04"))
    assert [(each.span, each.rows) for each in found.few] == [("2026-03", 40)]


def test_events_say_which_rows_are_pairs(store: DirectoryStore) -> None:
    """The event of half of the rows has a label, which makes them pairs; the other event has no name."""
    events = "validate.events={column: new, values: {'true': {label: 5}}}"
    found = expected(store, events, HEAD, "heads.contrastive.positives_only=true")
    named = [row for row in ROWS if row["new"]]
    assert found.rows_unusable == 401 - len(named)
    assert found.training_pairs + found.held_pairs == len(named)


def test_rows_of_ids_alone_are_counted_by_their_ids(tmp_path: Path) -> None:
    """Their texts come from the item feed, which a count does not need; nor a column of groups that the feed has."""
    store = DirectoryStore(tmp_path / "workspace")
    clicks = [click(number, f"i{number % 7}" if number else None) for number in range(100)]
    write_log(store, tmp_path, SpanRef(name="2026-03", version=1), clicks)
    config = load_config(overrides=["evaluate.holdout_share=0.3"])
    for group in (None, "brand"):
        evaluate = config.evaluate.model_copy(update={"group": group})
        found = enough(store, plan_run(store, config.model_copy(update={"evaluate": evaluate})))
        assert (found.rows, found.rows_unusable) == (100, 1)
        assert found.training_pairs + found.held_pairs == 99
        assert 15 < found.held_pairs < 45


def test_of_a_large_window_some_rows_are_read_and_the_rest_is_estimated(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = expected(store)
    monkeypatch.setattr(module, "READ_ROWS", 200)
    part = expected(store)
    assert (part.rows, part.rows_read) == (401, 200)
    assert part.training_pairs == pytest.approx(whole.training_pairs, rel=0.1)


def test_earlier_spans_add_held_out_queries_time_and_replayed_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)
    ingest(store, "2026-01", "2026-02")
    config = small_config("train.replay=0.5", "evaluate.holdout_share=0.25")
    first = enough(store, plan_run(store, config))
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    carry_out(plan_run(store, config))
    second = enough(store, plan_run(store, config))
    assert first.earlier_queries == 0
    assert second.earlier_queries > 0
    assert second.training_rows > 40 >= first.training_rows
    assert "nothing was evaluated yet" in first.gates[0].basis
    assert "nothing was evaluated yet" not in second.gates[0].basis


def test_a_gate_on_the_newest_span_sees_its_queries_alone(store: DirectoryStore) -> None:
    forward = "{metric: recall@10, direction: higher, threshold: 0, baseline: champion, span: newest, confidence: 0.9"
    found = expected(store, f"evaluate.gates=[{forward}, severity: warning}}]")
    assert found.gates[0].queries == found.held_queries


def test_a_gate_on_the_golden_set_sees_its_queries(store: DirectoryStore, tmp_path: Path) -> None:
    golden = tmp_path / "golden.csv"
    golden.write_text("query,item\na lamp,lamp 1\na lamp,lamp 2\na desk,lamp 0\n")
    gate = "{metric: recall@10, direction: higher, threshold: 0, baseline: champion, rows: golden, confidence: 0.9"
    found = expected(store, f"evaluate.golden={golden}", f"evaluate.gates=[{gate}, severity: warning}}]")
    assert found.gates[0].queries == 2


def test_golden_items_that_nothing_knows_are_counted_and_named(store: DirectoryStore, tmp_path: Path) -> None:
    """Items without an id are known by their text; a feed announces others."""
    golden = tmp_path / "golden.csv"
    golden.write_text("query,item\na lamp,lamp 1\na desk,Lamp 1\na chair,chair 7\na stool,chair 7\n")
    found = expected(store, f"evaluate.golden={golden}")
    assert (found.golden_items, found.golden_unknown) == (3, 2)
    assert found.golden_unknown_first == ("Lamp 1", "chair 7")
    golden.write_text("query,item,item_id\na lamp,lamp 1,i1\na desk,desk 2,i2\n")
    assert expected(store, f"evaluate.golden={golden}").golden_unknown == 2
    write_feed(store, tmp_path, FeedRef(name="2026-01", version=1), [item("i1", "lamp 1")])
    found = expected(store, f"evaluate.golden={golden}")
    assert (found.golden_unknown, found.golden_unknown_first) == (1, ("desk 2",))
    assert expected(store).golden_unknown == 0
