"""Workers on this machine: what they get and say, the cause of their failure, and their end."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import infra.compute.local
from infra.compute.local import LocalRunner
from tasks.contracts.outcomes import StageResult
from tasks.foundation.errors import CancelledError, CodeError, ConfigError, DataError, HostError
from tests.infra.compute.local_stage import failure, on_linux, run
from tests.support.fakes.stand_ins import Heard, health_spec, is_running

ROOT = Path(__file__).resolve().parents[3]
SLEEPS = """
def run(job):
    say(f"pid {os.getpid()}")
    time.sleep(600)
"""
both_ways = pytest.mark.parametrize("stand_in", ["forked", "a process of its own"], indirect=True)


def test_a_killed_worker_leaves_no_temporary_files(store, stand_in, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)  # which remembers the one of before
    (tmp_path / "tmp").mkdir()
    stand_in(
        """
        def run(job):
            import tempfile
            say(f"folder {len(tempfile.mkdtemp())}")
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    heard = Heard()
    assert isinstance(failure(store, listener=heard), HostError)
    assert heard.numbers("folder"), "it made one"
    assert list((tmp_path / "tmp").iterdir()) == []


@both_ways
def test_no_code_of_the_current_folder_runs(store, stand_in, tmp_path, monkeypatch):
    """Neither in the workers nor in what they start."""
    stand_in(
        """
        def run(job):
            import subprocess
            subprocess.run([sys.executable, "-m", "tasks.worker", "--help"], check=True, stdout=subprocess.DEVNULL)
            return outcome()
        """
    )
    here = tmp_path / "here"
    here.mkdir()
    for name in ("torch", "pyarrow", "pydantic"):
        (here / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.chdir(here)
    run(store)
    assert not (tmp_path / "ran").exists()


def test_a_spec_that_was_changed_after_it_was_submitted_is_not_run(store, stand_in, tmp_path):
    """It names addresses, and the variables whose secrets go there."""
    stand_in(f"def run(job):\n    open({str(tmp_path / 'ran')!r}, 'w').close()\n    return outcome()")
    spec = health_spec(store)
    key = f"{spec.attempt_prefix}/spec.json"
    store.write(key, store.read(key).replace(b'"attempts"', b'"attempts" '))
    with pytest.raises(ConfigError, match=rf"{key} is not the"):
        LocalRunner(store).run(spec, Heard(), tries=1)
    assert not (tmp_path / "ran").exists()


def test_a_stage_ends_with_the_result_of_rank_0(store, stand_in):
    stand_in(
        """
        def run(job):
            return outcome().model_copy(update={"device": f"rank {job.rank.index}"})
        """
    )
    run(store, workers=2)
    result = StageResult.model_validate_json(store.read("runs/run/health/result.json"))
    assert getattr(result.outcome, "device", None) == "rank 0"


@both_ways
def test_progress_goes_to_the_bar_and_the_rest_to_the_log(store, stand_in):
    stand_in(
        """
        def run(job):
            from tasks.contracts.jobs import report
            report("health", 1, 2, "half")
            say("plain")
            print("to stderr", file=sys.stderr, flush=True)
            say('@progress {"what": "cut')
            sys.stdout.buffer.write(b"not \\xff utf-8\\n")
            sys.stdout.flush()
            return outcome()
        """
    )
    heard = run(store)
    assert [(step.what, step.done, step.total, step.note) for step in heard.steps] == [("health", 1, 2, "half")]
    assert heard.lines == ["plain", "to stderr", '@progress {"what": "cut', "not \N{REPLACEMENT CHARACTER} utf-8"]


@both_ways
def test_with_several_workers_each_line_names_its_worker_and_each_knows_its_rank(store, stand_in):
    stand_in(
        """
        def run(job):
            say(" ".join(os.environ[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")))
            assert (job.rank.index, job.rank.world) == (int(os.environ["RANK"]), 2)
            return outcome()
        """
    )
    assert sorted(run(store, workers=2).lines) == ["[0] 0 0 2 2", "[1] 1 1 2 2"]


@both_ways
def test_a_worker_does_not_get_the_password_of_the_prefect_server(store, stand_in, monkeypatch):
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "millrace:secret")
    stand_in(
        """
        def run(job):
            say(sorted(name for name, value in os.environ.items() if "millrace:secret" in value))
            return outcome()
        """
    )
    assert run(store).lines == ["[]"]


@pytest.mark.parametrize("first", [0, 1])
def test_the_earliest_error_among_the_ranks_is_the_cause(store, stand_in, first):
    stand_in(
        f"""
        def run(job):
            from tasks.foundation.errors import DataError, StoreError
            if job.rank.index == {first}:
                raise DataError("span 2026-01: row 7 is bad")
            wait_for(job, "error-rank{first}.json")
            raise StoreError("a consequence")
        """
    )
    error = failure(store, workers=2)
    assert type(error) is DataError
    assert f"(worker {first} of 2)" in str(error)


def test_the_error_of_a_single_worker_is_raised_as_it_is(store, stand_in):
    stand_in("def run(job): raise ValueError('no such thing')")
    error = failure(store)
    assert type(error) is CodeError
    assert str(error) == "ValueError: no such thing"


@both_ways
@pytest.mark.parametrize(
    ("end", "expected", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", HostError, "worker 1 of 2 was killed by SIGKILL"),
        ("raise ZeroDivisionError('boom')", CodeError, "ZeroDivisionError: boom (worker 1 of 2)"),
    ],
)
def test_a_lost_workers_end_is_the_cause_and_not_the_others_lost_connection(store, stand_in, end, expected, message):
    stand_in(
        f"""
        def run(job):
            import torch
            from tasks.worker.devices.accelerators import open_accelerator
            with open_accelerator("cpu", job.rank) as accelerator:
                accelerator.sum(torch.ones(1))
                if job.rank.index == 1:
                    {end}
                accelerator.sum(torch.ones(1))
        """
    )
    error = failure(store, workers=2)
    assert type(error) is expected
    assert message in str(error)
    assert '"failure": "HOST"' in store.read("runs/run/health/attempt-1/error-rank0.json").decode()


def test_a_killed_worker_is_the_cause_of_another_workers_unknown_error(store, stand_in):
    stand_in(
        """
        def run(job):
            if job.rank.index == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.1)
            raise RuntimeError("the other side has gone silent")
        """
    )
    assert type(failure(store, workers=2)) is HostError


def test_a_crash_that_follows_another_workers_error_does_not_hide_it(store, stand_in):
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
    error = failure(store, workers=2)
    assert type(error) is DataError
    assert "(worker 1 of 2)" in str(error)


@pytest.mark.parametrize(("code", "expected"), [(3, CodeError), (65, DataError), (137, HostError)])
def test_the_error_of_a_worker_that_exits_silently_has_its_last_lines(store, stand_in, code, expected):
    stand_in(
        f"""
        def run(job):
            say("the last thing I did")
            os._exit({code})
        """
    )
    error = failure(store)
    assert type(error) is expected
    assert f"exited with {code}" in str(error)
    assert "the last thing I did" in str(error)


def test_a_missing_spec_is_a_config_error(store, stand_in):
    stand_in("def run(job): return outcome()")
    spec = health_spec(store)
    store.delete(f"{spec.attempt_prefix}/spec.json")
    with pytest.raises(ConfigError, match=r"attempt-1/spec\.json"):
        LocalRunner(store).run(spec, Heard(), tries=1)


@on_linux
def test_the_failure_of_one_worker_ends_another_that_ignores_sigterm(store, stand_in, short_grace):
    stand_in(
        """
        def run(job):
            from tasks.foundation.errors import DataError
            if job.rank.index == 1:
                wait_for(job, "ready")
                raise DataError("bad")
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say(f"pid {os.getpid()}")
            job.store.write(f"{job.spec.attempt_prefix}/ready", b"")
            time.sleep(600)
        """
    )
    heard = Heard()
    assert type(failure(store, 2, heard)) is DataError
    assert len(heard.numbers("pid")) == 1
    assert not is_running(heard.numbers("pid")[0])


def test_a_finished_stage_does_not_wait_for_a_workers_child_process(store, stand_in, short_grace):
    stand_in(
        """
        def run(job):
            child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
            say(f"child {child.pid}")
            return outcome()
        """
    )
    heard = run(store)
    assert store.exists("runs/run/health/result.json")
    os.kill(heard.numbers("child")[0], signal.SIGKILL)


@both_ways
@on_linux
@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_an_interruption_leaves_no_process_behind(store, stand_in, interruption):
    stand_in(SLEEPS)

    class Interrupts(Heard):
        def log(self, line: str) -> None:
            super().log(line)
            if len(self.numbers("pid")) == 2:
                raise interruption

    heard = Interrupts()
    with pytest.raises(interruption):
        run(store, 2, heard)
    assert not any(is_running(pid) for pid in heard.numbers("pid"))
    assert not store.exists("runs/run/health/result.json")


@pytest.mark.parametrize("stand_in", ["a process of its own"], indirect=True)
def test_started_workers_are_ended_when_the_next_one_cannot_start(store, stand_in, monkeypatch):
    stand_in("def run(job): time.sleep(600)")
    popen, started = subprocess.Popen, []

    def scarce(*args, **kwargs):
        if started:
            raise BlockingIOError("no more processes")
        started.append(popen(*args, **kwargs))
        return started[0]

    monkeypatch.setattr(infra.compute.local.subprocess, "Popen", scarce)
    with pytest.raises(BlockingIOError):
        run(store, workers=2)
    assert started[0].returncode is not None
    started[0].stdout.close()


@both_ways
@on_linux
def test_workers_die_with_a_killed_orchestrator(store, stand_in):
    stand_in(SLEEPS)
    health_spec(store, workers=2)
    script = (
        "import sys\n"
        "from infra.compute.local import LocalRunner\n"
        "from infra.store.factory import open_store\n"
        "from tasks.contracts.jobs import JobSpec\n"
        "class Waiter:\n"
        "    def log(self, line): print(line, flush=True)\n"
        "    def progress(self, progress): pass\n"
        "    def pulse(self): pass\n"
        "store = open_store(sys.argv[1])\n"
        "spec = JobSpec.model_validate_json(store.read('runs/run/health/attempt-1/spec.json'))\n"
        "LocalRunner(store).run(spec, Waiter(), 1)\n"
    )
    command = [sys.executable, "-c", script, store.uri]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as orchestrator:
        assert orchestrator.stdout is not None
        pids = [int(orchestrator.stdout.readline().split()[-1]) for _ in range(2)]
        assert all(is_running(pid) for pid in pids)
        orchestrator.kill()
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < deadline, f"a worker of {pids} outlived its orchestrator"
        time.sleep(0.05)


def test_a_waiter_can_cancel_the_stage(store, stand_in, short_grace):
    stand_in(SLEEPS)

    class Impatient(Heard):
        def log(self, line: str) -> None:
            super().log(line)
            self.stop = True

    heard = Impatient()
    with pytest.raises(CancelledError):
        run(store, listener=heard)
    assert not is_running(heard.numbers("pid")[0])


@on_linux
def test_a_worker_whose_runner_died_before_it_began_does_nothing(store, stand_in):
    stand_in("def run(job): return outcome()")
    spec = health_spec(store)
    done = subprocess.run(
        [sys.executable, "-m", "tasks.worker", "health", "--spec", f"{store.uri}#{spec.attempt_prefix}/spec.json"],
        cwd=ROOT,
        env={**os.environ, "MILLRACE_RUNNER_PID": str(2**30)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "the runner died" in done.stderr
    assert not store.exists("runs/run/health/result.json")
