"""The variables of torch-xla on the CPU and on NeuronCores, and the folder of the graphs."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.foundation.errors import ConfigError
from tasks.worker.devices import xla_environment
from tasks.worker.devices.xla_environment import check_place, folder_of_machine, own_folder, prepare_environment
from tasks.worker.process.job import Rank
from tests.support.workspace.jobs import tiny_config

ALONE = Rank(0, 1, 0)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Reset the variables and the fake package, because other tests run in this process."""
    before = dict(os.environ)
    for name in ("PJRT_DEVICE", "XLA_FLAGS", "XLA_PERSISTENT_CACHE_PATH", "XLA_PERSISTENT_CACHE_READ_ONLY"):
        os.environ.pop(name, None)
    yield
    os.environ.clear()
    os.environ.update(before)
    sys.modules.pop("torch_neuronx", None)


def test_without_neuron_the_device_is_the_cpu_and_all_variables_are_reported():
    found = prepare_environment(tiny_config("compiler.optlevel=2"), "fp32", ALONE)
    assert not found.neuron
    assert found.variables["PJRT_DEVICE"] == "CPU"
    assert found.variables["XLA_FLAGS"] == found.flags == "--xla_backend_optimization_level=2"
    assert {name: os.environ[name] for name in found.variables} == found.variables
    assert found.compiler.startswith("torch-xla 2.9")


def test_each_process_has_its_own_cache():
    first, second = (prepare_environment(None, "fp32", ALONE).cache for _ in range(2))
    assert first != second
    assert first.is_dir()


def test_the_users_flags_are_kept_except_the_level(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_enable_fast_math=false")
    found = prepare_environment(tiny_config("compiler.optlevel=3"), "fp32", ALONE)
    assert found.flags == "--xla_cpu_enable_fast_math=false --xla_backend_optimization_level=3"


def test_the_level_null_sets_no_flag():
    assert "XLA_FLAGS" not in prepare_environment(tiny_config("compiler.optlevel=null"), "fp32", ALONE).variables


def test_without_torch_xla_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(xla_environment.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"-e '\.\[worker,xla\]'"):
        prepare_environment(None, "fp32", ALONE)


@pytest.mark.shows("place of a worker")
@pytest.mark.parametrize(("world", "ordinal"), [(1, 0), (64, 0), (32, 33)])
def test_a_runtime_that_sees_other_workers_is_refused(world: int, ordinal: int):
    """With a world of one, nothing would be summed, and each worker would train a model of its own."""
    rank = Rank(33, 64, 1, 32)
    check_place(rank, 64, 33)
    with pytest.raises(ConfigError, match=rf" {ordinal} of {world}, .*33 of 64"):
        check_place(rank, world, ordinal)


@pytest.fixture
def neuronx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty package for NeuronCores, and no variables of another run."""
    (tmp_path / "torch_neuronx.py").write_text("")
    for name in ("torch_neuronx", "neuronx_cc"):
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("NEURON_CC_FLAGS", "NEURON_RT_STOCHASTIC_ROUNDING_EN", "NEURON_RT_EXEC_TIMEOUT"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", "")


@pytest.mark.usefixtures("neuronx")
def test_the_workers_of_a_machine_share_the_cache_of_neurons_compiler():
    """Graphs that the first of them fetches or compiles are there for the others."""
    first, second = (prepare_environment(tiny_config(), "fp32", Rank(index, 4, index - 2, 2)) for index in (2, 3))
    assert first.cache == second.cache
    assert os.environ["NEURON_COMPILE_CACHE_URL"] == str(first.cache)


@pytest.mark.usefixtures("neuronx")
def test_a_collecting_run_uses_the_outer_runs_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEURON_EXTRACT_GRAPHS_ONLY", "1")
    monkeypatch.setenv("NEURON_COMPILE_CACHE_URL", str(tmp_path / "cache"))
    found = prepare_environment(tiny_config(), "fp32", ALONE)
    assert found.neuron
    assert found.cache == tmp_path / "cache"
    assert xla_environment.is_collecting()


def test_the_workers_of_a_machine_share_one_folder_and_a_single_worker_has_its_own():
    first, last = (folder_of_machine(Rank(index, 64, index - 32, 32)) for index in (32, 63))
    assert first == last
    alone = folder_of_machine(Rank(0, 1, 0))
    assert alone != first
    alone.rmdir()


def test_a_process_of_its_own_gets_an_empty_folder():
    first, second = own_folder(), own_folder()
    assert first != second
    for folder in (first, second):
        folder.rmdir()  # which refuses one that is not empty
