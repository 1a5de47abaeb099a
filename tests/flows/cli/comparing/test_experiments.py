"""`millrace try` and `millrace compare` as people and scripts use them; killed, asked again, and with wrong names.

The commands run in their own processes, under a real server; only their workers are fakes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

import flows.cli.experiments
from flows.cli.terminal.options import RunOptions
from infra.prefect_server import Server, client_environment
from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from tasks.runs import ledger
from tests.support.fakes.fake_runner import ingest
from tests.support.processes import forked
from tests.support.processes.command import CommandResult, as_documented
from tests.support.workspace.backfills import fake_workers, run_spans

SPANS = ["2026-01", "2026-02"]
TRY = ("try", "--set", "train.learning_rate=1e-5", "--name", "slower")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    """Two released months."""
    store = DirectoryStore(tmp_path)
    ingest(store, *SPANS)
    with monkeypatch.context() as patch:
        fake_workers(store, patch)
        run_spans(store, *SPANS)
    return store


def millrace(server: Server | None, store: DirectoryStore, *arguments: str, **environment: str) -> CommandResult:
    url = client_environment(server) if server else {"PREFECT_API_URL": "http://127.0.0.1:1/api"}
    words = (*arguments, "--workspace", str(store.root))
    environment = {**os.environ, **url, **environment}
    done = forked.module("tests.support.fakes.millrace", *words, environment=environment, seconds=240)
    return as_documented(done, *arguments)


def attempts(store: DirectoryStore, run_key: str) -> Counter[str]:
    return Counter(record.stage.value for record in ledger.records(store) if record.run_key == run_key)


def test_a_killed_experiment_goes_on_and_is_listed(server: Server, store: DirectoryStore) -> None:
    before = store.read("releases/CURRENT")
    assert millrace(server, store, *TRY, FAKE_FAIL="train:SIGKILL").code == -9
    tried = millrace(server, store, *TRY, "--json")
    assert tried.code == 0, tried.err
    run_key = tried.json["experiment"]["run_key"]
    assert attempts(store, run_key) == {"health": 1, "warmup": 1, "train": 2, "evaluate": 1}
    assert store.read("releases/CURRENT") == before

    said = millrace(None, store, *TRY)  # all is done, so no server is asked for
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert f"run {run_key} over 2026-02" in lines[0]
    assert lines[2].split() == ["train.learning_rate", "5e-05", "1e-05"]
    assert "Nothing was released" in said.out
    own = tried.json["experiment"]["beside"]
    assert f"millrace compare {own} slower" in said.out

    (listed,) = millrace(None, store, "compare", "--json").json["experiments"]
    assert (listed["experiment"]["name"], listed["state"]) == ("slower", "Unfinished")
    assert listed["target"]["seconds"] > 0
    status = millrace(None, store, "status", "--json").json
    assert [each["name"] for each in status["experiments"]] == ["slower"]
    assert [line["name"] for line in status["lineages"]] == ["main"]
    assert run_key not in {run["run_key"] for span in status["spans"] for run in span["runs"]}

    compared = millrace(None, store, "compare", "2", "slower", "2026-01", run_key[:6], "--json")
    assert compared.code == 0, compared.err
    keys = [run["run_key"] for run in compared.json["runs"]]
    assert keys[1] == keys[3] == run_key
    for words, message in (
        (("2026-02", "nope"), "no run key 'nope'; the experiments: slower"),
        (("slower",), "name two to 8 runs"),
    ):
        wrong = millrace(None, store, "compare", *words)
        assert wrong.code == 78
        assert message in wrong.err


def test_a_second_process_is_refused_by_the_name(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*_: object) -> None:
        raise Conflict("lineages/main-backfill-1234.run is in use by process 7 on here; wait for it or stop it")

    monkeypatch.setattr(flows.cli.experiments, "run_flow", held)
    options = RunOptions(store, None, ("train.learning_rate=1e-5",))
    with pytest.raises(Conflict, match=r"another process: .*"):
        flows.cli.experiments.try_(options)
    assert json.loads(store.read("experiments/2026-02,learning_rate=1e-5.json"))["span"]["name"] == "2026-02"
