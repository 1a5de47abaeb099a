"""A process that loads the stages' libraries once and forks the workers from it.

`python -m tasks.worker.warm_parent FD ROOM`: FD is the socket of the runner, `infra.compute.warm_parents`, and
its end is the end of this process; ROOM only makes its command long enough for a worker's. No stage runs in it: a
worker's crash, memory, threads and signals are its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from tasks.contracts.stages import Stage
from tasks.worker.__main__ import end_process
from tasks.worker.process import sigterm
from tasks.worker.process.threads import BINDING, QUIET, THREADS, bind_threads, name_user

REQUEST_BYTES = 1 << 18  # more than a socket of this kind takes
LATE = ("pandas", "sklearn.linear_model")  # imported by stages in the middle of their work


def serve(channel: socket.socket) -> NoReturn:
    """Fork a worker for each request until the runner ends."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:  # sent to the whole group; the runner decides when its workers end
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(QUIET)
    name_user()
    bind_threads("cpu")
    load()
    name_process(("python", "-m", "tasks.worker.warm_parent"))
    running: dict[int, tuple[int, socket.socket]] = {}  # by the worker's pidfd: its pid, and the socket for its end
    while True:
        ready, _, _ = select.select([channel.fileno(), *running], [], [])
        for pidfd in set(ready) & set(running):
            pid, news = running.pop(pidfd)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.close(pidfd)
            with news, contextlib.suppress(OSError):  # the runner no longer listens
                news.send(str(code).encode())
        if channel.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 2)
        if not message:
            os._exit(0)
        output, news = descriptors[0], socket.socket(fileno=descriptors[1])
        pid = os.fork()
        if pid == 0:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for own in (channel, news, *(end for _, end in running.values())):
                own.close()
            for pidfd in running:
                os.close(pidfd)
            _work(output, **json.loads(message))
        os.close(output)
        pidfd = os.pidfd_open(pid)
        running[pidfd] = (pid, news)
        with contextlib.suppress(OSError):
            socket.send_fds(news, [b"begun"], [pidfd])


def load() -> None:
    """Import the stages and their libraries, without their threads or devices."""
    stages = [f"tasks.worker.{stage.name}" for stage in Stage if stage.traits.forked]
    for module in (*stages, *LATE):
        with contextlib.suppress(Exception):  # the worker fails at the same import, and says so
            importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection in a worker would copy all pages


def _work(output: int, words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Be `python -m tasks.worker WORDS`: end with its exit code."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    threads = {name: os.environ[name] for name in (THREADS, *BINDING) if name in os.environ}
    os.environ.clear()
    os.environ.update({**environment, **threads})
    tempfile.tempdir = None  # of the old TMPDIR
    sigterm.forked_from = os.getppid()
    sys.argv = ["tasks.worker", *words]
    name_process(("python", "-m", *sys.argv))
    end_process()


def name_process(words: Sequence[str]) -> None:
    """Show `words` as this process's command in `ps`: write over its own, cut to the same length.

    Not by setproctitle, which also writes over the variables in /proc/PID/environ.
    """
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, see proc(5)
    text = b"\0".join(word.encode() for word in words)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
