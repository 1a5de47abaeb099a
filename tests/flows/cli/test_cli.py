"""The command as people and scripts use it: what it prints where, its exit codes, and the documented JSON.

The pipeline is run by the real command, in its own process, under a real server; only its workers are fakes.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from flows.cli import running, status
from flows.cli.app import all_commands
from infra.prefect_server import Server, client_environment
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import POLICIES
from tasks.foundation.process import code_version
from tests.support.fakes.fake_runner import ingest
from tests.support.processes import command, forked
from tests.support.processes.command import Command, CommandResult

ROOT = Path(__file__).resolve().parents[3]
DOCS = (ROOT / "docs" / "cli.md").read_text()
SMALL = ("--set", "model.scratch.layers=1")


def run_pipeline(server: Server, workspace: Path, *arguments: str, **environment: str) -> CommandResult:
    """`millrace run` in a process of its own, with fake workers."""
    return run_command(server, workspace, "run", *arguments, **environment)


def run_command(server: Server, workspace: Path, name: str, *arguments: str, **environment: str) -> CommandResult:
    words = (name, "--workspace", str(workspace), *SMALL, *arguments)
    environment = {**os.environ, **client_environment(server), **environment}
    done = forked.module("tests.support.fakes.millrace", *words, environment=environment, seconds=120)
    return command.as_documented(done, name, *arguments)


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


@pytest.fixture
def millrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process, for all that needs no pipeline."""
    monkeypatch.delenv("MILLRACE_WORKSPACE", raising=False)
    return functools.partial(command.call, capsys)


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
    assert "Task run 'train 2026-01' - fake train of 2026-01" in runs.verbose.err
    assert "train: 1 of 1" not in runs.verbose.err


def test_a_rejected_model_is_a_result(runs: Runs) -> None:
    assert runs.rejected.code == 0
    output = json.loads(runs.rejected.out)
    assert output["state"] == "Rejected"
    assert "recall@10 0.1000 is 0.3000 below" in output["sentence"]
    assert output["sentence"].endswith("the last accepted checkpoint; 2026-03 is trained again with it.")


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
    assert "evaluate.holdout_share 0.9 is held out" in held


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


# --- parity -----------------------------------------------------------------------------------------------------


def test_a_comparison_is_a_result_agreed_or_rejected(server: Server, tmp_path: Path) -> None:
    ingest(DirectoryStore(tmp_path), "2026-01")
    over = ("parity", "--span", "2026-01")
    agreed = run_command(server, tmp_path, *over, "--right", "cuda")
    assert agreed.code == 0
    assert re.search(r"^Agreed$", agreed.out, re.M)
    assert re.search(rf"^plot +{tmp_path}/parity/", agreed.out, re.M)
    rejected = run_command(server, tmp_path, *over, "--right", "xla", FAKE_RECALL="0.4")  # the left one is on record
    assert rejected.code == 0
    assert re.search(r"^recall@10 +10 +0\.5 +0\.4 +20 % *$", rejected.out, re.M)
    assert re.search(r"^Rejected$", rejected.out, re.M)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--span", "2026-01", "--right", "tpu"], "'tpu'"),
        (["--span", "2026-09"], "'2026-09'"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_a_server_is_asked(
    millrace: Command, runs: Runs, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    result = millrace("parity", "--workspace", str(runs.workspace), *SMALL, *arguments)
    assert (result.code, result.out) == (78, "")
    assert message in result.err


# --- bakeoff ----------------------------------------------------------------------------------------------------


def test_a_bake_off_whose_process_is_killed_goes_on(server: Server, tmp_path: Path) -> None:
    ingest(DirectoryStore(tmp_path), "2026-01")
    over = (
        "bakeoff",
        "--span",
        "2026-01",
        "--side",
        "cpu",
        "--side",
        "b:accelerator=cpu,compiler.optlevel=2",
        "--json",
    )
    killed = run_command(server, tmp_path, *over, FAKE_FAIL="train:SIGKILL")
    assert (killed.code, killed.out) == (-9, "")
    priced = ("--set", "cost.dollars_per_worker_hour=3600")
    done = run_command(server, tmp_path, *over, *priced)
    assert done.code == 0, done.err
    cpu, other = done.json["report"]["sides"]
    assert (cpu["name"], other["name"]) == ("cpu", "b")
    assert cpu["dollars"] == pytest.approx(cpu["billable_seconds"])
    assert Path(done.json["page"]).read_bytes().startswith(b"<!")


# --- ingest -----------------------------------------------------------------------------------------------------


def source(folder: Path, *records: dict[str, Any]) -> Path:
    path = folder / "reviews.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


REVIEW = {"when": "2022-11-03T10:00:00Z", "text": "keeps water hot", "title": "Kettle", "stars": 5}
INGEST = (
    "--time-column",
    "when",
    "--span",
    "quarter",
    "--map",
    "query=text,item=title,label=stars",
)


def test_ingest_cuts_a_source_into_spans(millrace: Command, tmp_path: Path) -> None:
    rows = source(tmp_path, REVIEW, {**REVIEW, "when": "2023-01-03", "text": "broke soon"})
    workspace = tmp_path / "workspace"
    result = millrace("ingest", "--source", str(rows), "--workspace", str(workspace), *INGEST, "--json")
    assert result.code == 0
    assert [span["name"] for span in json.loads(result.out)["spans"]] == ["2022-Q4", "2023-Q1"]
    again = millrace("ingest", "--source", str(rows), "--workspace", str(workspace), *INGEST)
    assert re.findall(r"^(\S+) +v1 +1 +as before", again.out, re.M) == ["2022-Q4", "2023-Q1"]


def test_a_span_that_is_there_with_other_rows_is_a_question_with_two_answers(millrace: Command, tmp_path: Path) -> None:
    ids = ("--map", "query=text,item=title,id=id")
    call = functools.partial(millrace, "ingest", "--workspace", str(tmp_path / "workspace"), *INGEST, *ids)
    first = source(tmp_path, *({**REVIEW, "id": number} for number in range(4)))
    assert call("--source", str(first)).code == 0
    part = source(tmp_path, {**REVIEW, "id": 2, "text": "leaks"}, {**REVIEW, "id": 9})
    asked = call("--source", str(part))
    assert (asked.code, asked.out) == (78, "")
    assert "2022-Q4: v1 has 4 rows, the source 2: 1 changed, 1 new, 3 of v1 missing" in asked.err
    assert re.findall(r"^  (--\w+)", asked.err, re.M) == ["--replace", "--merge"]
    assert call("--source", str(part), "--merge", "--replace").code == 78
    merged = call("--source", str(part), "--merge")
    assert re.search(r"^2022-Q4 +v2 +5 +new: 1 changed, 1 added, 0 gone *$", merged.out, re.M), merged.out
    replaced = call("--source", str(part), "--replace")
    assert re.search(r"^2022-Q4 +v3 +2 +new: 0 changed, 0 added, 3 gone *$", replaced.out, re.M), replaced.out


def test_what_is_said_about_a_source_reaches_its_reading(millrace: Command, tmp_path: Path) -> None:
    rows = source(tmp_path, REVIEW, {**REVIEW, "when": "2004-01-01"}, {**REVIEW, "when": "2024-01-01"})
    aside = tmp_path / "aside.jsonl"
    called = ["ingest", "--source", str(rows), "--workspace", str(tmp_path / "workspace"), *INGEST]
    days = ["--not-before", "2022-01-01", "--not-after", "2022-12-31"]
    assert "2004-01-01 is before 2022-01-01" in millrace(*called, *days).err
    result = millrace(*called, *days, "--set-aside", str(aside))
    assert (result.code, len(aside.read_text().splitlines())) == (0, 2)
    assert "note: rows that can't be used: 2, in " in result.out
    assert "write a day as 2026-11-20" in millrace(*called, "--not-before", "January").err
    assert "jsonl has none" in millrace(*called, "--delimiter", "tab").err


def test_ingest_reads_what_a_european_excel_exports(millrace: Command, tmp_path: Path) -> None:
    file = tmp_path / "log.csv"
    file.write_text(
        "sep=;\nwhen;text;title;stars;price\n20.11.2022;hot;Kettle;ja;43,49\n21.11.2022;cold;Kettle;nein;7\n"
    )
    called = ["ingest", "--source", str(file), "--workspace", str(tmp_path / "workspace"), *INGEST, "--decimal", ","]
    assert millrace(*called, "--dayfirst", "--true", "ja", "--false", "nein").code == 0
    (manifest,) = (tmp_path / "workspace").glob("spans/2022-Q4/v1/MANIFEST.json")
    facts = json.loads(manifest.read_text())["facts"]
    assert (facts["columns"]["price"], facts["labels"]) == ("double", 2)
    assert "--decimal ';'" in millrace(*called, "--decimal", ";").err


def test_ingest_shows_rows_columns_and_likely_mistakes(millrace: Command, tmp_path: Path) -> None:
    rows = [{**REVIEW, "text": f"hot {n}", "title": f"B{n:03}", "note": None if n else "x"} for n in range(9)]
    called = ["ingest", "--source", str(source(tmp_path, *rows)), "--workspace", str(tmp_path / "workspace"), *INGEST]
    result = millrace(*called)
    columns = "when (time, text), text (query, text), title (item, text), stars (label, number), note (text, 8 empty)"
    assert f"9 rows in 1 span, from 1 file\ncolumns: {columns}\ncheck: column 'title', mapped as item" in result.out
    source(tmp_path, REVIEW)
    assert "check: no likely mistake is seen" in millrace(*called, "--replace").out


def test_bad_input_names_file_and_column_and_leaves_nothing(millrace: Command, tmp_path: Path) -> None:
    rows = source(tmp_path, {**REVIEW, "when": "last week"})
    result = millrace("ingest", "--source", str(rows), "--workspace", str(tmp_path / "workspace"), *INGEST)
    assert result.code == 65
    assert result.err.splitlines()[-1].startswith(f"DATA: {rows}, row 1, column 'when'")
    assert not list((tmp_path / "workspace").rglob("*.parquet"))


def test_a_command_line_that_is_not_understood_ends_with_2(millrace: Command) -> None:
    assert millrace("ingest", "--source", "x").code == 2
    assert millrace("rolback").code == 2


# --- import-checkpoint ------------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A workspace with spans and no lineage, and a file of weights next to it."""
    ingest(DirectoryStore(tmp_path / "shop"), "2026-01", "2026-02")
    (tmp_path / "weights.pt").write_bytes(b"weights")
    return tmp_path / "shop"


def test_an_import_lists_the_tensors_and_names_the_next_command(server: Server, millrace: Command, shop: Path) -> None:
    arguments = ("import-checkpoint", str(shop.parent / "weights.pt"), "--span", "2026-02")
    result = run_command(server, shop, *arguments)
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert " 101 tensors " in lines[0]
    assert lines[0].endswith("/weights.pt: lineages/main/step-00000000")
    assert any(
        line.startswith("LEFT OUT") and line.endswith("embeddings.position_ids, qa_outputs.weight") for line in lines
    )
    assert any(line.startswith("new") and line.endswith("(1): projection.weight") for line in lines)
    assert lines[-1] == f"next: millrace run --span 2026-02 --workspace {shop} --set model.scratch.layers=1"
    assert run_command(server, shop, *arguments).out == result.out  # found there
    status = millrace("status", "--workspace", str(shop))
    assert "lineage main: imported weights, not trained on yet, step 0, lineages/main/step-00000000" in status.out

    done = run_pipeline(server, shop, *lines[-1].split()[3:5])
    assert "Released as 1: model m-" in done.out, done.err
    status = millrace("status", "--workspace", str(shop))
    assert "lineage main: trained up to 2026-02, step 20, " in status.out
    assert re.findall(r"^(2026-\d\d) +v1 +40 +main", status.out, re.M) == ["2026-01", "2026-02"]


def test_an_import_that_fails_can_be_repeated(server: Server, shop: Path) -> None:
    file = str(shop.parent / "weights.pt")
    refused = run_command(server, shop, "import-checkpoint", file, FAKE_FAIL="import-checkpoint:CONFIG")
    assert (refused.code, refused.out) == (78, "")
    assert refused.err.splitlines()[-1] == "CONFIG: row 3 is bad"
    assert run_command(server, shop, "import-checkpoint", file, "--json").code == 0


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
    assert "lineage main: trained up to 2026-03, step 30" in result.out
    assert "current release: 3, span 2026-02" in result.out  # the champion with the items of the rejected span
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
    assert now.startswith("current release: 1, span 2026-01, model m-")
    assert before.startswith("before: 3, span 2026-02, model m-"), "a refresh of release 2, whose model it has"
    assert re.findall(r"^ *(\d) +current", millrace("releases", *workspace).out, re.M) == ["1"]
    assert json.loads(millrace("rollback", "--to", "2", "--json", *workspace).out)["before"]["number"] == 1
    unknown = millrace("rollback", "--to", "7", *workspace)
    assert (unknown.code, unknown.out) == (78, "")
    assert "no release 7; there are 1, 2, 3" in unknown.err


def test_prune_lists_and_then_deletes_what_no_kept_release_needs(millrace: Command, copied: Path) -> None:
    workspace = ["--workspace", str(copied)]
    assert millrace("prune", "--keep", "1", "--dry-run", *workspace).out.startswith("0 folders, 0 bytes, would be")
    millrace("rollback", "--to", "1", *workspace)
    listed = millrace("prune", "--keep", "1", "--dry-run", *workspace)
    assert listed.code == 0, listed.err
    assert re.search(r"^vectors +vectors/m-\S+ +2 +\d+ bytes$", listed.out, re.M)
    assert re.search(r"^\d folders?, .* would be deleted: .*vectors .* bytes", listed.out, re.M)
    assert listed.out.splitlines()[-2:] == [
        "releases that could not serve any more: 2; their records stay",
        "releases that are kept: 1, 3",
    ]
    assert json.loads(millrace("prune", "--keep", "1", "--json", *workspace).out)["deleted"] is True
    assert re.findall(r"^ *(\d) +(pruned|current)", millrace("releases", *workspace).out, re.M) == [
        ("1", "current"),
        ("2", "pruned"),
    ]
    assert millrace("prune", *workspace).out.startswith("0 folders, 0 bytes, deleted")


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
    assert re.search(r"^health 1 +! DATA +row 3 is bad", last.out, re.M)
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
    assert f"CONFIG: {tmp_path / 'typo'} holds no span" in result.err


def test_a_subfolder_of_a_folder_with_a_workspace_names_that_folder(
    millrace: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ingest(DirectoryStore(tmp_path / "workspace"), "2026-01")
    (tmp_path / "feeds").mkdir()
    monkeypatch.chdir(tmp_path / "feeds")
    for asked in (["run"], ["status"]):
        result = millrace(*asked)
        assert result.code == 78
        assert f"{tmp_path} has a workspace: cd {tmp_path}" in result.err


def with_a_workspace() -> list[str]:
    return sorted(name for name, each in all_commands().items() if "workspace" in {param.name for param in each.params})


NEEDED = {
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
    assert result.err.splitlines()[-1].startswith(f"CONFIG: workspace '{tmp_path}/file/x': {tmp_path}/file is a file")


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
    assert f"Its pages ask for a password: cat {server.home}/server.password" in found


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
    assert (made.code, made.out.splitlines()[0]) == (0, "2026-04 v1 is skipped: five rows")
    status = millrace("status", "--workspace", str(copied))
    assert re.search(r"^2026-04 +v1 +40 +Failed: DATA, skipped in main: five rows$", status.out, re.M)
    refused = millrace("skip", "2026-01", "--reason", "too late", *arguments)
    assert (refused.code, refused.err) == (
        78,
        "CONFIG: lineage main has trained 2026-01 v1, and what is in the weights can't be left out\n",
    )


def test_a_run_over_an_older_version_is_not_taken_for_the_newest(millrace: Command, copied: Path) -> None:
    ingest(DirectoryStore(copied), "2026-02", version=2)
    status = millrace("status", "--workspace", str(copied))
    assert re.search(r"^2026-02 +v2 +40 +v1 Released as 2$", status.out, re.M)


def test_python_without_docstrings_is_refused_in_a_sentence() -> None:
    command = [sys.executable, "-c", "from flows.cli import main; main()", "--version"]
    for level, code, said in (("1", 0, ""), ("2", 78, "CONFIG: python -OO")):
        done = subprocess.run(command, env=os.environ | {"PYTHONOPTIMIZE": level}, capture_output=True, text=True)
        assert (done.returncode, done.stderr[:18]) == (code, said)
