"""A process that forks another one for each request, and the request; see `tasks.worker.warm_parent`."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tasks.worker.process import sigterm

Handlers = Mapping[signal.Signals, Any]
REQUEST_BYTES = 1 << 18  # more than a socket of this kind takes


def serve(channel: socket.socket, work: Callable[..., NoReturn], handlers: Handlers) -> NoReturn:
    """Fork a process for each request until the other end of the channel is closed.

    Args:
        work: gets the request's values as keywords, with output and errors in place, and ends the process.
        handlers: of the signals that this process ignores, for the forked ones.
    """
    sigterm.forked_from = os.getpid()  # before a fork: this process may have ended when the forked one begins
    running: dict[int, tuple[int, socket.socket]] = {}  # by the process's pidfd: its pid, and the socket for its end
    while True:
        ready, _, _ = select.select([channel.fileno(), *running], [], [])
        for pidfd in set(ready) & set(running):
            pid, news = running.pop(pidfd)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.close(pidfd)
            with news, contextlib.suppress(OSError):  # who asked no longer listens
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
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.close(output)
            _do(work, json.loads(message))
        os.close(output)
        pidfd = os.pidfd_open(pid)
        running[pidfd] = (pid, news)
        with contextlib.suppress(OSError):
            socket.send_fds(news, [b"begun"], [pidfd])


def _do(work: Callable[..., NoReturn], request: Mapping[str, Any]) -> NoReturn:
    """Do the work, and end the process at once: at an orderly end, libraries print lines that hide an error."""
    try:
        sigterm.die_with_parent()
        work(**request)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


class Ended(NamedTuple):
    """The exit code of a forked process, negative after a signal, and its output."""

    code: int
    output: str


def run_forked(channel: socket.socket, **request: Any) -> Ended:
    """Let a server fork a process, and wait for its end. Raises OSError: the server has ended."""
    read_end, write_end = os.pipe()
    news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with news, os.fdopen(read_end, errors="replace", encoding="utf-8") as output:
        try:
            socket.send_fds(channel, [json.dumps(request).encode()], [write_end, theirs.fileno()])
        finally:
            os.close(write_end)
            theirs.close()
        said = output.read()
        while message := news.recv(64):
            if message != b"begun":
                return Ended(int(message), said)
    raise BrokenPipeError("the process that forks was ended")


def name_process(words: Sequence[str]) -> None:
    """Show `words` as this process's command in `ps`: write over its own, cut to the same length.

    Not by setproctitle, which also writes over the variables in /proc/PID/environ.
    """
    fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, see proc(5)
    text = b"\0".join(word.encode() for word in words)[: end - start - 1]
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
