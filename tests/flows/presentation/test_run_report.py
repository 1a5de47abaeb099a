"""Whole reports of runs: one for each kind of end."""

from __future__ import annotations

import functools
import json
import logging
import shutil
from pathlib import Path

import pytest

from configs.schema.operations import LinksConfig
from flows.presentation.history.page import history_html
from flows.presentation.run import origin
from flows.presentation.run.report import run_html, run_page, write_run_report
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.contracts.references import CheckpointState
from tasks.contracts.runs import Hold
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import REPORT
from tasks.foundation.errors import ConfigError, FailureClass, StoreError
from tasks.monitoring.estimates import run_cost
from tasks.runs import invocations
from tasks.runs.plan import read_plan
from tasks.runs.releases import CURRENT, Pointer
from tests.flows.presentation.conftest import ENDS, Past
from tests.support.pages.golden import Golden
from tests.support.pages.shown import Page, commands, row
from tests.support.workspace.past import week, write_run


@functools.cache
def page_of(past: Past, number: int) -> Page:
    return Page(run_html(past.store, past.keys[number]))


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_a_release_is_shown_from_data_to_vectors(past: Past, golden: Golden) -> None:
    page = page_of(past, 1)
    golden(page.lines, hide=r"(?s)(?<=What differs from configs/base.yaml).*(?=^Where it comes from)")
    assert ["recall@10", "✓ passed", "critical"] in [cells[:3] for cells in page.rows]
    assert page.row("empty query") == ["empty query", "612", "1.3 %"]
    assert page.row("locale = de")[1] == "1,204"
    assert page.row("train.workers") == ["train.workers", "64", "1"]
    assert page.row("starts from")[1] == "lineages/main/step-00000400, step 400"
    assert [name for name in page.ids if name in list(Stage)] == [stage.value for stage in Stage]
    assert set(page.ids).isdisjoint({"failure", "trouble", "failures"})
    targets = [link["href"].removeprefix("#") for link in page.all("a") if link["href"].startswith("#")]
    assert set(targets) <= set(page.ids)


def test_a_release_that_waits_is_held_on_the_report_and_in_the_history(store: DirectoryStore) -> None:
    keys = [write_run(store, number) for number in range(2)]
    hold = Hold(by="ada on laptop", at="2026-03-01T00:00:00+00:00", reason="a bad week")
    store.write(CURRENT, Pointer(release=1, undecided=(2,), hold=hold).to_json())
    text = Page(run_html(store, keys[1])).text
    assert "2026-W02 ‖ Held as 2" in text
    assert hold.sentence in text
    assert "‖ Held as 2" in Page(history_html(store)).text


def test_attempts_are_linked_to_their_records(past: Past) -> None:
    page = page_of(past, 7)
    assert any(cells[:2] == ["train 1", "! HANG"] and "600 s" in cells[2] for cells in page.rows)
    links = {link["href"] for link in page.all("a")}
    assert "train/attempt-1/ledger.json" in links
    assert all((Path(past.store.uri) / "runs" / past.keys[7] / link).exists() for link in links if "/attempt-" in link)


def test_a_rejected_run_shows_the_refused_gate(past: Past) -> None:
    page = page_of(past, 2)
    assert "2026-W03 ✕ Rejected" in page.text
    assert "trouble" in page.ids
    assert ["recall@10", "✕ refused"] in [cells[:2] for cells in page.rows]


@pytest.mark.parametrize("number", [4, 5, 6])
def test_a_failed_or_cancelled_run_names_the_command_that_continues_it(past: Past, number: int) -> None:
    page = page_of(past, number)
    assert page.row("class")[1].startswith(f"{ENDS[number][1]}, exit code ")
    assert f"millrace run --span {week(number)}" in page.text
    assert f"--config {past.store.uri}/runs/{past.keys[number]}/config.yaml" in page.text


def test_html_in_a_message_is_escaped(past: Past) -> None:
    data = run_html(past.store, past.keys[5])
    assert b"<script" not in data
    assert "KeyError: 'locale' <script>alert(1)</script>" in Page(data).text


def test_only_http_addresses_of_flow_runs_are_linked(past: Past, store: DirectoryStore) -> None:
    links = [link["href"] for link in page_of(past, 1).all("a")]
    assert f"http://127.0.0.1:4200/runs/flow-run/{past.keys[1]}" in links
    key = write_run(store, 0)
    record = json.loads(store.read(f"runs/{key}/invocations/1.json"))
    store.write(f"runs/{key}/invocations/1.json", json.dumps(record | {"page": "javascript:alert(1)"}).encode())
    assert b"javascript:" not in run_html(store, key)


def test_a_run_whose_process_is_gone_is_lost_and_goes_on_with_the_same_command(past: Past) -> None:
    page = page_of(past, 9)
    assert "2026-W10 ! Lost" in page.text
    assert "millrace run" in page.text
    assert "--span 2026-W10" in page.text


def test_a_running_run_shows_its_start_and_deadline(past: Past) -> None:
    with past.store.lock("lineages/main.run"):
        page = Page(run_html(past.store, past.keys[9]))
    assert "2026-W10 ▶ Running" in page.text
    assert "2026-03-10 06:00" in page.text
    assert page.row("train 1")[1][0] == "▶"


def test_unreadable_files_are_named_and_the_rest_is_shown(store: DirectoryStore) -> None:
    key = write_run(store, 1)
    store.write(f"runs/{key}/train/result.json", b"{")
    plan = json.loads(store.read(f"runs/{key}/plan.json"))
    store.write(f"runs/{key}/plan.json", json.dumps(plan | {"config": {"pipeline": "old"}}).encode())
    page = Page(run_html(store, key))
    assert f"{store.uri}/runs/{key}/train/result.json is not readable" in page.text
    assert "plan.json is not readable" in page.text
    assert ["recall@10", "✓ passed"] in [cells[:2] for cells in page.rows]


def test_the_run_that_made_the_parent_is_linked(store: DirectoryStore) -> None:
    key = write_run(store, 1)
    state = CheckpointState(
        lineage="main", run_key="cafe", step=400, first_step=0, complete=True, consumed=(), parent=None, seed=1,
        losses=(), curve=(),
    )  # fmt: skip
    store.write("lineages/main/step-00000400/state.json", state.to_json())
    assert "../cafe/report.html" in [link["href"] for link in Page(run_html(store, key)).all("a")]


def test_a_missing_run_is_an_error(past: Past) -> None:
    with pytest.raises(ConfigError, match="holds no run cafe"):
        run_html(past.store, "cafe")


def test_stages_that_never_began_have_no_section(store: DirectoryStore) -> None:
    key = write_run(store, 1, "Failed", FailureClass.DATA)
    shutil.rmtree(Path(store.uri) / "runs" / key / "invocations")
    page = run_page(store, key)
    assert [section.id for section in page.sections] == [
        "cost", "time", "attempts", "failures", "settings", "origin", "files",
    ]  # fmt: skip
    assert page.boxes[0].title == "Validate failed with DATA"


# --- the page that an invocation begins with ----------------------------------------------------------------------


def test_the_first_page_shows_what_runs_and_when_it_should_end(store: DirectoryStore) -> None:
    plan = read_plan(store, write_run(store, 1))
    one = invocations.begin(store, plan, scheduled_at="2026-11-23T06:00:00+01:00", expected_seconds=5400)
    made = origin.begun(plan, one, run_cost(store, plan))
    assert row(made, "run key") == [plan.run_key]
    assert row(made, "starts from") == ["lineages/main/step-00000400, step 400"]
    assert row(made, "scheduled") == ["2026-11-23 05:00 UTC"]
    assert row(made, "late after") == ["2026-11-24 05:00 UTC"]
    assert "not known" not in row(made, "expected to end")[0]
    assert (
        "not known"
        in row(origin.begun(plan, invocations.begin(store, plan), run_cost(store, plan)), "expected to end")[0]
    )
    assert [command.split()[:2] for command in commands(made)] == [["millrace", "report"], ["tensorboard", "--logdir"]]
    links = LinksConfig(reports="https://reports.example/", tensorboard="https://board.example")
    linked = plan.model_copy(update={"config": plan.config.model_copy(update={"links": links})})
    cells = [
        cell
        for table in origin.begun(linked, one, run_cost(store, plan)).tables
        for each in table.rows
        for cell in each
    ]
    assert {cell.link for cell in cells if cell.link} == {
        f"https://reports.example/{REPORT.key(run=plan.run_key)}", "https://board.example",
    }  # fmt: skip


# --- the file with the run's records ------------------------------------------------------------------------------


def test_the_report_is_stored_with_the_run(store: DirectoryStore) -> None:
    key = write_run(store, 0)
    assert write_run_report(store, key) == REPORT.key(run=key) == f"runs/{key}/report.html"
    assert "Released as 1" in Page(store.read(REPORT.key(run=key))).text


class FullStore(DirectoryStore):
    def write(self, key: str, data: bytes) -> None:
        raise StoreError(f"{key}: no space left on device")


@pytest.mark.parametrize(("store_type", "key"), [(FullStore, None), (DirectoryStore, "cafe")])
def test_a_failing_report_is_only_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store_type: type[DirectoryStore], key: str | None
) -> None:
    run = write_run(DirectoryStore(tmp_path), 0)
    store: Store = store_type(tmp_path)
    with caplog.at_level(logging.WARNING, "millrace"):
        assert write_run_report(store, key or run) is None
    assert "could not be made" in caplog.text
    assert not store.exists(REPORT.key(run=run))
