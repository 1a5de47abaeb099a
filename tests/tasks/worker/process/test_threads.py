"""Threads, memory and libraries of a worker process."""

import getpass
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.worker.process import threads
from tasks.worker.process.threads import bind_threads, name_user

ROOT = Path(__file__).resolve().parents[4]
OMP = ("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES")
TOKENISING = ("TOKENIZERS_PARALLELISM", "RAYON_NUM_THREADS")
on_linux = pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="only Linux shows a process's cores")


@pytest.fixture(autouse=True)
def no_cores_of_other_tests(monkeypatch):
    monkeypatch.setattr(threads, "_own_cores", set())
    for name in TOKENISING:
        monkeypatch.setenv(name, "of the image")


@on_linux
@pytest.mark.parametrize(
    ("cores", "rank", "workers", "threads", "places"),
    [
        ({0, 1, 2, 3}, 0, 1, "4", "{0},{1},{2},{3}"),
        ({0, 1, 2, 3}, 1, 2, "2", "{2},{3}"),
        ({3, 7}, 1, 2, "1", "{7}"),
        ({3, 7}, 2, 3, "1", "{3}"),
        ({0, 1, 2, 3, 4}, 1, 2, "2", "{2},{3}"),
    ],
)
def test_each_worker_gets_its_share_of_the_cores(monkeypatch, cores, rank, workers, threads, places):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    for name, value in {"LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": workers, **dict.fromkeys(OMP, "other")}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv("OMP_THREAD_LIMIT")
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    bind_threads("cpu")
    assert [os.environ[name] for name in OMP] == [threads, "true", places]
    assert int(os.environ["GOMP_SPINCOUNT"]) < 50_000, "a thread that waits gives its core to other work"
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    bind_threads("cpu")
    assert os.environ["GOMP_SPINCOUNT"] == "7"


def test_a_limit_for_a_shared_machine_is_kept(monkeypatch):
    for name in OMP:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_THREAD_LIMIT", "1")
    bind_threads("cpu")
    assert [os.environ.get(name) for name in OMP] == ["1", None, None]


@on_linux
@pytest.mark.parametrize("device", ["xla", "cuda"])
def test_a_device_beside_the_host_keeps_all_cores_for_its_compiler_and_its_own_threads(monkeypatch, device):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for name, value in {"LOCAL_WORLD_SIZE": "2", **dict.fromkeys(OMP, "of the image")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("OMP_THREAD_LIMIT")
    bind_threads(device)
    assert [os.environ.get(name) for name in OMP] == ["2", None, None]
    assert [os.environ[name] for name in TOKENISING] == ["true", "2"]


@on_linux
def test_the_worker_command_loads_no_openmp_before_its_variables_are_set():
    code = (
        "import tasks.worker.__main__, sys; print('torch' in sys.modules, 'omp.so' in open('/proc/self/maps').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"], done.stderr


@on_linux
def test_torchs_threads_are_bound_to_their_cores_and_no_other_library_warns_of_it():
    code = """
import os
from tasks.worker.process.threads import bind_threads
cores = sorted(os.sched_getaffinity(0))
bind_threads("cpu")
import torch
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.process.job import Rank
with open_accelerator("cpu", Rank(0, 1, 0)):
    (torch.ones(1000, 1000) + 1).relu()
from sklearn.linear_model import LogisticRegression
bound = [os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")]
print(torch.get_num_threads() == len(cores), all({core} in bound for core in cores))
"""
    free = {name: value for name, value in os.environ.items() if name != "OMP_THREAD_LIMIT"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=free, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "True"], done.stderr
    assert "libgomp" not in done.stderr


@on_linux
@pytest.mark.skipif(os.cpu_count() == 1, reason="one core has nothing to share")
def test_a_thread_that_a_bound_worker_starts_can_use_all_of_its_cores():
    code = """
import os
from concurrent.futures import ThreadPoolExecutor
from tasks.worker.process.threads import bind_threads, use_own_cores
before = os.sched_getaffinity(0)
bind_threads("cpu")
import torch
torch.rand(500, 500) @ torch.rand(500, 500)
for initializer in (None, use_own_cores):
    with ThreadPoolExecutor(1, initializer=initializer) as threads:
        print(threads.submit(os.sched_getaffinity, 0).result() == before)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


CODE = """
import resource, sys, threading
from tasks.worker.process.threads import keep_freed_memory

def allocate_and_free():
    for _ in range(20):
        bytearray(100 * 2**20)

def page_faults_in_a_thread():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    thread = threading.Thread(target=allocate_and_free)
    thread.start()
    thread.join()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

if sys.argv[1] == "kept":
    keep_freed_memory(in_all_threads=True)
print(page_faults_in_a_thread())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has no such settings")
@pytest.mark.parametrize("kept", ["kept", "as glibc does"])
def test_what_a_thread_frees_is_used_again(kept: str):
    done = subprocess.run(
        [sys.executable, "-c", CODE, kept], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    pages = 100 * 2**20 // 4096
    assert (int(done.stdout) < 2 * pages) is (kept == "kept"), "each of 20 blocks has so many pages"


def test_a_user_without_a_name_gets_one(monkeypatch: pytest.MonkeyPatch):
    """torch asks for it, and would fail in a container whose image knows no such user."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 987_654)
    name_user()
    assert getpass.getuser() == "user-987654"
