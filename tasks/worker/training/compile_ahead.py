"""Compilation ahead of time: which graphs of a program are there, which worker compiles the others, and when.

One builder at a time, by a lease; others wait for it. It compiles nothing itself: on NeuronCores
`neuron_parallel_compile` does, around a trial run of its own; elsewhere the trial run does, by running.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.store import lease
from infra.store.base import Store
from tasks.contracts.references import CompileRef
from tasks.contracts.workspace import COMPILE_LEASE, COMPILE_SIGNAL, SPEC
from tasks.foundation.errors import CompileError
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.devices.graphs import Graph
from tasks.worker.devices.precompile import collect, list_graphs, precompile
from tasks.worker.process.job import Job, Rank
from tasks.worker.training import compile_cache
from tasks.worker.training.batches import BatchShape
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.compile_cache import Cached

POLL_SECONDS = 1.0
FOUND, COMPILED = "found", "compiled"  # what worker 0 lets the other machines know
PREPARED = "compile-{key}.json"
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class CompileSession:
    """One compilation ahead of time: the graphs that were there before, and how to publish new ones."""

    store: Store
    accelerator: Accelerator
    made_of: dict[str, Any]
    before: Cached
    holds_lease: bool  # of the artifact
    compiled: tuple[Graph, ...] = ()  # by the tool, before the device was opened
    uploaded: Cached | None = None  # what is in the store after that, where other machines wait for it
    published: bool = False

    @property
    def key(self) -> str:
        return compile_cache.key_of(self.made_of)

    def publish(self, complete: bool = True) -> CompileRef:
        """Add what this process compiled to the artifact, and return a reference for training to it."""
        assert self.accelerator.graphs is not None
        assert self.accelerator.graph_folder is not None
        self.published = True
        met, there = [*self.compiled, *self.accelerator.graphs.met], self.uploaded or self.before
        if self.before.complete and not any(graph.name not in self.before.graphs for graph in met):
            return compile_cache.ref_to(self.key, self.before.graphs)
        folder = self.accelerator.graph_folder
        if self.holds_lease:
            now = compile_cache.publish(self.store, self.made_of, there, met, folder, complete)
            return compile_cache.ref_to(self.key, now.graphs)
        with lease.wait_for(self.store, _lease(self.key), say=_say):  # it was complete, but there are new graphs
            there = compile_cache.fetch(self.store, self.key, None)
            now = compile_cache.publish(self.store, self.made_of, there, met, folder, complete)
            return compile_cache.ref_to(self.key, now.graphs)

    def upload(self) -> None:
        """Let the other machines have what the tool compiled."""
        assert self.accelerator.graph_folder is not None
        self.uploaded = compile_cache.publish(
            self.store, self.made_of, self.before, self.compiled, self.accelerator.graph_folder, complete=False
        )


@contextlib.contextmanager
def compiled_graphs(
    job: Job, accelerator: Accelerator, parts: ModelParts, shape: BatchShape
) -> Iterator[CompileSession]:
    """Fetch the graphs, or be their only builder until the block ends; enter it before the device is opened.

    Worker 0 looks which graphs are there. On NeuronCores one worker of each machine then collects the missing ones, on
    all machines at once, as the graphs span all workers. Worker 0 compiles them, once for all, and the other machines
    fetch them; the other workers of a machine wait for its first one, without asking the store. What was compiled is
    published even if the trial run inside the block fails.

    Raises:
        CompileError: a graph did not compile, or the workers of a machine have graphs that worker 0 has not.
        StoreError: the lease was lost.
    """
    made_of = compile_cache.ingredients(job.config, parts, shape, job.rank.world, accelerator)
    key = compile_cache.key_of(made_of)
    into = accelerator.graph_folder if accelerator.reads_graphs else None
    if job.rank.is_main:
        with _builder_lease(job, key) as held:
            before = compile_cache.fetch(job.store, key, into)
            ahead = CompileSession(job.store, accelerator, made_of, before, holds_lease=held is not None)
            _say(_found(before, key, accelerator))
            _signal(job, key, FOUND, before.to_json())
            try:
                if into is not None and not before.complete:
                    ahead.compiled = _compile(job, accelerator.variables, into)
                    if job.rank.world > job.rank.local_world:
                        ahead.upload()
                    _signal(job, key, COMPILED)
                _prepared(job, key, before)
                yield ahead
                if held is not None:
                    held.check()
            except BaseException:
                if not ahead.published and held is not None:
                    with contextlib.suppress(Exception):  # the first error is the one to report
                        ahead.compiled = ahead.compiled or _left_by_the_tool(into)
                        ahead.publish(complete=False)
                raise
    else:
        if job.rank.local > 0:
            before = Cached.model_validate_json(job.machine.wait_for(PREPARED.format(key=key), "its compiled graphs"))
        else:
            found = Cached.model_validate_json(_wait_for(job, key, FOUND))
            before = compile_cache.fetch(job.store, key, into)
            if into is not None and not found.complete:  # worker 0 waits for this machine, also if all is there by now
                _collect(job, key, accelerator.variables, into)
            _prepared(job, key, before)
        yield CompileSession(job.store, accelerator, made_of, before, holds_lease=False)


def _builder_lease(job: Job, key: str) -> contextlib.AbstractContextManager[lease.Held | None]:
    """Wait for the lease, or for None once another builder has finished: a complete artifact needs no lease."""

    def complete() -> bool:  # polled while waiting, so checksums are read only once the manifest says complete
        return compile_cache.is_complete(job.store, key) and compile_cache.fetch(job.store, key, None).complete

    return lease.wait_for(job.store, _lease(key), until=complete, say=_say)


def _lease(key: str) -> str:
    return COMPILE_LEASE.key(key=key)


def _signal(job: Job, key: str, what: str, content: bytes = b"") -> None:
    """Notify the other workers through the store: the process group is not there yet, and its time limit is short."""
    if job.rank.world > 1:
        job.store.write(COMPILE_SIGNAL.of(job.spec, key=f"{key}-{what}"), content)


def _wait_for(job: Job, key: str, what: str) -> bytes:
    signal = COMPILE_SIGNAL.of(job.spec, key=f"{key}-{what}")
    while not job.store.exists(signal):
        time.sleep(POLL_SECONDS)
    return job.store.read(signal)


def _prepared(job: Job, key: str, before: Cached) -> None:
    """Notify the other workers of this machine that the graphs are there: in its folder, where they share one."""
    if job.rank.world > 1:
        job.machine.publish(PREPARED.format(key=key), before.to_json())


def _compile(job: Job, variables: Mapping[str, str], cache: Path) -> tuple[Graph, ...]:
    """Run this stage a second time inside the tool, with a trial run that only collects graphs, and compile those."""
    environment = _environment(job, variables)
    graphs = precompile(_trial(job), cache, _workdir(cache), environment, job.config.compiler.parallel_jobs, _say)
    _say(f"compiled {len(graphs)} graphs ahead of time")
    sizes = list_graphs(cache)
    return tuple(Graph(graph.name, "ahead of time", graph.seconds, sizes[graph.name]) for graph in graphs)


def _collect(job: Job, key: str, variables: Mapping[str, str], cache: Path) -> None:
    """Take part in the trial run, then fetch the graphs that worker 0 has had compiled.

    Raises:
        CompileError: the trial run failed, or met graphs here that worker 0 did not meet.
    """
    names = collect(_trial(job), cache, _workdir(cache), _environment(job, variables), _say)
    _wait_for(job, key, COMPILED)
    there = compile_cache.fetch(job.store, key, cache)
    if other := sorted(names - there.graphs.keys()):
        raise CompileError(
            f"the trial run of this machine met {len(other)} graphs that worker 0 did not meet, such as {other[0]}: "
            "the program depends on the worker's number, and the workers would wait for each other forever"
        )


def _trial(job: Job) -> list[str]:
    """Return the command that runs this stage a second time, by the same workers."""
    uri = f"{job.store.uri}#{SPEC.of(job.spec)}"
    command = [sys.executable, "-m", "tasks.worker", job.spec.stage.value, "--spec", uri]
    if job.rank.world > 1:
        command = [sys.executable, "-m", "torch.distributed.run", *_torchrun_options(job.rank), *command[1:]]
    return command


def _environment(job: Job, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the trial run.

    Args:
        variables: of compiler and runtime; all else is as this worker found it, but for its place among the workers.
    """
    return {
        **{name: value for name, value in job.environment.items() if not _is_of_torchrun(name)},
        **variables,
        "MILLRACE_RUNNER_PID": "",  # its parent is the tool, not the runner
    }


def _workdir(cache: Path) -> Path:
    return cache.with_name(f"{cache.name}-work")


def _left_by_the_tool(cache: Path | None) -> tuple[Graph, ...]:
    """Return the graphs that did compile when others failed; their seconds are lost with the report."""
    left = list_graphs(cache) if cache is not None else {}
    return tuple(Graph(name, "ahead of time", 0.0, size) for name, size in left.items())


def _is_of_torchrun(name: str) -> bool:
    """Return whether torchrun gives each worker a variable of that name."""
    return name in _OF_TORCHRUN or name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_"))


def _torchrun_options(rank: Rank) -> list[str]:
    """Options for the same workers on the same machines; they meet on the next port after that of the outer workers."""
    return [
        f"--nnodes={rank.world // rank.local_world}",
        f"--node-rank={rank.index // rank.local_world}",
        f"--nproc-per-node={rank.local_world}",
        f"--master-addr={os.environ['MASTER_ADDR']}",
        f"--master-port={int(os.environ['MASTER_PORT']) + 1}",
    ]


def _found(before: Cached, key: str, accelerator: Accelerator) -> str:
    if not before.complete:
        return f"compile/{key}: {len(before.graphs)} graphs are there; compiling the rest"
    if accelerator.reads_graphs:
        return f"compile/{key}: all {len(before.graphs)} graphs are there; nothing to compile"
    return (
        f"compile/{key}: all {len(before.graphs)} graphs are known, but this runtime can't read compiled graphs back "
        "and compiles them again; none may be new"
    )


def _say(line: str) -> None:
    print(line, flush=True)
