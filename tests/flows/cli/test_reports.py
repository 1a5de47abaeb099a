"""The commands that show the past: history, metrics, the pages that --html writes, and the server of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli.serving.pages import FRESH_SECONDS, Pages
from flows.cli.serving.server import make_server
from flows.cli.terminal.options import write
from flows.presentation.run.report import write_run_report
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import POLICIES, ConfigError, FailureClass, StoreError
from tests.support.pages.site import Site
from tests.support.processes import command
from tests.support.processes.command import Command, CommandResult
from tests.support.workspace.past import write_run
from tests.support.workspace.stores import STORES

ROOT = Path(__file__).resolve().parents[3]


def fill(store: Store) -> list[str]:
    """A release and a run that failed; their keys."""
    return [write_run(store, 0), write_run(store, 1, "Failed", FailureClass.OOM)]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    fill(store)
    return store


@pytest.fixture
def millrace(capsys: pytest.CaptureFixture[str], store: DirectoryStore) -> Command:
    def call(*arguments: str) -> CommandResult:
        return command.call(capsys, *arguments, "--workspace", store.uri)

    return call


# --- history ----------------------------------------------------------------------------------------------------


def test_history_lists_every_run_and_their_sums(millrace: Command) -> None:
    result = millrace("history")
    assert result.code == 0
    assert re.findall(r"^(2026-W\d\d) +\w{16} +(\W Released as 1|\W Failed: OOM) ", result.out, re.M) == [
        ("2026-W01", "✓ Released as 1"),
        ("2026-W02", "! Failed: OOM"),
    ]
    assert "1 of 2 runs" in result.out
    assert re.search(r"release 1 .* target of 14 d", result.out)


def test_history_names_what_it_left_out(millrace: Command, store: DirectoryStore) -> None:
    store.write("releases/1.json", b"{")
    result = millrace("history")
    assert result.code == 0
    assert f"{store.uri}/releases/1.json" in result.out


def test_status_history_ledger_and_report_show_the_same_state_of_each_run(
    millrace: Command, store: DirectoryStore
) -> None:
    write_run(store, 2, "Rejected")
    write_run(store, 3, "Cancelled", FailureClass.CANCELLED)
    write_run(store, 4, "Running")
    fields = ("run_key", "span", "lineage", "state", "release", "failure", "began_at", "ended_at")
    shown = {
        "status": [run for span in millrace("status", "--json").json["spans"] for run in span["runs"]],
        "history": millrace("history", "--json").json["runs"],
        "ledger": millrace("history", "--ledger", "--json").json["runs"],
    }
    lines = {name: [[run[field] for field in fields] for run in runs] for name, runs in shown.items()}
    assert [line[3] for line in lines["status"]] == ["Released", "Failed", "Rejected", "Cancelled", "Lost"]
    assert lines["status"] == lines["history"] == lines["ledger"]
    for line in lines["status"]:
        report = millrace("report", "--run", line[0], "--json").json["report"]
        assert [report[field] for field in fields] == line


# --- ledger -----------------------------------------------------------------------------------------------------


def test_the_ledger_shows_all_runs_or_the_attempts_of_one(millrace: Command, store: DirectoryStore) -> None:
    everything = millrace("history", "--ledger")
    assert everything.code == 0
    assert re.search(r"1 of 2; 50.0 % *$", everything.out, re.M)
    assert re.findall(r"^(2026-W\d\d) +(\W Released as 1|\W Failed: OOM) ", everything.out, re.M) == [
        ("2026-W02", "! Failed: OOM"),
        ("2026-W01", "✓ Released as 1"),
    ]
    found = millrace("history", "--ledger", "--json").json
    assert [found["whole"]["attempts"], len(found["attempts"])] == [10, 10]
    key = found["runs"][1]["run_key"]
    one = millrace("history", "--ledger", "--run", key)
    assert re.findall(r"^(\w+ \d) +(✓ done|! OOM) ", one.out, re.M)[:3] == [
        ("validate 1", "✓ done"),
        ("health 1", "✓ done"),
        ("warmup 1", "! OOM"),
    ]
    assert millrace("history", "--ledger", "--since", "2026-01-12", "--json").json["runs"] == found["runs"][1:]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "monday"), "--since 'monday' is no day; write it as in 2026-11-20"),
        (("--run", "0000"), "2 runs begin with '0000': 000000005eed0000, 000000005eed0001; name more of it"),
        (("--run", "no-such"), "holds no run no-such; list the runs with: millrace history"),
        (("--run", "no-such", "--since", "2026-01-12"), "give --run or --since, not both"),
    ],
)
def test_a_ledger_that_cannot_be_shown_is_a_wrong_command(
    millrace: Command, arguments: tuple[str, ...], said: str
) -> None:
    result = millrace("history", "--ledger", *arguments)
    assert result.code == POLICIES[FailureClass.CONFIG].exit_code
    assert said in result.err


# --- files ------------------------------------------------------------------------------------------------------


def test_otlp_writes_the_timeline_or_prints_it(millrace: Command, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    assert millrace("report", "--span", "2026-W02", "--otlp", str(file)) == (0, "", f"wrote {file}\n")
    assert millrace("report", "--span", "2026-W02", "--otlp", "-").out == file.read_text()
    assert json.loads(file.read_bytes())["resourceSpans"]
    assert millrace("report", "--otlp", str(file), "--json").code == POLICIES[FailureClass.CONFIG].exit_code


@pytest.mark.parametrize("command", ["report", "history"])
def test_html_writes_the_page_and_prints_nothing(millrace: Command, tmp_path: Path, command: str) -> None:
    file = tmp_path / "page.html"
    result = millrace(command, "--html", str(file))
    assert (result.code, result.out, result.err) == (0, "", f"wrote {file}\n")
    assert file.read_bytes().startswith(b"<!DOCTYPE html>")
    assert json.loads(millrace(command, "--html", str(file), "--json").out)
    assert list(tmp_path.glob(".page*")) == []


def test_report_shows_the_run_of_a_span(millrace: Command, store: DirectoryStore, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert millrace("report", "--span", "2026-W01", "--html", str(file)).code == 0
    assert b"2026-W01: Released" in file.read_bytes()


def test_report_is_short_unless_everything_is_asked_for(millrace: Command) -> None:
    short, full = millrace("report", "--span", "2026-W01").out, millrace("report", "--span", "2026-W01", "--full").out
    assert len(short.splitlines()) < 50 < len(full.splitlines())
    assert all(each in short for each in ("Released as 1", "recall@10", "validate", "release", "report --full"))
    assert "Settings" in full
    assert "Settings" not in short
    failed = millrace("report", "--span", "2026-W02").out
    assert "at 40 sequences" in failed  # with its way out
    assert "! Failed" in failed
    assert "○ not reached" in failed


def test_metrics_are_printed_or_replace_the_old_file(millrace: Command, tmp_path: Path) -> None:
    file = tmp_path / "millrace.prom"
    file.write_text("old")
    assert millrace("history", "--prometheus", str(file)) == (0, "", f"wrote {file}\n")
    assert "\nmillrace_release_number 1.0\n" in file.read_text()
    assert "\nmillrace_release_number 1.0\n" in millrace("history", "--prometheus", "-").out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["millrace.prom", "workspace"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(millrace: Command, tmp_path: Path) -> None:
    result = millrace("history", "--prometheus", str(tmp_path / "nowhere" / "millrace.prom"))
    assert result.code == 74
    assert f"STORE: {tmp_path}/nowhere/millrace.prom" in result.err
    with pytest.raises(StoreError, match="can't be written"):
        write(tmp_path / "workspace", b"")
    assert list(tmp_path.glob(".workspace*")) == []


# --- serve ------------------------------------------------------------------------------------------------------


@pytest.fixture
def site(store: DirectoryStore) -> Iterator[Site]:
    site = Site(store)
    yield site
    site.stop()


@pytest.mark.parametrize("kind", STORES)
def test_a_workspace_in_any_store_is_served(request: pytest.FixtureRequest, kind: str) -> None:
    store = STORES[kind](request)
    released, failed = fill(store)
    site = Site(store)
    try:
        status, headers, body = site.get("/history")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert body == site.get("/reports/history.html")[2]  # where reports link to
        assert f"../runs/{failed}/report.html".encode() in body  # which a browser takes as /runs/...
        assert site.get("/lineages")[2] == site.get("/reports/lineages.html")[2]
        status, headers, body = site.get(f"/runs/{released}/report.html")
        assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert b"2026-W01: Released" in body
        status, headers, body = site.get(f"/runs/{released}/train/attempt-1/ledger.json")
        assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
        assert json.loads(body)["stage"] == "train"
        status, headers, body = site.get("/metrics")
        assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b"\nmillrace_releases 1.0\n" in body
    finally:
        site.stop()


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/runs/",
        "/runs/cafe/report.html",
        "/runs/cafe/../../../etc/passwd",
        "/runs/%2e%2e/releases/1.json",
        "/runs/..%2f..%2fsecret.json",
        "/../secret.json",
        "/runs//etc/passwd.json",
        "/runs/{run}/.locks/x.json",
        "/runs/{run}/validate/rows/2026-W01/part-0.parquet",
        "/runs/{run}",
        "/runs/{run}/train",
        "/runs/{run}/link.json",
        "/releases/1.json",
        "/runs/{run}/train/result.json%00.txt",
    ],
)
def test_nothing_else_is_served(site: Site, tmp_path: Path, path: str) -> None:
    (tmp_path / "secret.json").write_text("secret")
    run = next((tmp_path / "workspace" / "runs").iterdir())
    (run / "link.json").symlink_to(tmp_path / "secret.json")
    status, _, body = site.get(path.replace("{run}", run.name))
    assert status in (404, 503)
    assert b"secret" not in body.replace(str(tmp_path).encode(), b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_only_get_and_head_are_allowed(site: Site, method: str) -> None:
    assert site.get("/", method)[0] == 501


def test_a_head_has_the_length_and_no_body(site: Site) -> None:
    status, headers, body = site.get("/runs/nothing", "HEAD")
    assert (status, body) == (404, b"")
    assert int(headers["content-length"]) > 0


def test_pages_forbid_loading_anything(site: Site) -> None:
    headers = site.get("/metrics")[1]
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "; form-action 'self';" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_a_stored_report_is_served_as_it_is(store: DirectoryStore) -> None:
    pages = Pages(store)
    key = store.list("runs")[0].split("/")[1]
    write_run_report(store, key)
    stored = store.read(f"runs/{key}/report.html") + b"<!-- stored -->"
    store.write(f"runs/{key}/report.html", stored)
    page = pages.page(f"/runs/{key}/report.html")
    assert page is not None
    assert page.body == stored


def test_the_report_of_a_running_run_is_made_again_after_some_seconds(tmp_path: Path) -> None:
    store, moment = DirectoryStore(tmp_path), [100.0]
    key = write_run(store, 0, "Running")
    store.write(f"runs/{key}/report.html", b"of an earlier attempt")
    pages = Pages(store, clock=lambda: moment[0])
    with store.lock("lineages/main.run"):
        before = pages.page(f"/runs/{key}/report.html")
    assert before is not None
    assert b"Running" in before.body
    write_run(store, 0, "Rejected")
    store.delete(f"runs/{key}/report.html")
    assert pages.page(f"/runs/{key}/report.html") == before  # of a moment ago
    moment[0] += FRESH_SECONDS + 1
    after = pages.page(f"/runs/{key}/report.html")
    assert after is not None
    assert after != before


def test_an_unreadable_workspace_is_a_503_and_the_server_continues(
    site: Site, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def gone(key: str) -> list[str]:
        raise StoreError("the bucket is gone")

    with monkeypatch.context() as patch:
        patch.setattr(site.store, "list", gone)
        status, _, body = site.get("/metrics")
        assert (status, body) == (503, b"STORE: the bucket is gone\n")
        assert "STORE: /metrics: " in capsys.readouterr().err
    assert site.get("/metrics")[0] == 200


def test_a_port_in_use_is_an_error_with_the_option(site: Site) -> None:
    with pytest.raises(ConfigError, match=rf":{site.port}: .*--port"):
        make_server(site.store, site.port)
    with pytest.raises(ConfigError, match="can't listen"):
        make_server(site.store, 70_000)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serve_prints_its_address_and_stops_at_a_signal(store: DirectoryStore, number: signal.Signals) -> None:
    # A shell that starts the tests in the background makes them ignore SIGINT, and their processes too.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}; import sys, flows.cli; sys.argv[0] = 'millrace'; flows.cli.main()"
    command = [sys.executable, "-c", code, "serve", "--port", "0", "--workspace", store.uri]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(rf"(http://127\.0\.0\.1:\d+) shows {re.escape(store.uri)}; Ctrl-C ends it\n", line)
            assert found, line
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{found[1]}/nothing", timeout=60)
            process.send_signal(number)
            _, error = process.communicate(timeout=60)
            assert (process.returncode, error) == (0, "stopped\n")
        finally:
            process.kill()


@pytest.mark.parametrize("module", ["flows.cli.serving.server", "flows.presentation.run.report"])
def test_nothing_slow_is_loaded_before_a_page_is_made(module: str) -> None:
    code = f"import sys, {module}; print({{'matplotlib', 'jinja2', 'prefect', 'pandas'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
