"""The command as people and scripts use it: what it prints where, its exit codes, and the documented JSON.

The pipeline is run by the real command, in its own process, under a real server; only its workers are fakes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from flows.cli import running, status
from flows.cli.app import all_commands
from infra.prefect_server import Server
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import POLICIES
from tasks.foundation.process import code_version
from tests.flows.cli.test_ingesting import INGEST, REVIEW, source
from tests.support.fakes.commands import SMALL, run_command, run_pipeline
from tests.support.fakes.fake_runner import ingest
from tests.support.pages.golden import Golden
from tests.support.processes.command import Command, CommandResult

ROOT = Path(__file__).resolve().parents[3]
DOCS = (ROOT / "docs" / "cli.md").read_text()


class Runs(NamedTuple):
    workspace: Path
    verbose: CommandResult
    released: CommandResult
    rejected: CommandResult
    failed: CommandResult


@pytest.fixture(scope="module")
def runs(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Four spans: two released, one rejected, one whose health check failed."""
    workspace = tmp_path_factory.mktemp("workspace")
    ingest(DirectoryStore(workspace), "2026-01", "2026-02", "2026-03", "2026-04")
    return Runs(
        workspace,
        verbose=run_pipeline(server, workspace, "--verbose"),
        released=run_pipeline(server, workspace, "--json"),
        rejected=run_pipeline(server, workspace, "--json", FAKE_RECALL="0.1"),
        failed=run_pipeline(server, workspace, "--json", FAKE_FAIL="health:DATA"),
    )


def test_the_version_names_the_files_that_run(millrace: Command) -> None:
    assert millrace("--version").out == f"millrace {code_version()}\n"


# --- run --------------------------------------------------------------------------------------------------------


def test_a_run_releases_and_prints_nothing_but_json(runs: Runs, server: Server) -> None:
    assert runs.released.code == 0
    output = running.RunOutput.model_validate_json(runs.released.out)
    assert (output.state, output.sentence) == ("Released", "")
    assert output.report is not None
    assert (output.report.span, output.report.release) == ("2026-02", 2)
    assert [line.stage for line in output.stages if line.done] == [
        "validate", "health", "warmup", "train", "evaluate", "infer", "release",
    ]  # fmt: skip
    assert output.ui_url == server.ui_url
    assert output.run_url is not None
    assert output.run_url.startswith(f"{server.ui_url}/runs/flow-run/")


def test_standard_error_has_progress_and_warnings_or_the_whole_log(runs: Runs, server: Server) -> None:
    lines = runs.released.err.splitlines()
    assert server.ui_url in lines[0]
    assert "train: 1 of 1" in lines
    assert "warning: drift: labels drifted by 0.3" in lines
    assert "fake train of 2026-01" in runs.verbose.err
    assert "train: 1 of 1" not in runs.verbose.err


def test_a_rejected_model_is_a_result(runs: Runs) -> None:
    assert runs.rejected.code == 0
    output = json.loads(runs.rejected.out)
    assert output["state"] == "Rejected"
    assert output["sentence"].startswith("recall@10 0.1000 ")
    assert "2026-03 is trained again" in output["sentence"]


def test_a_failed_stage_is_one_sentence_and_the_code_of_its_class(runs: Runs) -> None:
    assert runs.failed.code == 65
    assert runs.failed.out == ""
    assert runs.failed.err.splitlines()[-1] == "DATA: row 3 is bad"
    assert "/runs/flow-run/" in runs.failed.err.splitlines()[-2]
    assert "Traceback" not in runs.failed.err


def test_a_finished_run_is_found_again(runs: Runs, server: Server) -> None:
    again = run_pipeline(server, runs.workspace, "--span", "2026-02")
    assert again.code == 0
    assert re.findall(r"^(\w+) +cached", again.out, re.M) == [
        "validate", "health", "warmup", "train", "evaluate", "infer", "release",
    ]  # fmt: skip
    assert "Released as 2: model m-" in again.out
    for step in ('search "a query"', "report", "serve"):
        assert f"  millrace {step} --workspace {runs.workspace}" in again.out


def test_a_terminated_run_is_cancelled(server: Server, tmp_path: Path) -> None:
    ingest(DirectoryStore(tmp_path), "2026-01")
    stopped = run_pipeline(server, tmp_path, FAKE_FAIL="warmup:SIGTERM")
    assert stopped.code == 76
    assert stopped.err.splitlines()[-1].startswith("CANCELLED: ")
    assert "Traceback" not in stopped.err


def test_nothing_to_do_needs_no_server(copied: Path) -> None:
    absent = Server(url="http://127.0.0.1:1/api", ui_url="", home=str(copied), pid=None, started=False)
    shutil.rmtree(copied / "spans" / "2026-04")
    idle = run_pipeline(absent, copied, "--json")
    assert idle.code == 0
    assert json.loads(idle.out)["state"] == "NothingToDo"


def test_run_leaves_prefect_unloaded_until_its_environment_is_set() -> None:
    modules = "flows.cli.running, flows.laboratory.side_commands, flows.laboratory.importing"
    code = f"import sys, {modules}; print('prefect' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "False\n"


def test_dry_run_says_whether_the_data_is_enough(millrace: Command, runs: Runs) -> None:
    before = sorted(runs.workspace.rglob("*"))
    arguments = ["run", "--dry-run", "--span", "2026-04", "--workspace", str(runs.workspace), *SMALL]
    out = millrace(*arguments, "--set", "train.epochs=2").out
    assert "window:  2026-03 v1, 2026-04 v1\nbefore:  2026-01, 2026-02\n" in out
    assert "\nrows:    80\n" in out
    assert re.search(r"^steps:   about 4, of 64 rows, 2 epochs$", out, re.M)
    assert re.search(r"^time:    about \d", out, re.M)
    for queries in ("unseen", "seen"):
        assert re.search(rf"^- recall@10 against champion \({queries} queries\): sees (a|no) drop ", out, re.M)
    assert "train:" not in out
    expected = millrace(*arguments, "--json").json["enough"]
    assert expected["rows"] == expected["rows_read"] == 80
    assert expected["held_queries"] + expected["training_pairs"] == 80
    assert sorted(runs.workspace.rglob("*")) == before


def test_dry_run_says_that_a_holdout_leaves_too_little(millrace: Command, runs: Runs) -> None:
    arguments = ["run", "--dry-run", "--span", "2026-04", "--workspace", str(runs.workspace), *SMALL]
    assert "little:" not in millrace(*arguments).out
    held = millrace(*arguments, "--set", "evaluate.holdout_share=0.9").out
    assert "evaluate.holdout_share 0.9 is" in held


def test_dry_run_prints_settings_that_load_again_and_the_plan(millrace: Command, runs: Runs, tmp_path: Path) -> None:
    before = sorted(runs.workspace.rglob("*"))
    arguments = ["run", "--dry-run", "--settings", "--span", "2026-04", "--workspace", str(runs.workspace)]
    result = millrace(*arguments, *SMALL, "--set", "train.epochs=1")
    assert result.code == 0
    assert "# window:  2026-03 v1, 2026-04 v1\n# before:  2026-01, 2026-02\n" in result.out
    parent = "lineages/main/step-00000020 (step 20), the last accepted one; trained again: 2026-03"
    assert f"# parent:  {parent}\n" in result.out
    (tmp_path / "again.yaml").write_text(result.out)
    again = millrace(*arguments, "--config", str(tmp_path / "again.yaml")).out
    once, twice = ([line for line in out.splitlines() if "GiB free" not in line] for out in (result.out, again))
    assert twice == once
    assert yaml.safe_load(result.out)["model"]["scratch"]["layers"] == 1
    assert sorted(runs.workspace.rglob("*")) == before
    wrong = "validate.expectations=[{expectation: expect_column_values_to_be_in_set, column: brand}]"
    assert "value_set: field required" in millrace(*arguments, *SMALL, "--set", wrong).err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "train.lerning_rate=1"], "did you mean 'train.learning_rate'?"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--settings"], "add --dry-run"),
        ([*SMALL, "--span", "2026-09"], "'2026-09'"),
        ([*SMALL, "--span", "2026-9"], "'2026-9'"),
        (["--set", "lineage=new", "--set", "model.pretrained=/nowhere"], "there is no folder /nowhere"),
    ],
)
def test_a_wrong_command_is_refused_before_a_server_is_asked(
    millrace: Command, runs: Runs, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    result = millrace("run", "--workspace", str(runs.workspace), *arguments)
    assert result.code == 78
    assert result.err.startswith("CONFIG: ")
    assert message in result.err


def test_a_server_that_does_not_answer_is_named(
    millrace: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ingest(DirectoryStore(tmp_path), "2026-01")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    result = millrace("run", "--workspace", str(tmp_path), *SMALL)
    assert result.code == 68
    assert result.err.startswith("SERVER: ")
    assert "PREFECT_API_URL is http://127.0.0.1:1/api" in result.err


def test_a_command_line_that_is_not_understood_ends_with_2(millrace: Command) -> None:
    assert millrace("ingest", "--source", "x").code == 2
    assert millrace("rolback").code == 2


# --- looking back -----------------------------------------------------------------------------------------------


@pytest.fixture
def copied(runs: Runs, tmp_path: Path) -> Path:
    """The workspace of the runs, free to be changed."""
    shutil.copytree(runs.workspace, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_status_shows_spans_and_sums(millrace: Command, runs: Runs) -> None:
    result = millrace("status", "--workspace", str(runs.workspace))
    assert result.code == 0
    spans = re.findall(r"^(2026-\d\d) +v1 +40 +(main)? *(\w+ as \d|\w+(?:: \w+)?)? *$", result.out, re.M)
    assert spans == [
        ("2026-01", "main", "Released as 1"),
        ("2026-02", "main", "Released as 2"),
        ("2026-03", "main", "Rejected"),
        ("2026-04", "", "Failed: DATA"),
    ]
    assert "2026-03, step 30" in result.out
    assert "3, span 2026-02" in result.out  # the champion with the items of the rejected span
    assert "95.8 % succeeded" in result.out  # 23 of 24 attempts
    assert re.search(r"^DATA +1 +9\.8$", result.out, re.M)


def test_the_workspace_may_come_from_the_environment(
    millrace: Command, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLRACE_WORKSPACE", str(runs.workspace))
    assert json.loads(millrace("status", "--json").out)["workspace"] == str(runs.workspace)


def test_rollback_moves_the_current_release(millrace: Command, copied: Path) -> None:
    workspace = ["--workspace", str(copied)]
    assert re.findall(r"^ *(\d) +current", millrace("releases", *workspace).out, re.M) == ["3"]
    now, before, *_ = millrace("rollback", *workspace).out.splitlines()
    assert "1, span 2026-01" in now
    assert "3, span 2026-02" in before, "a refresh of release 2, whose model it has"
    assert re.findall(r"^ *(\d) +current", millrace("releases", *workspace).out, re.M) == ["1"]
    assert json.loads(millrace("rollback", "--to", "2", "--json", *workspace).out)["before"]["number"] == 1
    unknown = millrace("rollback", "--to", "7", *workspace)
    assert (unknown.code, unknown.out) == (78, "")
    assert "there are 1, 2, 3" in unknown.err


def test_prune_lists_and_then_deletes_what_no_kept_release_needs(
    millrace: Command, copied: Path, golden: Golden
) -> None:
    workspace = ["--workspace", str(copied)]
    assert millrace("prune", "--keep", "1", "--dry-run", *workspace).out.startswith("0 folders, 0 bytes")
    millrace("rollback", "--to", "1", *workspace)
    listed = millrace("prune", "--keep", "1", "--dry-run", *workspace)
    assert listed.code == 0, listed.err
    golden(listed.out, hide=r"\d+ (bytes|folders?)|m-\w+")
    assert json.loads(millrace("prune", "--keep", "1", "--json", *workspace).out)["deleted"] is True
    assert re.findall(r"^ *(\d) +(pruned|current)", millrace("releases", *workspace).out, re.M) == [
        ("1", "current"),
        ("2", "pruned"),
    ]
    assert millrace("prune", *workspace).out.startswith("0 folders, 0 bytes")


def test_rollback_repairs_a_damaged_pointer(millrace: Command, copied: Path) -> None:
    (copied / "releases" / "CURRENT").write_text("{")
    assert millrace("releases", "--workspace", str(copied)).code == 74
    assert json.loads(millrace("rollback", "--to", "1", "--json", "--workspace", str(copied)).out)["before"] is None
    assert millrace("releases", "--workspace", str(copied)).code == 0


def test_report_is_of_the_last_run_or_of_a_spans(millrace: Command, runs: Runs) -> None:
    workspace = ["--workspace", str(runs.workspace)]
    last = millrace("report", *workspace)
    assert last.out.startswith("2026-04  ! Failed: DATA\n")
    assert re.search(r"^Health failed with DATA$", last.out, re.M)
    assert re.search(r"^health 1 +! DATA +row 3", last.out, re.M)
    rejected = millrace("report", "--span", "2026-03", *workspace)
    assert rejected.out.startswith("2026-03  ✕ Rejected\n")
    assert re.search(r"^recall@10 vs champion +✕ refused +0\.1000 +0\.4000", rejected.out, re.M)
    full = millrace("report", "--span", "2026-03", "--full", *workspace).out
    assert re.search(r"^recall@10 vs champion +✕ refused +critical +recall@10 0\.1000 is 0\.3000 below", full, re.M)
    key = json.loads(runs.released.out)["report"]["run_key"]
    assert json.loads(millrace("report", "--run", key[:8], "--json", *workspace).out)["report"]["span"] == "2026-02"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--span", "2026-09"], "holds no run over span 2026-09"),
        (["--run", "cafe"], "holds no run cafe; list the runs with: millrace history"),
        (["--run", "cafe", "--span", "2026-01"], "--span or --run, not both"),
    ],
)
def test_report_of_what_is_not_there(millrace: Command, runs: Runs, arguments: list[str], message: str) -> None:
    result = millrace("report", "--workspace", str(runs.workspace), *arguments)
    assert (result.code, result.out) == (78, "")
    assert message in result.err


@pytest.mark.parametrize("command", ["status", "releases", "rollback", "report"])
def test_a_mistyped_workspace_does_not_look_empty(millrace: Command, tmp_path: Path, command: str) -> None:
    result = millrace(command, "--workspace", str(tmp_path / "typo"))
    assert result.code == 78
    assert f"CONFIG: {tmp_path / 'typo'}" in result.err


def test_a_subfolder_of_a_folder_with_a_workspace_names_that_folder(
    millrace: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ingest(DirectoryStore(tmp_path / "workspace"), "2026-01")
    (tmp_path / "feeds").mkdir()
    monkeypatch.chdir(tmp_path / "feeds")
    for asked in (["run"], ["status"]):
        result = millrace(*asked)
        assert result.code == 78
        assert f"cd {tmp_path}" in result.err


def with_a_workspace() -> list[str]:
    return sorted(name for name, each in all_commands().items() if "workspace" in {param.name for param in each.params})


NEEDED = {
    "adopt": ["spans/2026-01/v1"],
    "ingest": [*INGEST, "--source", "none.jsonl"],
    "backfill": ["--from", "2026-01", "--to", "2026-02"],
    "backfill pause": ["b-1"],
    "backfill resume": ["b-1"],
    "backfill cancel": ["b-1"],
    "bakeoff": ["--span", "2026-01"],
    "parity": ["--span", "2026-01"],
    "import-checkpoint": ["weights.pt"],
    "search": ["a lamp"],
    "diff": ["1", "2"],
    "rollback": [],
    "hold": ["--off"],
    "deploy": [],
    "gate": ["--run", "cafe"],
    "skip": ["2026-01", "--reason", "none"],
    "look": ["none.jsonl"],
}


@pytest.mark.parametrize("name", with_a_workspace())
def test_a_workspace_inside_a_file_is_one_line_for_every_command(
    millrace: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    (tmp_path / "file").write_text("not a folder")
    result = millrace(*name.split(), "--workspace", str(tmp_path / "file" / "x"), *NEEDED.get(name, []))
    if name == "doctor":  # a table of all that it looks at
        assert result.code != 0
        assert "Traceback" not in result.err
        return
    assert result.code == 78, result.err
    assert result.err.splitlines()[-1].startswith(f"CONFIG: workspace '{tmp_path}/file/x'")


@pytest.mark.parametrize(
    ("error", "code", "last_line", "traceback"),
    [
        (ZeroDivisionError("division by zero"), 75, "CODE: ZeroDivisionError: division by zero (a bug, ours", True),
        (PermissionError(13, "Permission denied", "/w"), 74, "STORE: /w: this user may not read or write it", False),
        (OSError(28, "No space left on device"), 77, "DISK: [Errno 28] No space left on device: ", False),
    ],
)
def test_only_unexpected_errors_have_a_traceback(
    millrace: Command,
    runs: Runs,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
    last_line: str,
    traceback: bool,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(status, "read_runs", fail)
    result = millrace("status", "--workspace", str(runs.workspace))
    assert result.code == code
    assert result.err.splitlines()[-1].startswith(last_line)
    assert ("Traceback" in result.err) is traceback


# --- the server -------------------------------------------------------------------------------------------------


def test_up_finds_the_server_that_runs(millrace: Command, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", server.home)
    found = millrace("up").out
    assert server.ui_url in found
    assert f"process {server.pid}" in found
    assert f"cat {server.home}/server.password" in found


def test_down_without_a_server_is_no_failure(
    millrace: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    assert millrace("down").code == 0


# --- the documentation ------------------------------------------------------------------------------------------


def test_every_command_prints_the_documented_json(
    millrace: Command, runs: Runs, copied: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = run_command(server, copied, "parity", "--span", "2026-02", "--json")
    baked = run_command(server, copied, "bakeoff", "--span", "2026-02", "--json")
    weights = copied / "weights.pt"
    weights.write_bytes(b"weights")
    imported = run_command(server, copied, "import-checkpoint", str(weights), "--set", "lineage=theirs", "--json")
    monkeypatch.setenv("PREFECT_API_URL", server.url)
    rows = source(copied, {**REVIEW, "when": "2022-11-03"})
    workspace = ["--workspace", str(runs.workspace)]
    assert compared.json["state"] == "Agreed"
    assert len(baked.json["report"]["sides"]) == 2
    assert imported.json["lineage"] == "theirs"
    for arguments in (
        ("run", "--dry-run", "--span", "2026-04", "--json", *SMALL, *workspace),
        ("status", "--json", *workspace),
        ("releases", "--json", *workspace),
        ("report", "--span", "2026-03", "--json", *workspace),
        ("rollback", "--json", "--workspace", str(copied)),
        ("ingest", "--source", str(rows), "--workspace", str(copied / "new"), *INGEST, "--json"),
        ("up", "--json"),
    ):
        assert millrace(*arguments).json


def test_every_exit_code_and_command_is_documented(millrace: Command) -> None:
    table = {name: int(code) for code, name in re.findall(r"^\| (\d+) \| ([A-Z]+) \| ", DOCS, re.M)}
    assert table == {failure.value: policy.exit_code for failure, policy in POLICIES.items()}
    assert set(re.findall(r"^\| `millrace ([\w -]+)` \|", DOCS, re.M)) == set(all_commands())
    on_the_help_page = re.findall(r"^│ (\w[\w-]*) {2,}", millrace("--help").out, re.M)
    assert set(on_the_help_page) == {name.partition(" ")[0] for name in all_commands()}


def test_a_skipped_span_is_shown_with_its_reason(millrace: Command, copied: Path) -> None:
    arguments = ["--workspace", str(copied), *SMALL]
    made = millrace("skip", "2026-04", "--reason", "five rows", *arguments)
    assert (made.code, "2026-04 v1" in made.out.splitlines()[0]) == (0, True)
    status = millrace("status", "--workspace", str(copied))
    assert re.search(r"^2026-04 +v1 +40 +Failed: DATA, skipped", status.out, re.M)
    refused = millrace("skip", "2026-01", "--reason", "too late", *arguments)
    assert (refused.code, "2026-01 v1" in refused.err) == (78, True)


def test_a_run_over_an_older_version_is_not_taken_for_the_newest(millrace: Command, copied: Path) -> None:
    ingest(DirectoryStore(copied), "2026-02", version=2)
    status = millrace("status", "--workspace", str(copied))
    assert re.search(r"^2026-02 +v2 +40 +v1 Released as 2$", status.out, re.M)


def test_python_without_docstrings_is_refused_in_a_sentence() -> None:
    command = [sys.executable, "-c", "from flows.cli import main; main()", "--version"]
    for level, code, said in (("1", 0, ""), ("2", 78, "CONFIG: python -OO")):
        done = subprocess.run(command, env=os.environ | {"PYTHONOPTIMIZE": level}, capture_output=True, text=True)
        assert (done.returncode, done.stderr[:18]) == (code, said)
