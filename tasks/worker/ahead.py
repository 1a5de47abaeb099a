"""Compilation ahead of time: whether a program's graphs are there, who compiles them, and that all workers know.

One builder at a time, by a lease; others wait for it. Compiles nothing itself: on NeuronCores
`neuron_parallel_compile` does, around a trial run of its own; elsewhere the trial run, by running.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import lease
from infra.store import Store
from tasks.contracts import CompileRef
from tasks.worker import compile_cache
from tasks.worker.accelerators import Accelerator
from tasks.worker.checkpoint import ModelParts
from tasks.worker.compile_cache import Cached
from tasks.worker.graphs import Graph
from tasks.worker.job import Job, Rank
from tasks.worker.neuron.precompile import compile_ahead, list_graphs

POLL_SECONDS = 1.0
FOUND = "found"


@dataclass
class Ahead:
    """The graphs that were there before the trial run, and the way to publish those that it adds."""

    store: Store
    accelerator: Accelerator
    made_of: dict[str, Any]
    before: Cached
    alone: bool  # whether the artifact's lease is held
    compiled: tuple[Graph, ...] = ()  # by a tool, before the device was opened
    published: bool = False

    @property
    def key(self) -> str:
        return compile_cache.key_of(self.made_of)

    def publish(self, complete: bool = True) -> CompileRef:
        """Add what this process compiled to the artifact; after this it is what training may meet."""
        assert self.accelerator.graphs is not None
        assert self.accelerator.graph_folder is not None
        self.published = True
        met = [*self.compiled, *self.accelerator.graphs.met]
        if self.before.complete and not any(graph.name not in self.before.graphs for graph in met):
            return compile_cache.ref_to(self.key, self.before.graphs)
        folder = self.accelerator.graph_folder
        if self.alone:
            return compile_cache.publish(self.store, self.made_of, self.before, met, folder, complete)
        with lease.wait_for(self.store, _lease(self.key), say=_say):  # it was complete, and yet there are others
            now = compile_cache.fetch(self.store, self.key, None)
            return compile_cache.publish(self.store, self.made_of, now, met, folder, complete)


@contextlib.contextmanager
def compiled_ahead(job: Job, accelerator: Accelerator, parts: ModelParts) -> Iterator[Ahead]:
    """Before the device is opened: fetch the graphs, or be their only builder until the block ends.

    Worker 0 finds out what is there. On NeuronCores one worker of each machine then compiles what is missing, all
    machines at once, as the graphs' workers span them; the others wait for theirs. What was compiled is published also
    when the trial run inside the block fails.

    Raises:
        CompileError: a graph did not compile.
        StoreError: the lease was lost.
    """
    made_of = compile_cache.ingredients(job.config, parts, job.rank.world, accelerator)
    key = compile_cache.key_of(made_of)
    into = accelerator.graph_folder if accelerator.reads_graphs else None
    if job.rank.is_main:
        with _built_alone(job, key) as held:
            before = compile_cache.fetch(job.store, key, into)
            ahead = Ahead(job.store, accelerator, made_of, before, alone=held is not None)
            _say(_found(before, key, accelerator))
            _tell(job, key, FOUND)
            try:
                ahead.compiled = _compile_missing(job, into, before)
                _tell(job, key, _ready(job.rank))
                yield ahead
                if held is not None:
                    held.check()
            except BaseException:
                if not ahead.published and held is not None:
                    with contextlib.suppress(Exception):  # the first error is the one to be told
                        ahead.compiled = ahead.compiled or _left_by_the_tool(into)
                        ahead.publish(complete=False)
                raise
    else:
        first_of_its_machine = job.rank.local == 0
        _wait(job, key, FOUND if first_of_its_machine else _ready(job.rank))
        before = compile_cache.fetch(job.store, key, into if first_of_its_machine else None)
        if first_of_its_machine:
            _compile_missing(job, into, before)
            _tell(job, key, _ready(job.rank))
        yield Ahead(job.store, accelerator, made_of, before, alone=False)


def _built_alone(job: Job, key: str) -> contextlib.AbstractContextManager[lease.Held | None]:
    """The lease; or None once another builder has finished, as what is complete needs none to be read."""

    def whole() -> bool:  # asked again and again while waiting: checksums only once the manifest says so
        return compile_cache.is_complete(job.store, key) and compile_cache.fetch(job.store, key, None).complete

    return lease.wait_for(job.store, _lease(key), until=whole, say=_say)


def _lease(key: str) -> str:
    return f"{compile_cache.prefix_of(key)}.lease"


def _ready(rank: Rank) -> str:
    return f"ready-{rank.index // rank.local_world}"


def _tell(job: Job, key: str, what: str) -> None:
    """Let the other workers know, through the store: the process group is not there yet, and has no such patience."""
    if job.rank.world > 1:
        job.store.write(f"{job.spec.attempt_prefix}/compile-{key}-{what}", b"")


def _wait(job: Job, key: str, what: str) -> None:
    while not job.store.exists(f"{job.spec.attempt_prefix}/compile-{key}-{what}"):
        time.sleep(POLL_SECONDS)


def _compile_missing(job: Job, into: Path | None, before: Cached) -> tuple[Graph, ...]:
    """Nothing where the trial run itself compiles, or where all is there."""
    return () if into is None or before.complete else _compile(job, into)


def _compile(job: Job, cache: Path) -> tuple[Graph, ...]:
    """Run this very stage once more below the tool, with a trial run that only collects graphs."""
    rank, uri = job.rank, f"{job.store.uri}#{job.spec.attempt_prefix}/spec.json"
    command = [sys.executable, "-m", "tasks.worker", job.spec.stage.value, "--spec", uri]
    if rank.world > 1:
        command = [sys.executable, "-m", "torch.distributed.run", *_torchrun_options(rank), *command[1:]]
    report = compile_ahead(
        command,
        cache,
        cache.with_name(f"{cache.name}-work"),
        {"MILLRACE_RUNNER_PID": ""},  # the tool is its parent, not the runner
        job.config.compiler.parallel_jobs,
        _say,
    )
    _say(f"compiled {len(report.graphs)} graphs ahead of time")
    sizes = {name: graph.bytes for name, graph in list_graphs(cache).items()}
    return tuple(Graph(graph.name, "ahead of time", graph.seconds, sizes[graph.name]) for graph in report.graphs)


def _left_by_the_tool(cache: Path | None) -> tuple[Graph, ...]:
    """What did compile where others did not; how long each took is lost with the report."""
    left = list_graphs(cache).values() if cache is not None else ()
    return tuple(Graph(graph.name, "ahead of time", 0.0, graph.bytes) for graph in left)


def _torchrun_options(rank: Rank) -> list[str]:
    """The same workers on the same machines, meeting on the port after the one that the workers around them use."""
    return [
        f"--nnodes={rank.world // rank.local_world}",
        f"--node-rank={rank.index // rank.local_world}",
        f"--nproc-per-node={rank.local_world}",
        f"--master-addr={os.environ['MASTER_ADDR']}",
        f"--master-port={int(os.environ['MASTER_PORT']) + 1}",
    ]


def _found(before: Cached, key: str, accelerator: Accelerator) -> str:
    if not before.complete:
        return f"compile/{key}: {len(before.graphs)} graphs are there; compiling"
    if accelerator.reads_graphs:
        return f"compile/{key}: all {len(before.graphs)} graphs are there; nothing to compile"
    return (
        f"compile/{key}: all {len(before.graphs)} graphs are known, but this runtime can't read compiled graphs back "
        "and compiles them again; none may be new"
    )


def _say(line: str) -> None:
    print(line, flush=True)
