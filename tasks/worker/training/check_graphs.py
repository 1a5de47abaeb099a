"""Compiled graphs of the health checks: fetched once per machine before the checks, new ones published afterwards.

They depend only on the settings of the checks, so a later run compiles none of them again.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from infra.store import lease
from tasks.contracts.references import CompileRef
from tasks.contracts.workspace import COMPILE_LEASE
from tasks.foundation.errors import StoreError
from tasks.worker.checks.collectives import COMPILED_SIZES
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.process.job import Job
from tasks.worker.training import compile_cache

VERSION = 1  # raise it when the checks compute something else


@contextlib.contextmanager
def provide_check_graphs(job: Job, accelerator: Accelerator) -> Iterator[None]:
    """Fetch the known graphs into the machine's folder; after the block, publish the new ones.

    If the workspace refuses reads or writes, print a warning and compile.
    """
    made_of = _ingredients(job, accelerator)
    known = CompileRef(key=compile_cache.key_of(made_of), graphs=0, seconds=0.0)
    with _only_warning():
        compile_cache.reuse(accelerator, job.store, known)
    yield
    if job.rank.is_main:
        with _only_warning():
            _publish(job, accelerator, made_of)


def _publish(job: Job, accelerator: Accelerator, made_of: dict[str, Any]) -> None:
    assert accelerator.graphs is not None
    assert accelerator.graph_folder is not None
    key, met = compile_cache.key_of(made_of), accelerator.graphs.met
    there = compile_cache.fetch(job.store, key, None)
    if not any(graph.name not in there.graphs for graph in met):
        return
    with lease.wait_for(job.store, COMPILE_LEASE.key(key=key), say=_say):
        there = compile_cache.fetch(job.store, key, None)
        compile_cache.publish(job.store, made_of, there, met, accelerator.graph_folder, complete=True)


def _ingredients(job: Job, accelerator: Accelerator) -> dict[str, Any]:
    health = job.config.health
    return {
        "checks": VERSION,
        "compiler": accelerator.compiler,
        "flags": accelerator.flags,
        "world": job.rank.world,
        "elements": [*COMPILED_SIZES, health.all_reduce_mib * 2**18],
        "product": [health.matmul_size, accelerator.fast_bf16],
    }


@contextlib.contextmanager
def _only_warning() -> Iterator[None]:
    try:
        yield
    except (OSError, StoreError) as error:
        _say(f"warning: the graphs of the health checks are compiled again at each run: {error}")


def _say(line: str) -> None:
    print(line, flush=True)
