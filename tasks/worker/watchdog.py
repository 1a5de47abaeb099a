"""Ends a training that makes no step: a thread in each worker that waits for signs of life.

A worker that waits for one that hangs makes no step either, so each ends by itself. Nothing is found out here about
who was the first; the errors that all leave tell where each one stood.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from typing import Self

from tasks.errors import POLICIES, HangError
from tasks.worker.job import Job

LAST_WORDS_SECONDS = 60.0  # the workspace, or whoever reads the log, may be what hangs


class Watchdog:
    """While its block runs, `seconds` without a `beat` end the process with the exit code of HANG.

    It needs the interpreter's lock: code of a library that never lets go of it keeps the watchdog from acting too.
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
        """A sign of life: `step` was made, or something else came to its end."""
        self._last_step = step or self._last_step
        self._beat = time.monotonic()

    def _watch(self) -> None:
        while (left := self._beat + self._seconds - time.monotonic()) > 0:
            if self._over.wait(left):
                return
        self._end_process()

    def _end_process(self) -> None:
        stack = traceback.extract_stack(sys._current_frames()[self._watched])
        last = f"the last one was {self._last_step}" if self._last_step else "none was made before"
        error = HangError(
            f"no step for {self._seconds:g} s; {last}; the main thread stands at {stack[-1].filename}:"
            f"{stack[-1].lineno} {stack[-1].name}. If a step can take longer than that, raise train.hang_seconds"
        )
        told = "".join(traceback.format_list(stack))
        telling = threading.Thread(target=self._job.fail, args=(error, told), name="last words", daemon=True)
        telling.start()
        telling.join(LAST_WORDS_SECONDS)
        os._exit(POLICIES[error.failure].exit_code)
