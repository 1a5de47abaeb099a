"""Real worker processes for tests: as ranks of one gloo group, or to be killed.

They are forked from one clean server process that has imported the worker plane already, so each costs
milliseconds, not the seconds of an import.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from tasks.worker.process.job import Rank

DEADLINE_SECONDS = 600
_PRELOAD = [
    "tests.support.processes.kills",
    "tasks.worker.infer",
    "transformers.models.bert.modeling_bert",
    "torch._dynamo",
    "pytest",
]


def start_server() -> None:
    """Start the server process, unless it runs: the first user in a process decides what it has imported."""
    mp.get_context("forkserver").set_forkserver_preload(_PRELOAD)
    forkserver.ensure_running()


def start(function: Callable[..., Any], *arguments: Any) -> ForkServerProcess:
    """Call a function of a module in a process of its own."""
    start_server()
    process = mp.get_context("forkserver").Process(target=function, args=arguments)
    process.start()
    return process


def finish(process: ForkServerProcess) -> int:
    """The exit code of a process, negative if a signal killed it."""
    process.join(DEADLINE_SECONDS)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"the process did not end within {DEADLINE_SECONDS} s")
    return process.exitcode


def run_ranks(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `function(rank, *arguments)` returns in each of `world` processes that can reach each other.

    Raises:
        AssertionError: with the traceback of the first rank that failed.
        EOFError: a rank was killed.
    """
    context = mp.get_context("forkserver")
    port = _free_port()
    pipes = [context.Pipe(duplex=False) for _ in range(world)]
    processes = [
        start(_rank_main, sender, Rank(index, world, index, world), port, function, arguments)
        for index, (_, sender) in enumerate(pipes)
    ]
    results = []
    try:
        for index, (receiver, sender) in enumerate(pipes):
            sender.close()
            if not receiver.poll(DEADLINE_SECONDS):
                raise TimeoutError(f"rank {index} said nothing within {DEADLINE_SECONDS} s")
            result, failure = receiver.recv()
            if failure is not None:
                raise AssertionError(f"rank {index} failed:\n{failure}")
            results.append(result)
    finally:
        for process in processes:
            finish(process)
    return results


def _rank_main(
    sender: Connection, rank: Rank, port: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank.index), WORLD_SIZE=str(rank.world))
    try:
        sender.send((function(rank, *arguments), None))
    except BaseException:
        sender.send((None, traceback.format_exc()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
