"""End a training that makes no progress: a thread in each worker waits for heartbeats.

If one worker hangs, the others wait for it and make no step either, so each worker ends itself. Its error names its
last step; the watchdog does not decide which one hung first.
"""

import os
import sys
import threading
import time
import traceback
from typing import Self

from tasks.foundation.errors import POLICIES, HangError
from tasks.worker.process.job import Job

WRITE_ERROR_SECONDS = 60.0  # the workspace or the reader of the log may hang too


class Watchdog:
    """End the process with the exit code of HANG after `seconds` without a call of `beat`, while its block runs.

    A library that never releases the interpreter's lock stops the watchdog too.
    """

    def __init__(self, job: Job, seconds: float) -> None:
        self._job = job
        self._seconds = seconds
        self._last_step = ""
        self._watched = threading.get_ident()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self.beat()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def beat(self, step: str = "") -> None:
        """Send a heartbeat: `step`, or other work, is done."""
        self._last_step = step or self._last_step
        self._beat_at = time.monotonic()

    def _watch(self) -> None:
        while (left := self._beat_at + self._seconds - time.monotonic()) > 0:
            if self._over.wait(left):
                return
        self._end_process()

    def _end_process(self) -> None:
        stack = traceback.extract_stack(sys._current_frames()[self._watched])
        last = f"the last was {self._last_step}" if self._last_step else "there was none before"
        error = HangError(
            f"no step for {self._seconds:g} s; {last}; the main thread is at {stack[-1].filename}:"
            f"{stack[-1].lineno} {stack[-1].name}. If a step can take longer than that, raise train.watchdog_seconds"
        )
        where = "".join(traceback.format_list(stack))
        writer = threading.Thread(target=self._job.fail, args=(error, where), name="write error", daemon=True)
        writer.start()
        writer.join(WRITE_ERROR_SECONDS)
        os._exit(POLICIES[error.failure].exit_code)
