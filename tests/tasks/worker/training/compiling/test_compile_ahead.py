"""Warmup through the worker's command; on NeuronCores with fakes.

The fake `torch_neuronx` keeps the CPU as XLA's device; the fake `neuron_parallel_compile` runs the given command and
writes the documented report and cache. The rest is real.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from infra.store import lease
from infra.store.directory import DirectoryStore
from infra.store.manifest import read_manifest
from tasks.contracts.jobs import TrainInputs, WarmupInputs
from tasks.contracts.outcomes import StageResult, WarmupOutcome, WorkerFailure
from tasks.contracts.references import RowsRef
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.worker import warmup
from tasks.worker.process.job import Rank
from tasks.worker.training import compile_ahead
from tests.support.fakes.neuron.neuron_tools import COMPILER, FakeTools
from tests.support.processes.ranks import run_ranks
from tests.support.processes.xla import warm_up
from tests.support.workspace.jobs import make_job, make_workspace, tiny_config

ROOT = Path(__file__).resolve().parents[5]
FAST = (
    "accelerator=xla",
    "warmup.steps=1",
)


class Machine(NamedTuple):
    """A machine whose NeuronCores are fakes."""

    store: DirectoryStore
    rows: RowsRef
    environment: dict[str, str]
    log: Path

    def run(self, attempt: int, **variables: str) -> subprocess.CompletedProcess[str]:
        """One attempt of warmup."""
        inputs = WarmupInputs(rows=(self.rows,), parent=None)
        spec = make_job(self.store, tiny_config(*FAST), inputs, attempt=attempt).spec
        return self.enter("warmup", spec, variables)

    def enter(self, stage: str, spec: Any, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        key = f"{spec.attempt_prefix}/spec.json"
        self.store.write(key, spec.to_json())
        return subprocess.run(
            [sys.executable, "-m", "tasks.worker", stage, "--spec", f"{self.store.uri}#{key}"],
            env=self.environment | variables,
            capture_output=True,
            text=True,
            timeout=600,
        )

    @property
    def result(self) -> StageResult:
        return StageResult.model_validate_json(self.store.read("runs/run/warmup/result.json"))

    @property
    def outcome(self) -> WarmupOutcome:
        outcome = self.result.outcome
        assert isinstance(outcome, WarmupOutcome)
        return outcome

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The tool's calls with their environment."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def artifact(self, key: str) -> dict[str, Any]:
        return read_manifest(self.store, f"compile/{key}").facts


def make_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    FakeTools(folder / "bin", monkeypatch).add_parallel_compile()
    modules = folder / "modules"
    modules.mkdir()
    (modules / "torch_neuronx.py").write_text("import os\nos.environ['PJRT_DEVICE'] = 'CPU'\n")
    for name, version in (("torch_neuronx", "2.9.0.2.14"), ("neuronx_cc", "2.25.3371.0")):
        about = modules / f"{name}-{version}.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    store, rows = make_workspace(folder)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{modules}", "FAKE_LOG": str(folder / "log")}
    environment.pop("PJRT_DEVICE", None)
    return Machine(store, rows, environment, folder / "log")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return make_machine(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """After one warmup; tests must not change it."""
    with pytest.MonkeyPatch.context() as patch:
        machine = make_machine(tmp_path_factory.mktemp("neuron"), patch)
        done = machine.run(1)
        assert done.returncode == 0, done.stderr
        yield machine


def test_compiled_graphs_are_kept_in_the_workspace(warm: Machine):
    compiled = warm.outcome.compiled
    assert compiled is not None
    facts = warm.artifact(compiled.key)
    assert facts["complete"]
    assert list(facts["graphs"]) == ["MODULE_00000+d41d8cd9", "MODULE_00001+d41d8cd9"]
    assert compiled.seconds == 2.5
    assert f"compile/{compiled.key}/{COMPILER}/MODULE_00000+d41d8cd9/model.neff" in warm.store.list("compile")
    assert "neuronx-cc 2.25.3371.0" in facts["made_of"]["compiler"]
    assert "--target=trn1" in warm.outcome.environment["NEURON_CC_FLAGS"]


def test_the_collecting_trial_leaves_no_files(warm: Machine):
    call = warm.calls[0]
    assert call["command"][-4:-1] == ["tasks.worker", "warmup", "--spec"]
    assert Path(call["own"]["parallel_compile_workdir"]).is_absolute()
    assert not warm.store.list("lineages")
    assert not [key for key in warm.store.list("runs/run") if "error" in key or "checkpoint" in key]


@pytest.mark.proof
def test_the_next_warmup_compiles_nothing_and_training_reads_the_graphs(warm: Machine):
    compiled = warm.outcome.compiled
    second = warm.run(2)
    assert second.returncode == 0, second.stderr
    assert len(warm.calls) == 1, "the tool was not called again"
    assert "nothing to compile" in second.stdout
    assert warm.outcome.compiled == compiled
    graphs = warm.outcome.graphs
    assert graphs is not None
    assert graphs.readable
    assert (graphs.misses, graphs.new) == (0, ())
    inputs = TrainInputs(rows=(warm.rows,), history=(), parent=None, compiled=compiled)
    trained = warm.enter("train", make_job(warm.store, tiny_config(*FAST), inputs).spec, {})
    assert trained.returncode == 0, trained.stderr
    assert " 0 new; " in trained.stdout


@pytest.mark.proof
def test_a_failed_graph_ends_warmup_and_the_other_graphs_are_kept(machine: Machine):
    failed = machine.run(1, FAKE_FAIL="1")
    assert failed.returncode == POLICIES[FailureClass.COMPILE].exit_code
    error = WorkerFailure.model_validate_json(machine.store.read("runs/run/warmup/attempt-1/error-rank0.json"))
    assert error.failure == "COMPILE"
    assert "MODULE_00000+d41d8cd9 does not fit" in error.message
    assert not machine.store.exists("runs/run/warmup/result.json")
    assert not machine.store.list("lineages")
    [manifest] = [key for key in machine.store.list("compile") if key.endswith("/MANIFEST.json")]
    facts = read_manifest(machine.store, manifest.removesuffix("/MANIFEST.json")).facts
    assert (list(facts["graphs"]), facts["complete"]) == (["MODULE_00001+d41d8cd9"], False)


@pytest.mark.proof
def test_one_worker_builds_and_the_other_waits_for_it(tmp_path: Path):
    """Of two runs with the same graphs, the second waits until the first has published."""
    store, rows = make_workspace(tmp_path)
    [first] = run_ranks(1, warm_up, store.root, rows)
    key, waits = first.compiled.key, tmp_path / "waits"
    manifest = store.read(f"compile/{key}/MANIFEST.json")
    store.delete(f"compile/{key}/MANIFEST.json")
    outcomes: list[WarmupOutcome] = []
    with lease.hold(store, f"compile/{key}.lease"):
        second = threading.Thread(
            target=lambda: outcomes.extend(run_ranks(1, warm_up_and_note, store.root, rows, waits))
        )
        second.start()
        while not waits.exists():
            assert second.is_alive(), "it builds although another does"
            time.sleep(0.05)
        store.write(f"compile/{key}/MANIFEST.json", manifest)
    second.join()
    assert outcomes[0].compiled == first.compiled
    assert outcomes[0].graphs is not None
    assert outcomes[0].graphs.misses == 0


def warm_up_and_note(rank: Rank, workspace: Path, rows: RowsRef, waits: Path) -> WarmupOutcome:
    """Warm up, and create the file `waits` when it waits for another builder."""
    say = compile_ahead._say

    def note(line: str) -> None:
        say(line)
        if line.endswith("; waiting"):
            waits.touch()

    compile_ahead._say = note
    return warm_up(rank, workspace, rows)


@pytest.mark.proof
def test_a_failed_trial_keeps_its_graphs(tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    with pytest.raises(AssertionError, match="the trial fails here"):
        run_ranks(1, warm_up_and_fail, store.root, rows)
    [manifest] = [key for key in store.list("compile") if key.endswith("MANIFEST.json")]
    facts = read_manifest(store, manifest.removesuffix("/MANIFEST.json")).facts
    assert not facts["complete"]
    assert any(graph["where"].startswith("training step, ") for graph in facts["graphs"].values())
    again = run_ranks(1, warm_up, store.root, rows)[0]
    assert again.graphs.hits == len(facts["graphs"])
    assert read_manifest(store, again.compiled.prefix).facts["complete"]


def warm_up_and_fail(rank: Rank, workspace: Path, rows: RowsRef) -> WarmupOutcome:
    def failing(*_: object) -> None:
        raise RuntimeError("the trial fails here")

    warmup.judge = failing
    return warm_up(rank, workspace, rows)
