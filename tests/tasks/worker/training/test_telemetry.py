"""Steps and their communication, timed and estimated; what a node leaves of its use, after a failure too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import HealthOutcome, Phases, StageResult
from tasks.contracts.references import RowsRef
from tasks.contracts.stages import Stage
from tasks.contracts.usage import DeviceUse
from tasks.contracts.workspace import RESULT
from tasks.foundation.errors import HostError
from tasks.preflight.encoder_size import gathered_bytes
from tasks.worker.devices import neuron_node
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.devices.base import Accelerator
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.devices.neuron_monitor import GIB, Reading
from tasks.worker.process.job import Job, Rank
from tasks.worker.training import telemetry
from tasks.worker.training.batches import Batches, choose_shape, make_plan
from tasks.worker.training.loop import TrainStep
from tasks.worker.training.optimizer import make_optimizer
from tasks.worker.training.start import build_parts
from tasks.worker.training.telemetry import StepClock, gradient_bytes
from tasks.worker.training.training_rows import make_pairs
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import all_rows, make_job, make_workspace, tiny_config


class Clock:
    """In place of the module's `time`; it moves when a test moves it."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class OwnGraphs(CpuAccelerator):
    """A device whose collectives are inside its graphs."""

    @property
    def communicated_seconds(self) -> None:  # type: ignore[override]
        return None

    @communicated_seconds.setter
    def communicated_seconds(self, value: float) -> None:
        """It stays unknown."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(telemetry, "time", clock)
    return clock


def place(world: int = 2, index: int = 0) -> Rank:
    return Rank(index, world, index, local_world=world)


def two_steps(accelerator: Accelerator, clock: Clock, communicated: float = 0.0) -> StepClock:
    """Two steps of a second each, with an evaluation of a minute after each, half of it communication."""
    made = StepClock(accelerator)
    for _ in range(2):
        clock.now += 1.0
        _communicate(accelerator, communicated)
        made.count_step(10)
        made.pause()
        clock.now += 60.0
        _communicate(accelerator, 30.0)
        made.resume()
    return made


def _communicate(accelerator: Accelerator, seconds: float) -> None:
    accelerator.communicated_seconds = (accelerator.communicated_seconds or 0.0) + seconds


def test_evaluations_count_neither_as_steps_nor_as_communication(store, clock, golden) -> None:
    made = two_steps(CpuAccelerator(place()), clock, communicated=0.5)
    assert made.pairs_per_second == 10.0
    found = made.communication(store, "run", nn.Linear(2, 2), 0)
    assert found is not None
    assert (found.seconds, found.step_seconds, found.measured) == (0.5, 1.0, True)
    golden(found.warning)


def test_a_quarter_is_no_warning(store, clock) -> None:
    found = two_steps(CpuAccelerator(place()), clock, communicated=0.25).communication(store, "run", nn.Linear(2, 2), 0)
    assert found is not None
    assert found.warning == ""


@pytest.mark.parametrize("rank", [place(world=1), place(index=1)])
def test_one_worker_communicates_nothing_and_rank_0_answers_for_all(store, clock, rank) -> None:
    assert two_steps(CpuAccelerator(rank), clock).communication(store, "run", nn.Linear(2, 2), 0) is None


def test_inside_graphs_it_is_estimated_from_what_health_measured(store, clock) -> None:
    made = two_steps(OwnGraphs(place()), clock)
    model = nn.Linear(1000, 100, bias=False)
    model.weight.grad = torch.zeros(100, 1000)  # 400,000 bytes
    model.register_parameter("unused", nn.Parameter(torch.zeros(7)))
    assert made.communication(store, "run", model, 50_000) is None, "nothing was measured yet"
    measured = HealthOutcome(
        device="none",
        matmul_gflops=(1.0,),
        slowest_to_median=1.0,
        free_memory_gib=(1.0,),
        free_disk_gib=1.0,
        collectives={"all_reduce_gb_s": 0.001, "all_gather_gb_s": 0.002, "reduce_scatter_gb_s": 0.0005},
        checks=(),
    )
    result = StageResult(run_key="run", attempt=1, config_sha256="0" * 64, phases=Phases(), outcome=measured)
    store.write(RESULT.key(run="run", stage=Stage.health), result.to_json())
    found = made.communication(store, "run", model, 50_000)
    assert found is not None
    assert (found.seconds, found.measured) == (0.4 + 0.025 + 0.1, False)


def test_a_processor_times_its_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: None)
    monkeypatch.setattr(torch.distributed, "all_gather", lambda parts, rows: None)
    accelerator = CpuAccelerator(place())
    ticks = iter([1.0, 1.5, 4.0, 4.25])
    monkeypatch.setattr("tasks.worker.devices.cpu.time.perf_counter", lambda: next(ticks))
    accelerator.sum(torch.zeros(1))
    accelerator.gather(torch.zeros(1, 1))
    assert accelerator.communicated_seconds == 0.75


HEAD = "heads.contrastive."


def moved(rank: Rank, root: Path, rows: RowsRef, overrides: list[str]) -> dict[str, int]:
    """The bytes of one step's collectives, and what was to be expected of it."""
    config = tiny_config("train.workers=2", *overrides)
    table = all_rows(DirectoryStore(root), [rows], config)
    found = {"gathered": 0, "summed": 0}
    gather, reduce = dist.all_gather, dist.all_reduce

    def gathering(parts: list[torch.Tensor], mine: torch.Tensor, **more: Any) -> Any:
        found["gathered"] += sum(part.nbytes for part in parts)
        return gather(parts, mine, **more)

    def reducing(tensor: torch.Tensor, **more: Any) -> Any:
        found["summed"] += tensor.nbytes
        return reduce(tensor, **more)

    with open_accelerator("cpu", rank, config, "fp32") as accelerator, pytest.MonkeyPatch.context() as patched:
        parts = build_parts(config, [table])
        accelerator.to_device(parts.model)
        step = TrainStep(
            parts.model, make_optimizer(parts.model, config.train, accelerator), accelerator, config, "fp32"
        )
        pairs = make_pairs([table], parts, config)
        shape = choose_shape(config, 0, pairs, rank.world, mined=True)
        batch = next(iter(Batches(pairs, make_plan(config, 0, pairs), shape, rank, range(1))))
        patched.setattr(dist, "all_gather", gathering)
        patched.setattr(dist, "all_reduce", reducing)
        step(batch, 0)
        patched.undo()
        vectors = gathered_bytes(
            config.heads.contrastive, config.train.batch_rows, shape.extra, parts.model.shape.width
        )
        return found | {"vectors": vectors, "gradients": gradient_bytes(parts.model)}


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (f"{HEAD}symmetric=true",),
        (f"{HEAD}negatives={{per_query: 2}}", f"{HEAD}matryoshka=[4, 8]"),
        (f"{HEAD}symmetric=true", f"{HEAD}negatives={{per_query: 1}}", f"{HEAD}matryoshka=[4]"),
        ("heads.contrastive=null", "heads.classification={weight: 1.0, input: pair, negative_max: 2, positive_min: 4}"),
    ],
    ids=["items", "symmetric", "negatives and widths", "all", "classification alone"],
)
def test_a_step_moves_the_bytes_of_the_estimate(tmp_path: Path, overrides: tuple[str, ...]):
    """On gloo a reduce-scatter is an all-reduce of the whole, so sums hold the scattered gradients too."""
    store, rows = make_workspace(tmp_path)
    for found in run_ranks(2, moved, store.root, rows, list(overrides)):
        assert found["gathered"] == found["vectors"]
        assert found["summed"] == found["gradients"] + found["vectors"]


@contextlib.contextmanager
def two_readings() -> Iterator[list[Reading]]:
    yield [Reading(40.0, GIB), Reading(60.0, 3 * GIB)]


@pytest.fixture
def job(store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job on a machine with NeuronCores and one EFA interface."""
    monkeypatch.setattr(telemetry, "uses_neuron", lambda config: True)
    monkeypatch.setattr(telemetry, "run_monitor", two_readings)
    monkeypatch.setattr(neuron_node, "EFA_ROOT", tmp_path / "infiniband")
    count(tx_bytes=0, rx_drops=0)
    return make_job(store, tiny_config(), TrainInputs(rows=(), history=(), parent=None))


def count(**counters: int) -> None:
    folder = neuron_node.EFA_ROOT / "rdmap0s1" / "ports" / "1" / "hw_counters"
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
