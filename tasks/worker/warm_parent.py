"""A process that loads the stages' libraries once and forks the workers from it.

`python -m tasks.worker.warm_parent FD ROOM`: FD is the socket of the runner, `infra.compute.warm_parents`, and
its end is the end of this process; ROOM only makes its command long enough for a worker's. No stage runs in it: a
worker's crash, memory, threads and signals are its own. Between the libraries and the pipeline's modules it forks a
process for the consumers of a release, which must not have those modules.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from tasks.worker.process.fork_server import Handlers, name_process, serve
from tasks.worker.process.threads import BINDING, QUIET, THREADS, bind_threads, name_user

LIBRARIES = ("transformers.modeling_utils", "pandas", "sklearn.linear_model")  # the first brings torch


def main(channel: socket.socket) -> NoReturn:
    """Load everything, then fork a worker for each request until the runner ends."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:  # sent to the whole group; the runner decides when its workers end
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(QUIET)
    name_user()
    bind_threads("cpu")
    name_process(("python", "-m", "tasks.worker.warm_parent"))
    _import(LIBRARIES)
    consumers = _start_consumers(channel, handlers)
    from tasks.contracts.stages import Stage  # the pipeline's modules from here on

    _import(("tasks.worker.__main__", *(f"tasks.worker.{stage.name}" for stage in Stage if stage.traits.forked)))
    from tasks.worker.search import consumer

    consumer.forks = consumers
    _freeze()
    serve(channel, _work, handlers)


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        with contextlib.suppress(Exception):  # the worker fails at the same import, and says so
            importlib.import_module(module)


def _freeze() -> None:
    gc.collect()
    gc.freeze()  # a collection in a forked process would copy all pages


def _start_consumers(channel: socket.socket, handlers: Handlers) -> socket.socket:
    """Fork the process of the consumers, which loads their library meanwhile; return the socket for requests.

    It ends with this process and its workers, which hold the socket.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        channel.close()
        ours.close()
        name_process(("python", "-m", "tasks.worker.search.encode_released"))
        _import(["sentence_transformers"])
        _freeze()
        serve(theirs, _consume, handlers)
    theirs.close()
    return ours


def _consume(arguments: list[str], folder: str, environment: Mapping[str, str]) -> NoReturn:
    """Be `encode_released.py ARGUMENTS` in a folder."""
    from tasks.worker.search import encode_released

    _live_in(environment)
    os.chdir(folder)
    encode_released.main(arguments)
    sys.stdout.flush()
    os._exit(0)


def _work(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Be `python -m tasks.worker WORDS`: end with its exit code."""
    from tasks.worker.__main__ import end_process

    _live_in(environment)
    sys.argv = ["tasks.worker", *words]
    name_process(("python", "-m", *sys.argv))
    end_process()


def _live_in(environment: Mapping[str, str]) -> None:
    threads = {name: os.environ[name] for name in (THREADS, *BINDING) if name in os.environ}
    os.environ.clear()
    os.environ.update({**environment, **threads})
    tempfile.tempdir = None  # it was in the old TMPDIR


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
