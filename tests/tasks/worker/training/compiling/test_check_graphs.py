"""The graphs of the health checks: compiled by the first run, in the folder of each later one before it begins."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import HealthInputs
from tasks.foundation.errors import StoreError
from tasks.worker import health
from tasks.worker.devices.base import Accelerator, GraphWatch
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.devices.precompile import list_graphs
from tasks.worker.process.job import Job, Rank
from tasks.worker.training.compile_cache import provide_check_graphs
from tests.support.workspace.jobs import make_job, tiny_config

NAMES = ("MODULE_1+a", "MODULE_2+a")


class Compiling(CpuAccelerator):
    """A device that compiles into a folder of its machine what is not there yet."""

    reads_graphs = True
    compiler = "neuronx-cc 2"

    def __init__(self, rank: Rank, folder: Path) -> None:
        super().__init__(rank)
        folder.mkdir(exist_ok=True)
        self.graph_folder = folder
        self.calls, self.compiled = 0, list[str]()
        self.graphs = GraphWatch(lambda: (self.calls, 0.5 * self.calls), lambda: list_graphs(folder))
        self.graphs.start()

    def compute(self, *names: str) -> None:
        assert self.graph_folder is not None
        assert self.graphs is not None
        for name in names:
            self.calls += 1
            if name not in list_graphs(self.graph_folder):
                module = self.graph_folder / "neuronxcc-2" / name
                module.mkdir(parents=True)
                (module / "model.neff").write_bytes(name.encode())
                (module / "model.done").touch()
                self.compiled.append(name)
            self.graphs.poll()


def check(store: Store, folder: Path, index: int = 0, *overrides: str) -> list[str]:
    """Run checks of two graphs as one of two workers; what had to be compiled."""
    accelerator = Compiling(Rank(index, 2, index, local_world=2), folder)
    with provide_check_graphs(job_of(store, accelerator, *overrides), accelerator):
        accelerator.compute(*NAMES)
    return accelerator.compiled


def job_of(store: Store, accelerator: Accelerator, *overrides: str) -> Job:
    assert isinstance(store, DirectoryStore)
    return make_job(store, tiny_config(*overrides), HealthInputs(), rank=accelerator.rank)


def test_only_the_first_run_compiles(store: DirectoryStore, tmp_path: Path) -> None:
    assert check(store, tmp_path / "first") == [*NAMES]
    published = store.list("compile")
    assert check(store, tmp_path / "second") == []
    assert check(store, tmp_path / "second", 1) == [], "the other worker of the machine finds them in its folder"
    assert store.list("compile") == published


def test_the_stage_keeps_the_graphs_of_its_checks(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Compiling(Rank(0, 1, 0), tmp_path / "first")
    monkeypatch.setattr(health, "open_accelerator", lambda *_: nullcontext(device))
    monkeypatch.setattr(health, "time_product", lambda *_: device.compute(*NAMES) or 1.0)
    health.run(make_job(store, tiny_config(), HealthInputs()))
    assert len([key for key in store.list("compile") if key.endswith("model.neff")]) == len(NAMES)


def test_checks_of_another_size_have_graphs_of_their_own(store: DirectoryStore, tmp_path: Path) -> None:
    check(store, tmp_path / "first")
    assert check(store, tmp_path / "second", 0, "health.matmul_size=64") == [*NAMES]
    assert check(store, tmp_path / "third", 0, "health.all_reduce_mib=3") == [*NAMES]


def test_only_the_first_worker_publishes(store: DirectoryStore, tmp_path: Path) -> None:
    check(store, tmp_path / "first", 1)
    assert store.list("compile") == []


def test_a_workspace_that_refuses_them_is_a_warning(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("AccessDenied on compile/")

    monkeypatch.setattr(DirectoryStore, "upload", refuse)
    assert check(store, tmp_path / "first") == [*NAMES]
    assert "AccessDenied on compile/" in capsys.readouterr().out
