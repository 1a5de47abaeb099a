"""The part of a step that is communication: timed on a processor, estimated elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tasks.contracts.outcomes import HealthOutcome
from tasks.contracts.results import Phases, StageResult
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.worker.devices.base import Accelerator
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tasks.worker.training import telemetry
from tasks.worker.training.telemetry import StepClock


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


def test_evaluations_count_neither_as_steps_nor_as_communication(store, clock) -> None:
    made = two_steps(CpuAccelerator(place()), clock, communicated=0.5)
    assert made.pairs_per_second == 10.0
    found = made.communication(store, "run", nn.Linear(2, 2), 0)
    assert found is not None
    assert (found.seconds, found.step_seconds, found.measured) == (0.5, 1.0, True)
    assert found.warning.startswith("50% of a step of 1 s is communication between the workers, more than 25%")


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
