"""Processes that have loaded the libraries of workers and fork them."""

import os
from collections.abc import Iterator

import pytest

from infra.compute import local
from infra.compute.local import LocalRunner
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import HealthInputs, JobSpec, ValidateInputs
from tasks.contracts.stages import Libraries
from tasks.foundation.errors import HostError
from tests.infra.compute.local_stage import failure, on_linux, run
from tests.support.fakes.stand_ins import Heard, health_spec, is_running


@pytest.fixture(autouse=True)
def _own_parents() -> Iterator[None]:
    """Each test begins without the warm parents of another."""
    yield
    local.end_parents()


def health_spec_again(store: DirectoryStore) -> JobSpec:
    spec = JobSpec.model_validate_json(store.read("runs/run/health/attempt-1/spec.json"))
    again = spec.model_copy(update={"attempt": 2, "submitted_as": 2})
    store.write(f"{again.attempt_prefix}/spec.json", again.to_json())
    return again


@on_linux
def test_the_libraries_load_while_validate_runs(store, stand_in):
    stand_in(
        """
        def run(job):
            say(f"parent {os.getppid()}")
            return outcome()
        """
    )
    inputs = ValidateInputs(window=(), history=(), feeds=(), bases=(), others=())
    spec = health_spec(store).model_copy(update={"inputs": inputs})
    store.write(f"{spec.attempt_prefix}/spec.json", spec.to_json())
    heard = Heard()
    LocalRunner(store).run(spec, heard, tries=1)
    parents = {key[0]: parent._process.pid for key, parent in local._parents.items()}
    spec = spec.model_copy(update={"inputs": HealthInputs()})
    store.write(f"{spec.attempt_prefix}/spec.json", spec.to_json())
    LocalRunner(store).run(spec, heard, tries=1)
    assert heard.numbers("parent") == [parents[Libraries.rows], parents[Libraries.model]]


@on_linux
def test_a_run_after_a_refresh_replaces_its_idle_parent(stand_in):
    """Else each worker of the run would load the libraries of training again."""
    stand_in("def run(job): return outcome()")

    def pid_after(refresh: bool) -> int:
        local.begin_parents(Libraries.rows, dict(os.environ), refresh)
        [parent] = local._parents.values()
        return parent._process.pid

    of_refresh, of_run = pid_after(True), pid_after(False)
    assert of_run != of_refresh
    assert not is_running(of_refresh)
    assert pid_after(True) == of_run


@on_linux
def test_workers_whose_warm_parent_is_killed_are_lost_and_the_next_have_another(store, stand_in):
    """As by the kernel, which is short of memory; they must not count as stopped by a person."""
    stand_in(
        """
        def run(job):
            if job.spec.attempt == 1:
                os.kill(os.getppid(), signal.SIGKILL)
                while True:  # a signal just before a long sleep would not end it
                    time.sleep(0.1)
            return outcome()
        """
    )
    error = failure(store)
    assert isinstance(error, HostError), error
    [before] = local._parents.values()
    spec = health_spec_again(store)
    LocalRunner(store).run(spec, Heard(), tries=1)
    [after] = local._parents.values()
    assert after is not before


@on_linux
def test_a_worker_whose_warm_parent_dies_while_it_begins_does_nothing(store, stand_in):
    """The parent forks the process of consumers first."""
    stand_in(
        """
        def run(job):
            job.store.write(f"{job.spec.attempt_prefix}/began", b"")
            return outcome()
        """,
        """
        import os, signal, time
        forks = []

        def begun():
            if len(forks) == 2:
                os.kill(os.getppid(), signal.SIGKILL)
                time.sleep(0.5)

        if "tasks.worker.warm_parent" in sys.orig_argv:
            os.register_at_fork(before=lambda: forks.append(None), after_in_child=begun)
        """,
    )
    assert isinstance(failure(store), HostError)
    assert not store.exists("runs/run/health/attempt-1/began")


@on_linux
def test_workers_are_processes_of_their_own_on_a_machine_without_descriptors_of_processes(store, stand_in, monkeypatch):
    def refused(pid):
        raise OSError("not permitted in this container")

    monkeypatch.setattr(os, "pidfd_open", refused)
    stand_in(
        """
        def run(job):
            say(f"parent {os.getppid()}")
            return outcome()
        """
    )
    assert run(store).numbers("parent") == [os.getpid()]


@on_linux
def test_a_consumer_needs_no_process_that_forks_it(store, stand_in, tmp_path):
    """The kernel may have killed it: later attempts of the release find the same dead one."""
    stand_in(
        f"""
        def run(job):
            from tasks.worker.search import consumer
            parents = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and pid != str(os.getpid())
                       and parent_of(pid) == os.getppid()]
            for pid in parents:
                os.kill(pid, signal.SIGKILL)
            open({str(tmp_path / "encode.py")!r}, "w").write("import sys; open(sys.argv[1], 'w')")
            consumer.encode_released.__file__ = {str(tmp_path / "encode.py")!r}
            consumer._run_apart(["encoded"], {str(tmp_path)!r})
            return outcome()

        def parent_of(pid):
            try:
                return int(open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[1])
            except OSError:
                return 0
        """
    )
    run(store)
    assert (tmp_path / "encoded").exists()


@on_linux
def test_a_consumers_process_has_no_module_of_the_pipeline(store, stand_in, tmp_path):
    (tmp_path / "entries").write_text('{"trust": false}')
    stand_in(
        f"""
        def run(job):
            from tasks.worker.search import consumer
            assert consumer.forks is not None
            consumer._run_apart(["model", "entries", "vectors"], {str(tmp_path)!r})
        """
    )
    modules = str(failure(store)).partition("ImportError: ")[2].split()
    assert "tasks.worker.search.encode_released" in modules
    assert not [
        name for name in modules if name.startswith(("infra", "configs", "tasks.contracts", "tasks.foundation"))
    ]
