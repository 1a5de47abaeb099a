"""The report of one run: what it says about each kind of end, and that it needs nothing but itself."""

from __future__ import annotations

import functools
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.reports.run_page import report_key, run_html, write_run_report
from infra.store import DirectoryStore, Store
from tasks.contracts import Check, CheckpointState, Stage
from tasks.errors import POLICIES, ConfigError, FailureClass, StoreError
from tasks.findings import Findings, findings_key
from tests.flows.reports.conftest import Past
from tests.support.html import Page
from tests.support.past import week, write_run

ROOT = Path(__file__).resolve().parents[3]


@functools.cache
def page_of(past: Past, number: int) -> Page:
    return Page(run_html(past.store, past.keys[number]))


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


@pytest.mark.parametrize("number", [0, 2, 5, 9])
def test_it_stands_alone(past: Past, number: int) -> None:
    data = run_html(past.store, past.keys[number])
    page = Page(data)
    assert page.all("script") == []
    assert b"@import" not in data
    assert b"url(" not in data
    assert all(address.startswith("data:") for address in page.fetched)
    assert any("default-src 'none'" in meta.get("content", "") for meta in page.all("meta"))


@pytest.mark.parametrize("number", [0, 4])
def test_it_can_be_read_without_eyes(past: Past, number: int) -> None:
    page = page_of(past, number)
    assert page.all("html")[0]["lang"] == "en"
    assert page.all("title")
    assert page.all("img")
    assert all(len(image["alt"]) > 20 for image in page.all("img"))
    assert len(page.all("figcaption")) == len(page.all("img"))
    assert all(heading.get("scope") in ("col", "row") for heading in page.all("th"))
    assert all(table["aria-label"] for table in page.all("table"))
    assert len(page.ids) == len(set(page.ids))
    targets = [link["href"].removeprefix("#") for link in page.all("a") if link["href"].startswith("#")]
    assert set(targets) <= set(page.ids)
    assert all(picture.tag.endswith("}svg") for picture in page.pictures)


def test_a_release_is_told_from_data_to_vectors(past: Past) -> None:
    page = page_of(past, 1)
    assert "2026-W02 ✓ Released as 2" in page.text
    assert "Model main-00000800 and its 184,210 vectors became release 2" in page.text
    assert page.row("recall@10")[1] == "✓ passed"
    challenger, champion, difference = page.row("recall@10")[3:6]
    assert float(difference) == pytest.approx(float(challenger) - float(champion), abs=1.1e-4)
    assert page.row("empty query") == ["empty query", "612", "1.3 %"]
    assert page.row("locale = de")[1] == "1,204"
    assert page.row("Vectors")[1].startswith("184,210, 384 wide, in vectors/main-00000800/2026-W02")
    assert page.row("train.workers") == ["train.workers", "64", "1"]
    assert page.row("Started from")[1] == "lineages/main/step-00000400, step 400"
    assert "26 graphs that warmup had compiled, 0 new; 600.0 s of compiling saved" in page.text
    assert "What to do" not in page.text


def test_a_first_run_has_no_champion(past: Past) -> None:
    page = page_of(past, 0)
    assert page.row("recall@10")[1] == "○ does not apply"
    assert page.row("Started from")[1] == "nothing: it began the lineage"


def test_each_attempt_has_its_class_its_message_and_a_link_to_its_record(past: Past) -> None:
    page = page_of(past, 7)
    failed, done = page.row("train 1"), page.row("train 2")
    assert failed[1] == "! HANG"
    assert failed[-1].startswith("train: no step for 600 s")
    assert (done[1], done[-1]) == ("✓ done", "–")
    links = {link["href"] for link in page.all("a")}
    assert "train/attempt-1/ledger.json" in links
    assert all((Path(past.store.uri) / "runs" / past.keys[7] / link).exists() for link in links if "/attempt-" in link)


def test_the_time_is_told_by_stage_and_phase(past: Past) -> None:
    page = page_of(past, 7)
    lost = float(page.row("train")[8].replace(",", ""))
    ledger = json.loads(past.store.read(f"runs/{past.keys[7]}/train/attempt-1/ledger.json"))
    assert lost == pytest.approx(ledger["seconds"]["lost"], abs=0.1)


def test_a_rejection_says_that_nothing_has_to_be_mended(past: Past) -> None:
    page = page_of(past, 2)
    assert "2026-W03 ✕ Rejected" in page.text
    assert page.row("recall@10")[1] == "✕ refused"
    assert "the champion and its vectors stay" in page.text


@pytest.mark.parametrize(("number", "failure"), [(4, FailureClass.HOST), (5, FailureClass.CODE)])
def test_a_failure_says_what_it_means_and_how_to_go_on(past: Past, number: int, failure: FailureClass) -> None:
    page = page_of(past, number)
    policy = POLICIES[failure]
    assert f"Failed with {failure}" in page.text
    assert policy.meaning in page.text
    assert f"exit code {policy.exit_code}" in page.text
    assert f"docs/runbook.md, {failure}" in page.text
    assert ("no retry was made" in page.text) is not policy.transient
    assert f"millrace run --span {week(number)}" in page.text
    assert f"--config {past.store.uri}/runs/{past.keys[number]}/config.yaml" in page.text


def test_what_a_message_holds_is_text(past: Past) -> None:
    data = run_html(past.store, past.keys[5])
    assert b"<script" not in data
    assert "KeyError: 'locale' <script>alert(1)</script>" in Page(data).text


def test_a_flow_run_is_linked_to_by_address_alone(past: Past, store: DirectoryStore) -> None:
    links = [link["href"] for link in page_of(past, 1).all("a")]
    assert f"http://127.0.0.1:4200/runs/flow-run/{past.keys[1]}" in links
    key = write_run(store, 0)
    record = json.loads(store.read(f"runs/{key}/invocations/1.json"))
    store.write(f"runs/{key}/invocations/1.json", json.dumps(record | {"page": "javascript:alert(1)"}).encode())
    assert b"javascript:" not in run_html(store, key)


def test_a_run_that_goes_on_says_since_when_and_until_when(past: Past) -> None:
    page = page_of(past, 9)
    assert "2026-W10 ▶ Running" in page.text
    assert "Train 1 since 2026-03-09" in page.text
    assert "the deadline is 2026-03-10 06:00" in page.text
    assert page.row("train 1")[1] == "▶ no end on record"


def test_a_cancelled_run_is_no_failure(past: Past) -> None:
    assert "■ Cancelled" in page_of(past, 6).text
    assert "Nothing has to be mended" in page_of(past, 6).text


def test_what_is_not_readable_is_named_and_the_rest_is_shown(store: DirectoryStore) -> None:
    key = write_run(store, 1)
    store.write(f"runs/{key}/train/result.json", b"{")
    store.write(f"runs/{key}/health/attempt-1/ledger.json", b"[]")
    page = Page(run_html(store, key))
    assert f"{store.uri}/runs/{key}/train/result.json is not readable" in page.text
    assert f"{store.uri}/runs/{key}/health/attempt-1/ledger.json is not readable" in page.text
    assert page.row("recall@10")[1] == "✓ passed"


def test_a_plan_of_another_version_leaves_what_the_records_tell(store: DirectoryStore) -> None:
    key = write_run(store, 1)
    plan = json.loads(store.read(f"runs/{key}/plan.json"))
    store.write(f"runs/{key}/plan.json", json.dumps(plan | {"config": {"pipeline": "old"}}).encode())
    page = Page(run_html(store, key))
    assert "2026-W02 ✓ Released as 1" in page.text
    assert "plan.json is not readable: config" in page.text


def test_why_health_refused_its_machines_is_shown(store: DirectoryStore) -> None:
    key = write_run(store, 1, "Failed", FailureClass.HOST)
    store.delete(f"runs/{key}/health/result.json")
    check = Check(
        name="ECC", passed=False, severity="critical", observed=1.0, sentence="1 in the SRAM", host="i-1", action="stop"
    )
    store.write(findings_key(f"runs/{key}/health/attempt-1"), Findings(checks=(check,)).to_json())
    assert Page(run_html(store, key)).row("ECC") == ["ECC", "✕ refused", "health", "1 in the SRAM [stop: i-1]"]


def test_the_run_that_made_the_parent_is_linked_to(store: DirectoryStore) -> None:
    key = write_run(store, 1)
    state = CheckpointState(
        lineage="main", run_key="cafe", step=400, first_step=0, complete=True, consumed=(), parent=None, seed=1,
        losses=(), curve=(),
    )  # fmt: skip
    store.write("lineages/main/step-00000400/state.json", state.to_json())
    assert "../cafe/report.html" in [link["href"] for link in Page(run_html(store, key)).all("a")]


def test_the_same_past_gives_the_same_pictures(past: Past) -> None:
    again = Page(run_html(past.store, past.keys[1]))
    assert again.all("img") == page_of(past, 1).all("img")


def test_a_run_that_is_not_there_is_told(past: Past) -> None:
    with pytest.raises(ConfigError, match="holds no run cafe"):
        run_html(past.store, "cafe")


# --- the file beside the run's records --------------------------------------------------------------------------


def test_the_report_is_written_beside_the_run(store: DirectoryStore) -> None:
    key = write_run(store, 0)
    assert write_run_report(store, key) == report_key(key) == f"runs/{key}/report.html"
    assert "Released as 1" in Page(store.read(report_key(key))).text


class FullStore(DirectoryStore):
    def write(self, key: str, data: bytes) -> None:
        raise StoreError(f"{key}: no space left on device")


@pytest.mark.parametrize(("store_type", "key"), [(FullStore, None), (DirectoryStore, "cafe")])
def test_a_report_that_cannot_be_made_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, store_type: type[DirectoryStore], key: str | None
) -> None:
    run = write_run(DirectoryStore(tmp_path), 0)
    store: Store = store_type(tmp_path)
    with caplog.at_level(logging.WARNING, "millrace"):
        assert write_run_report(store, key or run) is None
    assert "could not be made" in caplog.text
    assert not store.exists(report_key(run))


def test_nothing_is_drawn_before_it_is_asked_for() -> None:
    code = "import sys, flows.reports.run_page; print({'matplotlib', 'jinja2', 'prefect'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


def test_the_stages_that_were_never_begun_leave_no_section(store: DirectoryStore) -> None:
    key = write_run(store, 1, "Failed", FailureClass.DATA)
    shutil.rmtree(Path(store.uri) / "runs" / key / "invocations")
    page = Page(run_html(store, key))
    assert "Failed with DATA in validate" in page.text
    assert {"gates", "curves", "slices", "graphs", "invocations"}.isdisjoint(page.ids)
    assert {"time", "attempts", "settings", "origin"} <= set(page.ids)
    assert [stage for stage in Stage if any(row[:1] == [f"{stage} 1"] for row in page.rows)] == [Stage.validate]
