"""`millrace parity` and `bakeoff` as people and scripts use them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from infra.prefect_server import Server
from infra.store.directory import DirectoryStore
from tests.support.fakes.commands import SMALL, run_command
from tests.support.fakes.fake_runner import ingest
from tests.support.processes.command import Command


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
    millrace: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    ingest(DirectoryStore(tmp_path), "2026-01")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    result = millrace("parity", "--workspace", str(tmp_path), *SMALL, *arguments)
    assert (result.code, result.out) == (78, "")
    assert message in result.err


def test_a_bake_off_whose_process_is_killed_goes_on_and_is_compared(
    server: Server, millrace: Command, tmp_path: Path
) -> None:
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
    keys = [side["trainings"][0]["run_key"] for side in (cpu, other)]
    assert done.json["compare"].startswith(f"millrace compare {' '.join(keys)} --workspace ")
    compared = millrace("compare", *keys, "--workspace", str(tmp_path), "--json")
    assert compared.code == 0, compared.err
    assert [each["key"] for each in compared.json["settings"]] == ["compiler.optlevel"]
    assert all(run["target"]["seconds"] for run in compared.json["runs"])
