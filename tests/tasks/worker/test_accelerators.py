import os
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tasks.foundation.errors import ConfigError
from tasks.worker.devices import base
from tasks.worker.devices import base as devices_base
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tests.support.processes.ranks import run_ranks

ALONE = Rank(0, 1, 0)
GIB = 2**30


def test_for_one_worker_every_collective_is_the_identity():
    rows = torch.arange(6.0).view(3, 2)
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([1.0, 2.0])
    with open_accelerator("cpu", ALONE) as accelerator:
        for collective in (accelerator.sum, accelerator.gather, accelerator.scatter_sum):
            assert torch.equal(collective(rows.clone()), rows)
        accelerator.reduce_gradients(torch.optim.SGD([weight]))
        accelerator.barrier()
        assert not dist.is_initialized()
    assert weight.grad.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("flags", "fast"),
    [
        ("flags\t\t: fpu avx2 amx_bf16 amx_tile", True),
        ("flags\t\t: fpu avx512f avx512_bf16", True),
        ("Features\t: fp asimd bf16", True),
        ("flags\t\t: fpu avx2 avx512f", False),
        ("model name\t: bf16 9000", False),
    ],
)
def test_bf16_is_chosen_if_the_processor_supports_it(monkeypatch, flags, fast):
    monkeypatch.setattr(Path, "read_text", lambda path, encoding: f"processor\t: 0\n{flags}\n\nprocessor\t: 1\n")
    accelerator = CpuAccelerator(ALONE)
    assert accelerator.fast_bf16 is fast
    assert accelerator.choose_precision("auto") == ("bf16" if fast else "fp32")
    assert [accelerator.choose_precision("bf16"), accelerator.choose_precision("fp32")] == ["bf16", "fp32"]


def test_autocast_multiplies_in_the_precision_and_keeps_the_weights():
    accelerator, layer, rows = CpuAccelerator(ALONE), torch.nn.Linear(4, 4), torch.ones(2, 4)
    with accelerator.autocast("bf16"):
        assert layer(rows).dtype == torch.bfloat16
    with accelerator.autocast("fp32"):
        assert layer(rows).dtype == torch.float32
    assert layer.weight.dtype == torch.float32


def host(folder: Path, available_kib: int, limit: str | None = None, used: int = 0, cached: int = 0) -> dict[str, Path]:
    """The kernel's files about memory, below `folder`."""
    proc, cgroup = folder / "proc", folder / "cgroup"
    proc.mkdir()
    cgroup.mkdir()
    (proc / "meminfo").write_text(f"MemTotal:  99999999 kB\nMemFree:  1 kB\nMemAvailable:  {available_kib} kB\n")
    if limit is not None:
        (cgroup / "memory.max").write_text(f"{limit}\n")
        (cgroup / "memory.current").write_text(f"{used}\n")
        (cgroup / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")
    return {"proc": proc, "cgroup": cgroup}


@pytest.mark.parametrize(
    ("container", "free_gib"),
    [({}, 4.0), ({"limit": str(3 * GIB), "used": 2 * GIB, "cached": GIB // 2}, 1.5), ({"limit": "max"}, 4.0)],
    ids=["no container", "limited", "unlimited"],
)
def test_free_memory_counts_the_page_cache_and_the_containers_limit(tmp_path, container, free_gib):
    assert devices_base.free_host_bytes(**host(tmp_path, 4 * 2**20, **container)) == free_gib * GIB


def test_an_unknown_accelerator_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"'tpu'; .*neuron, xla"), open_accelerator("tpu", ALONE):
        pass


def test_workers_of_one_machine_share_its_memory(monkeypatch):
    monkeypatch.setattr(base, "free_host_bytes", lambda: 8 * GIB)
    assert CpuAccelerator(Rank(0, 2, 0, local_world=1)).free_memory_bytes() == 8 * GIB
    assert CpuAccelerator(Rank(1, 2, 1, local_world=2)).free_memory_bytes() == 4 * GIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_peak_memory_is_in_bytes_and_at_least_the_current_use():
    current = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    peak = CpuAccelerator(ALONE).peak_memory_bytes()
    assert current * 0.95 <= peak < current * 100  # the kernel counts in batches


def test_the_rank_is_read_from_torchruns_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert Rank.from_environment() == Rank(0, 1, 0, 1)
    for name, value in {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    assert Rank.from_environment() == Rank(5, 8, 1, 4)


def collectives(rank: Rank) -> dict[str, object]:
    """What every collective gives for numbers that depend on the rank: 1, 2, ... on rank 0, 11, 12, ... on rank 1."""
    found: dict[str, object] = {}
    with open_accelerator("cpu", rank) as accelerator:
        assert accelerator.rank.world == dist.get_world_size() == 2
        numbers = torch.arange(1.0, 7.0).view(2, 3) + 10 * rank.index
        found["sum"] = accelerator.sum(numbers.clone()).tolist()
        in_place = numbers.clone()
        accelerator.sum(in_place)
        found["sum in place"] = in_place.tolist()
        found["sum of integers"] = accelerator.sum(torch.tensor([2**40 + rank.index])).tolist()
        found["sum of bf16"] = accelerator.sum(numbers.bfloat16()).tolist()
        found["gather"] = accelerator.gather(numbers).tolist()
        found["gather of a transposed tensor"] = accelerator.gather(numbers.T).tolist()
        found["scatter_sum"] = accelerator.scatter_sum(torch.arange(4.0).view(4, 1) + 10 * rank.index).tolist()

        rows = torch.ones(2, 1, requires_grad=True)
        weights = torch.tensor([[1.0], [2.0], [3.0], [4.0]]) * (1 if rank.is_main else 100)
        (accelerator.gather(rows) * weights).sum().backward()
        found["gradient of gather"] = rows.grad.tolist() if rows.grad is not None else None

        used, also, unused = (torch.nn.Parameter(torch.zeros(shape)) for shape in ((2, 2), (3,), (1,)))
        used.grad, also.grad = torch.full((2, 2), 1.0 + rank.index), torch.arange(3.0) * (1 + rank.index)
        accelerator.reduce_gradients(torch.optim.SGD([used, unused, also]))
        found["gradients"] = [None if one.grad is None else one.grad.tolist() for one in (used, unused, also)]
        accelerator.barrier()
    found["left"] = not dist.is_initialized()
    return found


def test_two_workers_exchange_the_right_numbers():
    first, second = run_ranks(2, collectives)
    both = [[12.0, 14.0, 16.0], [18.0, 20.0, 22.0]]
    common = {
        "sum": both,
        "sum in place": both,
        "sum of integers": [2**41 + 1],
        "sum of bf16": both,
        "gather": [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [11.0, 12.0, 13.0], [14.0, 15.0, 16.0]],
        "gather of a transposed tensor": [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0], [11.0, 14.0], [12.0, 15.0], [13.0, 16.0]],
        "gradients": [[[3.0, 3.0], [3.0, 3.0]], None, [0.0, 3.0, 6.0]],
        "left": True,
    }
    assert first == common | {"scatter_sum": [[10.0], [12.0]], "gradient of gather": [[101.0], [202.0]]}
    assert second == common | {"scatter_sum": [[14.0], [16.0]], "gradient of gather": [[303.0], [404.0]]}


def fail_inside(rank: Rank) -> bool:
    try:
        with open_accelerator("cpu", rank) as accelerator:
            accelerator.barrier()  # a process that ends while another one still connects would end that too
            raise ZeroDivisionError
    except ZeroDivisionError:
        return dist.is_initialized()


def test_a_failing_worker_keeps_its_connections_until_it_has_written_its_error():
    assert run_ranks(2, fail_inside) == [True, True]


def test_a_worker_without_a_gpu_is_refused_with_the_way_out():
    complaint = r"needs a GPU for each worker; this machine has \d+. Lower train.workers"
    with pytest.raises(ConfigError, match=complaint), open_accelerator("cuda", Rank(0, 1, 10_000)):
        pass


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_cuda_trains_a_layer():
    with open_accelerator("cuda", ALONE) as accelerator:
        layer = torch.nn.Linear(64, 64).to(accelerator.device)
        with accelerator.autocast(accelerator.choose_precision("auto")):
            loss = layer(torch.ones(8, 64, device=accelerator.device)).square().sum()
        loss.backward()
        accelerator.reduce_gradients(torch.optim.SGD(layer.parameters()))
        accelerator.synchronize()
        assert layer.weight.grad is not None
        assert layer.weight.grad.isfinite().all()
        assert accelerator.peak_memory_bytes() > 0
        assert 0 < accelerator.free_memory_bytes() < 2**50
        assert torch.equal(accelerator.gather(accelerator.sum(layer.weight.detach())), layer.weight.detach())
