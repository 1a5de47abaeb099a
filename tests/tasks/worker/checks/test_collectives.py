from contextlib import nullcontext as nothing

import pytest
import torch

from tasks.foundation.errors import HostError
from tasks.worker.checks.collectives import SIZES, check_collectives, prove_exchange, rates
from tasks.worker.devices.accelerators import Accelerator, open_accelerator
from tasks.worker.process.job import Rank
from tests.support.processes.ranks import run_ranks

NAMES = ["all-reduce", "all-gather", "reduce-scatter", "gradient sum", "gradient of all-gather"]


def check_broken(rank: Rank) -> dict[str, str]:
    """The first finding about each broken collective, which is broken the same way on each rank."""
    findings = {}
    with open_accelerator("cpu", rank) as accelerator:
        for name, (method, broken) in BROKEN.items():
            whole = getattr(Accelerator, method)
            setattr(Accelerator, method, broken(whole))
            failed = [check for check in check_collectives(accelerator) if not check.passed]
            assert {(check.action, check.severity) for check in failed} <= {("retry elsewhere", "critical")}
            findings[name] = failed[0].sentence if failed else "nothing"
            if method == "sum":
                with pytest.raises(HostError, match="all-reduce over 2 workers") if "nothing" in name else nothing():
                    prove_exchange(accelerator)
            setattr(Accelerator, method, whole)
        findings["nothing broken"] = ", ".join(check.name for check in check_collectives(accelerator) if check.passed)
    return findings


def last_is_wrong(collective):
    """A collective with a wrong last element in large tensors."""

    def broken(accelerator, tensor):
        result = collective(accelerator, tensor)
        if result.numel() > 1000:
            result[-1] += 1
        return result

    return broken


def without_gradient(gather):
    return lambda accelerator, rows: gather(accelerator, rows.detach()).requires_grad_()


def own_part(scatter_sum):
    return lambda accelerator, rows: rows.chunk(accelerator.rank.world)[accelerator.rank.index]


BROKEN = {
    "a sum that does nothing": ("sum", lambda whole: lambda accelerator, tensor: tensor),
    "a sum that is wrong at the end": ("sum", last_is_wrong),
    "a gather that does nothing": ("gather", lambda whole: lambda accelerator, rows: rows),
    "a gather of the own rows": ("gather", lambda whole: lambda accelerator, rows: torch.cat([rows, rows])),
    "a gather without gradient": ("gather", without_gradient),
    "a scatter that does nothing": ("scatter_sum", lambda whole: lambda accelerator, rows: rows),
    "a scatter that does not sum": ("scatter_sum", own_part),
    "gradients that are not summed": ("reduce_gradients", lambda whole: lambda accelerator, optimizer: None),
}


@pytest.mark.shows("broken collectives")
def test_every_broken_collective_is_found_by_its_numbers():
    first, second = run_ranks(2, check_broken)
    expected = {
        "a sum that does nothing": ("all-reduce", "worker {} got {} at element 0, expected 3", (1, 2)),
        "a sum that is wrong at the end": ("all-reduce", "worker {} got {} at element 65536, expected 9", (10, 10)),
        "a gather that does nothing": ("all-gather", "worker {} got {} elements, expected 2", (1, 1)),
        "a gather of the own rows": (
            "all-gather",
            "worker {} got {}",
            ("1 at element 1, expected 2", "2 at element 0, expected 1"),
        ),
        "a gather without gradient": ("gradient of all-gather", "worker {} got {} at element 0", (0, 0)),
        "a scatter that does nothing": ("reduce-scatter", "worker {} got {} elements, expected 1", (2, 2)),
        "a scatter that does not sum": ("reduce-scatter", "worker {} got {} at element 0", (1, 4)),
        "gradients that are not summed": ("gradient sum", "worker {} got {} at element 0, expected 3", (1, 2)),
    }
    assert SIZES[-1] == 65_537
    for name, (collective, sentence, got) in expected.items():
        for rank, findings in enumerate((first, second)):
            assert findings[name].startswith(f"{collective} over 2 workers"), name
            assert sentence.format(rank, got[rank]) in findings[name], name
    assert first["nothing broken"] == second["nothing broken"] == ", ".join(NAMES)


def test_bandwidths_follow_nccl_tests():
    seconds = {"latency": 5e-6, "all_reduce": 1.0, "all_gather": 0.5, "reduce_scatter": 0.5}
    found = rates(seconds, mib=4096, world=4)
    giga = 2**32 / 1e9
    assert found == {
        "all_reduce_latency_us": 5.0,
        "all_reduce_gb_s": pytest.approx(giga, abs=1e-3),
        "all_reduce_bus_gb_s": pytest.approx(giga * 1.5, abs=1e-3),
        "all_gather_gb_s": pytest.approx(giga * 2, abs=1e-3),
        "all_gather_bus_gb_s": pytest.approx(giga * 1.5, abs=1e-3),
        "reduce_scatter_gb_s": pytest.approx(giga * 2, abs=1e-3),
        "reduce_scatter_bus_gb_s": pytest.approx(giga * 1.5, abs=1e-3),
    }
