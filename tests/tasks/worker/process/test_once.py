import threading
import time

import pytest

from tasks.worker.process.machine import once_per_machine


def test_one_worker_does_the_work_and_the_others_wait_for_its_result(tmp_path):
    made: list[int] = []
    got: list[bytes] = []

    def make() -> bytes:
        made.append(1)
        time.sleep(0.05)  # the others come meanwhile
        return b"done"

    threads = [
        threading.Thread(target=lambda: got.append(once_per_machine(tmp_path / "it", make, "to wait")))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), got) == (1, [b"done"] * 4)


def test_work_that_fails_is_left_to_the_next_worker(tmp_path):
    def fail() -> bytes:
        raise OSError("no connection")

    with pytest.raises(OSError, match="no connection"):
        once_per_machine(tmp_path / "it", fail, "to fail")
    assert once_per_machine(tmp_path / "it", lambda: b"done", "to end") == b"done"
