"""What a node leaves of its use, after an attempt that failed too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.contracts.jobs import TrainInputs
from tasks.contracts.usage import DeviceUse
from tasks.foundation.errors import HostError
from tasks.worker.devices import efa
from tasks.worker.devices.neuron_monitor import GIB, Reading
from tasks.worker.process.job import Job
from tasks.worker.training import telemetry
from tests.support.workspace.jobs import make_job, tiny_config


@contextlib.contextmanager
def two_readings() -> Iterator[list[Reading]]:
    yield [Reading(40.0, GIB), Reading(60.0, 3 * GIB)]


@pytest.fixture
def job(store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job on a machine with NeuronCores and one EFA interface."""
    monkeypatch.setattr(telemetry, "uses_neuron", lambda config: True)
    monkeypatch.setattr(telemetry, "run_monitor", two_readings)
    monkeypatch.setattr(efa, "ROOT", tmp_path / "infiniband")
    count(tx_bytes=0, rx_drops=0)
    return make_job(store, tiny_config(), TrainInputs(rows=(), history=(), parent=None))


def count(**counters: int) -> None:
    folder = efa.ROOT / "rdmap0s1" / "ports" / "1" / "hw_counters"
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in counters.items():
        (folder / name).write_text(str(value))


def test_rank_0_collects_what_each_node_moved(job) -> None:
    with telemetry.measure_device_use(job):
        count(tx_bytes=2 * GIB)
    found = telemetry.collect_device_use(job)
    assert found is not None
    (node,) = found
    assert node.efa is not None
    assert (node.utilization_median, node.efa.sent_gib, node.efa.faults) == (50.0, 2.0, {})


def train_until_it_breaks(job: Job) -> None:
    with telemetry.measure_device_use(job):
        count(tx_bytes=GIB, rx_drops=3)
        raise HostError("a device fell off")


def test_an_attempt_that_fails_leaves_its_numbers(job, capsys) -> None:
    with pytest.raises(HostError, match="a device fell off"):
        train_until_it_breaks(job)
    left = DeviceUse.model_validate_json(job.store.read(f"{job.spec.attempt_prefix}/device-use/0.json"))
    assert left.efa is not None
    assert (left.readings, left.efa.sent_gib, left.efa.faults) == (2, 1.0, {"rx_drops": 3})
    assert "EFA counted 3 rx_drops" in capsys.readouterr().err
