"""The launcher as containers run it: real processes, torchrun included, on one machine, with a scripted stage."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from infra.root_cause import Ending
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec, parse_progress
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.runs.host_records import exclude
from tasks.worker.launch import __main__ as launcher
from tasks.worker.launch.this_node import ContainerPosition, StopSignals
from tests.support.fakes.stand_ins import health_spec, is_running, replace_health

ROOT = Path(__file__).resolve().parents[4]
DEADLINE_SECONDS = 60
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="containers run Linux")

NEVER_ENDS = """
    def run(job):
        job.store.write(f"{job.spec.attempt_prefix}/pid-{job.rank.index}", str(os.getpid()).encode())
        time.sleep(600)
    """


class Job:
    """A job of AWS Batch whose containers the test starts."""

    def __init__(self, store: DirectoryStore, spec: JobSpec) -> None:
        self.id = str(uuid.uuid4())
        self.store = store
        self.spec = spec
        self.containers: list[subprocess.Popen[str]] = []

    def start(self, **variables: str | int) -> subprocess.Popen[str]:
        """One container, with `AWS_BATCH_JOB_<name>` for each of `variables`."""
        names = {"ID": self.id, "ATTEMPT": 1, **variables}
        batch = {f"AWS_BATCH_JOB_{name}": str(value) for name, value in names.items()}
        uri = f"{self.store.uri}#{self.spec.job_prefix}/spec.json"
        container = subprocess.Popen(
            [sys.executable, "-m", "tasks.worker.launch", "health", "--spec", uri],
            cwd=ROOT,
            env={**os.environ, **batch, "AWS_EC2_METADATA_DISABLED": "true"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.containers.append(container)
        return container

    def start_node(self, node: int, **variables: str | int) -> subprocess.Popen[str]:
        main = {"MAIN_NODE_PRIVATE_IPV4_ADDRESS": "127.0.0.1"} if node else {}
        nodes = {"NODE_INDEX": node, "NUM_NODES": 2, "MAIN_NODE_INDEX": 0}
        return self.start(**{"ID": f"{self.id}#{node}", **nodes, **main, **variables})

    def read(self, name: str, attempt: int = 1) -> bytes:
        """A file of an attempt, once it is there."""
        return wait_for(lambda: self.store.read(f"{self.spec.stage_prefix}/attempt-{attempt}/{name}"))

    def ending(self, name: str = "ending.json", attempt: int = 1) -> Ending:
        return Ending.model_validate_json(self.read(name, attempt))


def wait_for(read):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return read()
        except FileNotFoundError:
            assert time.monotonic() < deadline, "the file never came"
            time.sleep(0.02)


def finish(container: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and output."""
    output, _ = container.communicate(timeout=DEADLINE_SECONDS)
    return container.returncode, output


def exit_code(failure: str) -> int:
    return POLICIES[FailureClass(failure)].exit_code


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    return lambda body: replace_health(monkeypatch, tmp_path / "site", body)


@pytest.fixture
def make_job(store):
    jobs = []

    def make(workers: int = 1, *overrides: str) -> Job:
        jobs.append(Job(store, health_spec(store, workers, *overrides)))
        return jobs[-1]

    yield make
    for container in (container for job in jobs for container in job.containers):
        if container.poll() is None:
            os.killpg(container.pid, signal.SIGKILL)
            container.wait()
        if container.stdout:
            container.stdout.close()


@pytest.mark.shows("several nodes")
def test_two_nodes_run_a_stage_together(make_job, stand_in, monkeypatch):
    monkeypatch.delenv("OMP_THREAD_LIMIT")
    stand_in(
        """
        def run(job):
            import json
            from tasks.contracts.jobs import report
            names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "OMP_PLACES", "MILLRACE_HOST")
            job.store.write(f"{job.spec.attempt_prefix}/env-{job.rank.index}",
                            json.dumps({name: os.environ[name] for name in names}).encode())
            for step in range(50):
                report("health", step + 1, 50)
                say("x" * 100)
            return outcome()
        """
    )
    job = make_job(2)
    child, main = job.start_node(1), job.start_node(0)
    (code, output), (child_code, _) = finish(main), finish(child)
    assert (code, child_code) == (0, 0), output
    assert job.store.exists("runs/run/health/result.json")
    found = [step for line in output.splitlines() if (step := parse_progress(line))]
    assert [step.done for step in found] == list(range(1, 51))
    assert set(output.splitlines()) - {"x" * 100} == {line for line in output.splitlines() if parse_progress(line)}
    cores = sorted(os.sched_getaffinity(0))
    for rank in range(2):
        environment = json.loads(job.read(f"env-{rank}"))
        assert (environment["WORLD_SIZE"], environment["LOCAL_WORLD_SIZE"]) == ("2", "1")
        assert environment["OMP_NUM_THREADS"] == str(len(cores))
        assert environment["OMP_PLACES"] == ",".join(f"{{{core}}}" for core in cores)
        assert environment["MILLRACE_HOST"]
    assert json.loads(job.read("owner.json")) == {"job": job.id}

    second = Job(job.store, job.spec)
    job.containers.append(twice := second.start())
    code, output = finish(twice)
    assert code == exit_code("CANCELLED")
    assert f"belongs to job {job.id}" in output
    assert len(output.splitlines()) == 1
    assert not job.store.exists("runs/run/health/attempt-1/ending.json")


def test_the_error_of_a_child_node_is_the_cause_in_a_second_try(make_job, stand_in):
    stand_in(
        """
        def run(job):
            from tasks.foundation.errors import DataError
            if job.rank.index == 1:
                raise DataError("span 2026-01: row 7 is bad")
            wait_for(job, "error-rank1.json")
            os.abort()
        """
    )
    job = make_job(2)
    main, child = job.start_node(0, ATTEMPT=2), job.start_node(1, ATTEMPT=2)
    (code, output), (child_code, _) = finish(main), finish(child)
    assert (code, child_code) == (exit_code("DATA"), exit_code("DATA")), output
    ending = job.ending(attempt=2)
    assert (ending.failure, ending.node) == ("DATA", 1)
    assert "(worker 1 of 2)" in ending.message
    assert f"DATA: {ending.message}" in output
    spec = JobSpec.model_validate_json(job.read("spec.json", attempt=2))
    assert (spec.attempt, spec.submitted_as) == (2, 1)
    assert not job.store.exists("runs/run/health/attempt-1/error-rank1.json")


def test_a_silent_child_node_is_noticed_within_seconds(make_job, stand_in):
    stand_in(NEVER_ENDS)
    job = make_job(2, "batch.heartbeat_timeout_seconds=2")
    main, child = job.start_node(0), job.start_node(1)
    pids = [int(job.read(f"pid-{rank}")) for rank in range(2)]
    began = time.monotonic()
    child.send_signal(signal.SIGSTOP)
    code, output = finish(main)
    assert time.monotonic() - began < 20
    assert code == exit_code("HOST"), output
    ending = job.ending()
    assert (ending.failure, ending.node) == ("HOST", 1)
    assert ending.message.startswith("node 1 (")
    assert "no message for" in ending.message
    child.send_signal(signal.SIGCONT)
    child.wait(DEADLINE_SECONDS)
    wait_until_ended(pids)


def wait_until_ended(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while running := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < deadline, f"workers {running} outlived their launcher"
        time.sleep(0.05)


def test_after_sigterm_a_worker_saves_and_the_job_is_cancelled(make_job, stand_in):
    stand_in(
        """
        def run(job):
            def save(number, frame):
                job.store.write(f"{job.spec.attempt_prefix}/saved", b"")
                raise SystemExit("saved")
            signal.signal(signal.SIGTERM, save)
            job.store.write(f"{job.spec.attempt_prefix}/ready", b"")
            time.sleep(600)
        """
    )
    job = make_job()
    container = job.start(ARRAY_INDEX=0, ID=f"{job.id}:0")
    job.read("ready")
    os.killpg(container.pid, signal.SIGTERM)
    code, output = finish(container)
    assert code == exit_code("CANCELLED"), output
    assert job.read("saved") == b""
    ending = job.ending("ending-0.json")
    assert (ending.failure, ending.node) == ("CANCELLED", 0)
    assert "SIGTERM" in ending.message


def test_an_arrays_child_has_its_position_and_reports_only_its_own_workers(make_job, stand_in):
    stand_in(
        """
        def run(job):
            if os.environ["LOCAL_RANK"] == "1":
                wait_for(job, "printed")
                os.kill(os.getpid(), signal.SIGKILL)
            names = ("WORLD_SIZE", "RANK", "MILLRACE_ARRAY_INDEX", "MILLRACE_ARRAY_SIZE")
            say(" ".join(os.environ[name] for name in names))
            job.store.write(f"{job.spec.attempt_prefix}/printed", b"")
            time.sleep(600)
        """
    )
    job = make_job(8, "batch.processes_per_node=2")
    sibling = {"rank": 1, "at": 0, "failure": "DATA", "message": "a sibling's", "traceback": "", "phases": {}}
    job.store.write("runs/run/health/attempt-1/error-rank1.json", json.dumps(sibling).encode())
    code, output = finish(job.start(ARRAY_INDEX=2, ID=f"{job.id}:2"))
    assert "2 0 2 4" in output
    ending = job.ending("ending-2.json")
    assert (code, ending.failure, ending.node) == (exit_code("HOST"), "HOST", 2)
    assert ending.message.startswith("health: worker 5 of 8")


@pytest.mark.shows("excluded hosts")
@pytest.mark.parametrize(("settings", "seconds"), [((), 1800), (("batch.rendezvous_timeout_seconds=60",), 60)])
def test_nodes_wait_for_each_other_as_long_as_their_images_may_take(store, monkeypatch, settings, seconds):
    waits = []

    class Node:
        def __init__(self, *given):
            waits.append(given[-1])

        def run(self): ...

    spec = health_spec(store, 2, *settings)
    for node, kind in enumerate(("MainNode", "ChildNode")):
        monkeypatch.setattr(launcher, kind, Node)
        position = ContainerPosition("job", 1, node, 2, "127.0.0.1", None)
        launcher.launch(position, store, spec, "uri", "i-1", StopSignals(), 0.0)
    assert waits == [seconds, seconds]


def test_work_is_refused_on_an_excluded_host(make_job, monkeypatch):
    job = make_job()
    host = os.uname().nodename
    exclude(job.store, host, "its core 3 computes wrong", "run-7", job.spec.config.health, time.time())
    code, output = finish(job.start())
    assert code == exit_code("HOST")
    assert f"host {host} is" in output
    assert job.ending().message in output


def test_outside_of_batch_the_launcher_is_a_config_error(make_job):
    job = make_job()
    code, output = finish(job.start(ID=""))
    assert code == exit_code("CONFIG")
    assert output.startswith("CONFIG: AWS_BATCH_JOB_ID")
    assert len(output.splitlines()) == 1


def test_a_job_of_the_wrong_size_is_a_config_error(make_job):
    job = make_job(4)
    code, output = finish(job.start_node(0))
    assert code == exit_code("CONFIG")
    assert "2 nodes" in job.ending().message
    assert job.ending().message in output
