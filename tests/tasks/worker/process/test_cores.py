"""Work on pieces by several processes: the order, errors, and the end of the processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import DataError, HostError
from tasks.worker import validate
from tasks.worker.process import cores
from tasks.worker.process.cores import Cores
from tests.support.processes.ranks import start_server
from tests.support.workspace.spans import MARCH, job, rows, write_span

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are enough for other processes, which find this module."""
    monkeypatch.syspath_prepend(ROOT)
    start_server()
    monkeypatch.setattr(cores, "own_cores", lambda: {0, 1})
    monkeypatch.setattr(cores, "MANY_ROWS", 2)


def slower_first(number: int) -> tuple[int, int]:
    time.sleep(0.2 if number == 0 else 0.0)
    return number * number, os.getpid()


def fail(number: int) -> int:
    if number == 1:
        raise DataError("row 7 has no text")
    return number


def die(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_results_come_in_the_order_of_the_pieces_and_from_other_processes(two_cores: None):
    with Cores(()) as pool:
        found = list(pool.map(slower_first, range(8), 8))
    assert [(piece, square) for piece, (square, _) in found] == [(n, n * n) for n in range(8)]
    assert os.getpid() not in {pid for _, (_, pid) in found}


def test_pieces_are_read_as_they_are_needed(two_cores: None):
    read: list[int] = []

    def pieces() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    with Cores(()) as pool:
        work = pool.map(slower_first, pieces(), 100)
        next(work)
        assert len(read) <= 1 + cores.AHEAD * 2


def test_an_error_of_the_work_is_raised_here(two_cores: None):
    with pytest.raises(DataError, match="row 7 has no text"), Cores(()) as pool:
        list(pool.map(fail, range(3), 3))


def test_a_killed_process_is_named(two_cores: None):
    with pytest.raises(HostError, match="a piece of the span"), Cores(()) as pool:
        list(pool.map(die, range(3), 3))


def test_no_process_outlives_a_killed_worker(tmp_path: Path):
    program = (
        "from tasks.worker.process import cores\n"
        "cores.MANY_ROWS = 1\n"
        "cores.own_cores = lambda: {0, 1}\n"
        "from tests.tasks.worker.process.test_cores import stay\n"
        "with cores.Cores(()) as pool:\n"
        f"    list(pool.map(stay, [{str(tmp_path)!r}] * 2, 2))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], cwd=ROOT) as worker:
        while len(pids := [int(path.name) for path in tmp_path.iterdir()]) < 2:
            assert worker.poll() is None
            time.sleep(0.05)
        worker.kill()
    until = time.monotonic() + 30
    while any(_runs(pid) for pid in pids):
        assert time.monotonic() < until, "a process of a killed worker still runs"
        time.sleep(0.05)


def stay(folder: str) -> None:
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)


def _runs(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False


def test_a_span_that_several_processes_judged_has_the_bytes_of_one_that_a_single_one_did(
    store: DirectoryStore, tmp_path: Path, request: pytest.FixtureRequest
):
    """Bad rows of each kind are among them, also in pieces of their own."""
    values = rows(60)
    values[3] |= {"query": ""}
    values[41] |= {"row_id": values[2]["row_id"]}
    write_span(store, tmp_path, MARCH, values)
    alone = validate.judge(job(store))
    request.getfixturevalue("two_cores")
    together = validate.judge(job(store, attempt=2))
    assert [each.folders for each in together.rows] == [each.folders for each in alone.rows]
    assert together.reasons == alone.reasons == {"query is empty": 1, "row_id repeats an earlier row of the span": 1}
    files = [store.path(outcome.quarantine) for outcome in (alone, together) if outcome.quarantine is not None]
    assert pq.read_table(files[0]).equals(pq.read_table(files[1]))
