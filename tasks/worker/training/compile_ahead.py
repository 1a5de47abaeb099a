"""Compilation ahead of time: find the missing graphs of a program, and coordinate the workers that compile them.

A lease admits one builder at a time; others wait for it. On NeuronCores a trial run that executes nothing comes before
the device is opened: for PyTorch/XLA `neuron_parallel_compile` compiles the graphs, for TorchNeuron its compile-only
mode. On other devices the trial run compiles the graphs by running them.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.store import lease
from infra.store.base import Store
from tasks.contracts.jobs import address
from tasks.contracts.references import CompileRef
from tasks.contracts.workspace import COMPILE_LEASE, COMPILE_SIGNAL, SPEC
from tasks.foundation.errors import CompileError
from tasks.foundation.nouns import plural
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.devices.base import Graph
from tasks.worker.devices.precompile import AheadCompiler
from tasks.worker.process.job import Job, Rank
from tasks.worker.training import compile_cache
from tasks.worker.training.batches import BatchShape
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.compile_cache import CacheContents

POLL_SECONDS = 1.0
FOUND, COMPILED = "found", "compiled"  # signals of worker 0 to the other machines
PREPARED = "compile-{key}.json"
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class CompileSession:
    """One compilation ahead of time: the graphs found at its start, and the means to publish new ones."""

    store: Store
    accelerator: Accelerator
    made_of: dict[str, Any]
    before: CacheContents
    holds_lease: bool  # this process holds the artifact's lease
    compiled: tuple[Graph, ...] = ()  # compiled by the tool, before the device was opened
    uploaded: CacheContents | None = None  # the stored artifact afterwards, if other machines wait for it
    published: bool = False

    @property
    def key(self) -> str:
        return compile_cache.key_of(self.made_of)

    def publish(self, complete: bool = True) -> CompileRef:
        """Add the graphs compiled by this process to the artifact; return its reference for training."""
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
        with lease.wait_for(self.store, _lease(self.key), say=_say):  # complete before, but new graphs were met
            there = compile_cache.fetch(self.store, self.key, None)
            now = compile_cache.publish(self.store, self.made_of, there, met, folder, complete)
            return compile_cache.ref_to(self.key, now.graphs)

    def upload(self) -> None:
        """Upload the graphs that the tool compiled, for the other machines."""
        assert self.accelerator.graph_folder is not None
        self.uploaded = compile_cache.publish(
            self.store, self.made_of, self.before, self.compiled, self.accelerator.graph_folder, complete=False
        )


@contextlib.contextmanager
def provide_graphs(
    job: Job, accelerator: Accelerator, parts: ModelParts, shape: BatchShape
) -> Iterator[CompileSession]:
    """Fetch the graphs, or be their only builder until the block ends; enter it before the device is opened.

    Worker 0 checks which graphs exist. If a tool compiles them ahead, one worker of each machine then collects the
    missing graphs, on all machines at once, because the graphs span all workers. Worker 0 compiles them once, and the
    other machines fetch them; the other workers of a machine wait for its first worker, without asking the store.
    Compiled graphs are published even if the trial run inside the block fails.

    Raises:
        CompileError: a graph did not compile, or a machine's workers met graphs that worker 0 did not meet.
        StoreError: the lease was lost.
    """
    made_of = compile_cache.ingredients(job.config, parts, shape, job.rank.world, accelerator)
    key, compiler = compile_cache.key_of(made_of), accelerator.ahead_compiler
    into = accelerator.graph_folder if accelerator.reads_graphs else None
    if job.rank.is_main:
        with _builder_lease(job, key) as held:
            before = compile_cache.fetch(job.store, key, into)
            ahead = CompileSession(job.store, accelerator, made_of, before, holds_lease=held is not None)
            _say(_found(before, key, accelerator))
            _signal(job, key, FOUND, before.to_json())
            try:
                if into is not None and compiler is not None and not before.complete:
                    ahead.compiled = _compile(job, compiler, accelerator.variables, into)
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
                        ahead.compiled = ahead.compiled or _left_by_the_tool(compiler, into)
                        ahead.publish(complete=False)
                raise
    else:
        if job.rank.local > 0:
            before = CacheContents.model_validate_json(
                job.machine.wait_for(PREPARED.format(key=key), "its compiled graphs")
            )
        else:
            found = CacheContents.model_validate_json(_wait_for(job, key, FOUND))
            before = compile_cache.fetch(job.store, key, into)
            # Worker 0 waits for it, even if all graphs exist now.
            if into is not None and compiler is not None and not found.complete:
                _collect(job, key, compiler, accelerator.variables, into)
            _prepared(job, key, before)
        yield CompileSession(job.store, accelerator, made_of, before, holds_lease=False)


def _builder_lease(job: Job, key: str) -> contextlib.AbstractContextManager[lease.HeldLease | None]:
    """Wait for the lease; yield None if another builder completes the artifact first."""

    def complete() -> bool:  # polled while waiting, so checksums are read only once the manifest says complete
        job.machine.beat()
        return compile_cache.is_complete(job.store, key) and compile_cache.fetch(job.store, key, None).complete

    return lease.wait_for(job.store, _lease(key), until=complete, say=_say)


def _lease(key: str) -> str:
    return COMPILE_LEASE.key(key=key)


def _signal(job: Job, key: str, what: str, content: bytes = b"") -> None:
    """Notify the other workers through the store: no process group exists yet, and its timeout would be too short."""
    if job.rank.world > 1:
        job.store.write(COMPILE_SIGNAL.of(job.spec, key=f"{key}-{what}"), content)


def _wait_for(job: Job, key: str, what: str) -> bytes:
    signal = COMPILE_SIGNAL.of(job.spec, key=f"{key}-{what}")
    while not job.store.exists(signal):
        job.machine.beat()  # worker 0 is watched by the workers of its own machine
        time.sleep(POLL_SECONDS)
    return job.store.read(signal)


def _prepared(job: Job, key: str, before: CacheContents) -> None:
    """Notify the other workers of this machine that the graphs are in their shared folder, if they have one."""
    if job.rank.world > 1:
        job.machine.publish(PREPARED.format(key=key), before.to_json())


def _compile(job: Job, compiler: AheadCompiler, variables: Mapping[str, str], cache: Path) -> tuple[Graph, ...]:
    """Run this stage a second time, in a trial run that executes no graph, and compile its graphs."""
    environment, jobs = _environment(job, variables), job.config.compiler.parallel_jobs
    graphs = compiler.compile(_trial(job), cache, _workdir(cache), environment, jobs, _sign(job))
    _say(f"compiled {plural(len(graphs), 'graph')} ahead of time")
    sizes = compiler.listed(cache)
    return tuple(Graph(graph.name, "ahead of time", graph.seconds, sizes[graph.name]) for graph in graphs)


def _collect(job: Job, key: str, compiler: AheadCompiler, variables: Mapping[str, str], cache: Path) -> None:
    """Take part in the trial run, then fetch the graphs compiled by worker 0.

    Raises:
        CompileError: the trial run failed, or met graphs here that worker 0 did not meet.
    """
    names = compiler.collect(_trial(job), cache, _workdir(cache), _environment(job, variables), _sign(job))
    _wait_for(job, key, COMPILED)
    there = compile_cache.fetch(job.store, key, cache)
    if other := sorted(names - there.graphs.keys()):
        raise CompileError(
            f"the trial run of this machine met {plural(len(other), 'graph')} that worker 0 did not meet, such as "
            f"{other[0]}: the program depends on the worker's number, and the workers would wait for each other forever"
        )


def _trial(job: Job) -> list[str]:
    """Return the command that runs this stage a second time, by the same workers."""
    uri = address(job.store.uri, SPEC.of(job.spec))
    command = [sys.executable, "-m", "tasks.worker", job.spec.stage.value, "--spec", uri]
    if job.rank.world > 1:
        command = [sys.executable, "-m", "torch.distributed.run", *_torchrun_options(job.rank), *command[1:]]
    return command


def _environment(job: Job, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the trial run.

    Args:
        variables: variables of compiler and runtime; the others are this worker's, without torchrun's.
    """
    return {
        **{name: value for name, value in job.environment.items() if not _is_of_torchrun(name)},
        **variables,
        "MILLRACE_RUNNER_PID": "",  # its parent is the tool, not the runner
    }


def _workdir(cache: Path) -> Path:
    return cache.with_name(f"{cache.name}-work")


def _left_by_the_tool(compiler: AheadCompiler | None, cache: Path | None) -> tuple[Graph, ...]:
    """Return the graphs that compiled although others failed; their compile seconds are unknown."""
    left = compiler.listed(cache) if compiler is not None and cache is not None else {}
    return tuple(Graph(name, "ahead of time", 0.0, size) for name, size in left.items())


def _is_of_torchrun(name: str) -> bool:
    """Return True if torchrun sets an environment variable of this name for each worker."""
    return name in _OF_TORCHRUN or name.startswith(("TORCHELASTIC_", "GROUP_", "ROLE_"))


def _torchrun_options(rank: Rank) -> list[str]:
    """Return options for the same workers on the same machines; the rendezvous uses the next port."""
    return [
        f"--nnodes={rank.world // rank.local_world}",
        f"--node-rank={rank.index // rank.local_world}",
        f"--nproc-per-node={rank.local_world}",
        f"--master-addr={os.environ['MASTER_ADDR']}",
        f"--master-port={int(os.environ['MASTER_PORT']) + 1}",
    ]


def _found(before: CacheContents, key: str, accelerator: Accelerator) -> str:
    where = CompileRef(key=key, graphs=0, seconds=0.0).prefix
    if not before.complete:
        return f"{where}: {len(before.graphs)} graphs are there; compiling the rest"
    if accelerator.reads_graphs:
        return f"{where}: all {len(before.graphs)} graphs are there; nothing to compile"
    return (
        f"{where}: all {len(before.graphs)} graphs are known, but this runtime can't read compiled graphs back "
        "and compiles them again; none may be new"
    )


def _sign(job: Job) -> Callable[[str], None]:
    """Return a function that prints a line of the tool's, which is a sign of work for the waiting workers."""

    def say(line: str) -> None:
        job.machine.beat()
        _say(line)

    return say


def _say(line: str) -> None:
    print(line, flush=True)
