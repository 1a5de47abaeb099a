"""A process that loads the stages' libraries once and forks the workers from it.

`python -m tasks.worker.warm_parent FD LIBRARIES FLOW ROOM`: FD is the socket of the runner,
`infra.compute.local`, and its end is the end of this process; FLOW is `run`, or `refresh` to load less; ROOM
only makes its command long enough for a worker's. No stage runs in it: a worker's crash, memory, threads and signals
are its own. Between the libraries and the pipeline's modules it forks a process for the consumers of a release, which
must not have those modules.
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

ENCODER = "transformers.models.bert.modeling_bert"  # brings torch
OF_TRAINING = ("pandas", "sklearn.linear_model")


def main(channel: socket.socket, libraries: str, refresh: bool) -> NoReturn:
    """Load everything, then fork a worker for each request until the runner ends."""
    gc.disable()  # until all is loaded: collections take a fifth of the time of the imports
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:  # sent to the whole group; the runner decides when its workers end
        signal.signal(number, signal.SIG_IGN)
    os.environ.update(QUIET)
    name_user()
    bind_threads("cpu")
    name_process(("python", "-m", "tasks.worker.warm_parent"))
    if libraries == "model":
        _import([ENCODER, *(() if refresh else OF_TRAINING)])
        consumers = _start_consumers(channel, handlers, load=not refresh)
        _import_stages(libraries, refresh)
        from tasks.worker.search import consumer

        consumer.forks = consumers
    else:
        _import_stages(libraries, refresh)
        if not refresh:
            _load_judges()
    from tasks.foundation.process import speak_utf8

    speak_utf8()  # before a fork, whose streams are other files
    _freeze()
    serve(channel, _work, handlers)


def _import_stages(libraries: str, refresh: bool) -> None:
    from tasks.contracts.stages import REFRESHING, Stage  # the pipeline's modules from here on

    stages = REFRESHING if refresh else Stage
    names = ("__main__", *(stage.name for stage in stages if stage.traits.libraries == libraries))
    _import(f"tasks.worker.{name}" for name in names)


def _load_judges() -> None:
    with contextlib.suppress(Exception):  # as in `_import`
        from tasks.foundation.languages import load_identifier
        from tasks.quality.expectations import load_great_expectations

        load_great_expectations()
        load_identifier()


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        with contextlib.suppress(Exception):  # the worker fails at the same import, and says so
            importlib.import_module(module)


def _freeze() -> None:
    gc.freeze()  # a collection in a forked process would copy all pages
    gc.enable()


def _start_consumers(channel: socket.socket, handlers: Handlers, load: bool) -> socket.socket:
    """Fork the process of the consumers; return the socket for requests.

    With `load` it loads their library meanwhile, else each consumer does. It ends with this process and its workers,
    which hold the socket.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        channel.close()
        ours.close()
        name_process(("python", "-m", "tasks.worker.search.encode_released"))
        if load:
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
    main(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], sys.argv[3] == "refresh")
