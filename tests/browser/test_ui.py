"""What a person does in the Prefect UI, done by a real browser: starts a backfill, watches, cancels, opens pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from infra.prefect_server import Server
from tests.browser.album import Album
from tests.browser.operated import SPANS, Operated, operated
from tests.browser.prefect_pages import RunForm, log_in

pytestmark = [pytest.mark.pipeline, pytest.mark.proof]

STAGES = ["train", "evaluate", "infer", "release"]
STAGE_PAGES = ["validate", "health", "warmup", "train", "evaluate", "infer", "release"]


@pytest.fixture(scope="module")
def one(server: Server, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operated]:
    """The server is made ready before the browser, whose event loop would be in its way."""
    with operated(tmp_path_factory.mktemp("operated"), server) as one:
        yield one


@pytest.fixture(autouse=True)
def known(one: Operated, page: Page) -> None:
    """The pages have the password that `millrace up` points to."""
    log_in(page, one.url, one.password)


def test_a_backfill_is_started_from_its_form_and_watched_to_its_end(one: Operated, page: Page, album: Album) -> None:
    form = RunForm(page, one.url, "backfill/workspace-shop-backfill")
    assert [label for label, text in form.help_texts().items() if not text] == []
    assert form.chosen("stages") == STAGES
    assert form.offered("stages") == STAGES
    form.fill("workspace", one.fresh_workspace("backfill"))
    form.fill("first", "spring")
    form.fill("last", "2021-Q3")
    form.fill("reason", "prices of March were in cents")
    form.refused("Validation failed for field 'first'")
    form.fill("first", "2021-Q1")
    form.fill("parallel", "17")
    form.refused("17 is greater than the maximum of 16")
    album.add(page, "refused")
    form.fill("parallel", "2")
    album.add(page, "filled")
    with one.held("train-2021-Q3") as hold:
        run = form.submit()
        expect(run.heading).to_contain_text("2021-Q1 to 2021-Q3")
        hold.wait()
        assert run.artifact("backfill-main-progress").progress_above(59.0) == 60.0
        album.add(page, "progress")
        run.come_back()
        table = run.artifact("backfill-main")
        assert table.columns()[:5] == ["span", *STAGES]
        now = [["2021-Q1 v1", "done"], ["2021-Q2 v1", "done"], ["2021-Q3 v1", "running"]]
        table.reload_until("training on the third span", lambda: [row[:2] for row in table.rows()] == now)
        album.add(page, "table")
        expect(table.description).to_contain_text("prices of March were in cents")
        run.come_back()
        expect(run.tab("Subflow Runs")).to_contain_text("2021-Q3 attempt 1")
        album.add(page, "spans")
        hold.let_go()
        expect(run.state).to_have_text("Completed")
    album.add(page, "completed")
    assert run.artifact("backfill-main-progress").progress_above(99.0) == 100.0
    album.add(page, "progress-at-the-end")
    run.come_back()
    table = run.artifact("backfill-main")
    assert [row[1:4] for row in table.rows()] == [["done", "done", "done"]] * 3
    assert [row[4] == "done" for row in table.rows()] == [False, False, True]
    album.add(page, "table-at-the-end")


@pytest.mark.parametrize(
    ("deployment", "fields", "name"),
    [
        ("pipeline/workspace-shop-pipeline", {"span": "2021-Q1"}, "2021-Q1 attempt 1"),
        ("backfill/workspace-shop-backfill", {"first": "2021-Q1", "last": "2021-Q2"}, "2021-Q1 to 2021-Q2"),
    ],
    ids=["pipeline", "backfill"],
)
def test_a_run_is_cancelled_from_its_page(
    one: Operated, page: Page, album: Album, deployment: str, fields: dict[str, str], name: str
) -> None:
    with one.held("train-2021-Q1") as hold:
        form = RunForm(page, one.url, deployment)
        assert [label for label, text in form.help_texts().items() if not text] == []
        form.fill("workspace", one.fresh_workspace(f"cancelled-{deployment.replace('/', '-')}"))
        for label, text in fields.items():
            form.fill(label, text)
        run = form.submit()
        expect(run.heading).to_contain_text(name)
        hold.wait()
        expect(run.tab("Logs")).to_contain_text("2021-Q1")
        album.add(page, "running")
        run.cancel()
        expect(run.state).to_have_text("Cancelled")
        album.add(page, "cancelled")
        assert one.wait_for_end(run.id).state_name == "Cancelled"
    started = one.runs_below(run.id)
    assert {(one.name, one.state_name) for one in started} <= {("2021-Q1 attempt 1", "Cancelled")}


def test_a_run_has_a_page_for_each_stage_and_leads_to_its_report(one: Operated, page: Page, album: Album) -> None:
    form = RunForm(page, one.url, "pipeline/workspace-shop-pipeline")
    form.fill("span", SPANS[0])
    album.add(page, "form")
    with one.held(f"train-{SPANS[0]}") as hold:
        run = form.submit()
        hold.wait()
        bar = run.artifact("train-progress-main")
        assert 25.0 <= bar.progress_above(25.0) < 30.0
        expect(bar.description).to_contain_text("step 11 of 40")
        album.add(page, "training")
        hold.let_go()
        assert bar.progress_above(99.0) == 100.0
    run.come_back()
    expect(run.state).to_have_text("Released")
    album.add(page, "completed")
    for stage in STAGE_PAGES:
        artifact = run.artifact(f"{stage}-main")
        expect(artifact.content).to_contain_text(SPANS[0])
        if stage == "train":
            pictures = artifact.images()
            assert pictures
            assert all(width >= 200 and height >= 100 for width, height in pictures)
        album.add(page, stage)
        run.come_back()

    links = run.artifact("run-main")
    album.add(page, "links")
    with page.expect_popup() as opened:
        links.content.get_by_role("link", name="report of the run").click()
    report = opened.value
    expect(report.get_by_role("heading", level=1)).to_contain_text(SPANS[0])
    assert report.url.startswith(one.reports)
    run_key = report.url.removesuffix("/report.html").rpartition("/")[2]
    expect(report.locator("body")).to_contain_text(run_key)
    album.add(report, "report")
    report.get_by_role("link", name="History").click()
    expect(report.get_by_role("link", name=SPANS[0]).first).to_be_visible()
    album.add(report, "history")
