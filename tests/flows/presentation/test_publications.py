"""What a release's page and a run's report show of the targets."""

from __future__ import annotations

import pytest

from flows.presentation.model import Section
from flows.presentation.run.pages import stage_page
from flows.presentation.run.report import run_page
from infra.store.directory import DirectoryStore
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.search import NarrowRecall
from tasks.contracts.stages import Chore, Stage
from tasks.foundation.errors import StoreError
from tasks.planning.next_run import plan_run
from tasks.publish import publish_to_all
from tasks.runs import served_targets
from tests.support.fakes.fake_runner import FakeRunner, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed
from tests.support.pages.shown import commands, part, rows, shown_in_sections, written

TWO = small_config("publish.targets=[{kind: lancedb, name: look, uri: l}, {kind: qdrant, name: shop, url: q}]")


@pytest.fixture
def plan(store: DirectoryStore, runner: FakeRunner) -> RunPlan:
    return plan_run(store, TWO)


@pytest.fixture
def release(plan: RunPlan) -> Release:
    made = carry_out(plan).released
    assert made is not None
    return made


def stands(made: Section) -> list[list[str]]:
    return [[shown_in_sections(cell) for cell in row] for row in part(made, "Publications").tables[0].rows]


def test_targets_that_are_still_to_come_are_named(store, plan, release):
    made = stage_page(store, plan, Stage.release, release)
    assert stands(made) == [["look (lancedb)", "○ not yet", "no release yet", "–"],
                            ["shop (qdrant)", "○ not yet", "no release yet", "–"]]  # fmt: skip
    assert len(part(made, "Publications").tables) == 1


def test_a_served_and_a_failed_target(store, runner, plan, release, golden):
    runner.fail(Chore.publish, StoreError("no route to host"))
    with pytest.raises(StoreError):
        publish_to_all(store, TWO, release, True)
    page, report = stage_page(store, plan, Stage.release, release), run_page(store, plan.run_key)
    published = part(page, "Publications")
    assert [row[:2] for row in stands(page)] == [["look (lancedb)", "✕ failed: STORE"], ["shop (qdrant)", "✓ served"]]
    assert rows(published)[2:] == [["shop (qdrant)", "1.0000", "0.5", "24", "30", "shop_r1_00000000", "vector_idx"]]
    assert ("publication to shop", "publications/publish-1-shop/publish") in published.files
    box = part(page, "Release 1 did not reach look")
    golden(written(published), written(box), hide=r"\d{4}-\d\d-\d\d \d\d:\d\d")
    assert f"{box.title}, see below." in page.lines
    assert commands(box) == [
        f"millrace publish \\\n  --workspace {store.uri} \\\n  --config {store.uri}/runs/{plan.run_key}/config.yaml"
    ]
    why = part(box, "look (lancedb) failed with STORE")
    assert why.quote == "no route to host"
    assert box in report.boxes
    assert published in report.sections


def test_a_release_that_another_replaced_keeps_what_was_measured(store, plan, release):
    publish_to_all(store, TWO, release, True)
    ingest_feed(store, "2026-11")
    later = refreshed(store)
    publish_to_all(store, TWO, later, True)
    made = stage_page(store, plan, Stage.release, release)
    assert [row[1:3] for row in stands(made)] == [["○ not served now", "release 2"]] * 2
    assert ["look (lancedb)", "1.0000", "0.5", "24", "30", "look_r1_00000000", "vector_idx"] in rows(made)


def test_the_recall_of_narrow_vectors_is_shown_beside_that_of_the_release(store, plan, release):
    config = small_config("publish.targets=[{kind: lancedb, name: look, uri: l, form: int8}]")
    (served,) = publish_to_all(store, config, release, True)
    measured = NarrowRecall(queries=1200, recall_at_10=0.7, whole=0.7125, loss_low=-0.001, loss_high=0.025)
    served_targets.note(store, served.model_copy(update={"narrow": measured}))
    found = part(stage_page(store, plan, Stage.release, release), "Publications")
    assert rows(found)[-1] == ["look (lancedb)", "int8", "0.7000", "0.7125", "0.0125 (-0.0010 to 0.0250)", "1,200"]


def test_a_run_without_targets_has_no_such_section(store, runner):
    plan = plan_run(store, small_config())
    carry_out(plan)
    assert "publications" not in [section.id for section in run_page(store, plan.run_key).sections]
