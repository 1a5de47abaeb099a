"""The compiled graphs of one program as a checked artifact of the workspace, `compile/<key>/`.

The manifest has the files, checksums and compile seconds of every graph, and the work that first needed it. The graphs
of the health checks are such an artifact too. `compile_ahead.py` chooses the worker that builds that of training.
"""

import contextlib
import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers

from configs.schema.config import Config
from infra.store import lease
from infra.store.base import Store, sha256_of
from infra.store.manifest import (
    MANIFEST,
    CorruptFolder,
    FileEntry,
    Manifest,
    MissingFolder,
    quarantine,
    read_fact,
    read_manifest,
)
from infra.store.records import place
from tasks.contracts.references import CompileRef
from tasks.contracts.usage import GraphUse
from tasks.contracts.workspace import COMPILE_LEASE, COMPILED
from tasks.foundation.errors import CompileError, StoreError
from tasks.foundation.records import Record
from tasks.worker.checks.known_answers import COMPILED_SIZES
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.devices.base import Graph, OnNewGraph
from tasks.worker.process.job import Job
from tasks.worker.process.machine import once_per_machine
from tasks.worker.training.batches import BatchShape
from tasks.worker.training.checkpoint import ModelParts

KIND = "compile"


class CachedGraph(Record):
    """One graph of the manifest: the work that first needed it, seconds to compile, bytes on disk."""

    where: str
    seconds: float
    bytes: int


class CacheContents(Record):
    """The intact part of an artifact. `complete`: a whole trial run met no other graph, and no file is lost."""

    complete: bool
    graphs: dict[str, CachedGraph]
    files: tuple[FileEntry, ...]

    @property
    def seconds(self) -> float:
        """Seconds to compile all graphs."""
        return sum(graph.seconds for graph in self.graphs.values())


NOTHING = CacheContents(complete=False, graphs={}, files=())


def ingredients(
    config: Config, parts: ModelParts, shape: BatchShape, world: int, accelerator: Accelerator
) -> dict[str, Any]:
    """Return the inputs of the key, as JSON: compiler, flags, model, shapes, batch, world, precision, losses."""
    train, infer, averaging = config.train, config.infer, config.train.averaging
    encoder = parts.encoder_config.to_diff_dict()
    return {
        "compiler": accelerator.compiler,
        "transformers": transformers.__version__,
        "flags": accelerator.flags,
        "encoder": {name: value for name, value in encoder.items() if not name.startswith("_")},
        "model": parts.model.shape.model_dump(mode="json"),
        "heads": config.heads.model_dump(mode="json"),
        "training": [*dataclasses.astuple(shape), train.gradcache_chunks],
        "embedding": [infer.batch_sequences, infer.sequence_tokens],
        "world": world,
        "precision": [accelerator.choose_precision(train.precision), accelerator.choose_precision(infer.precision)],
        "update": [
            *(train.weight_decay, train.max_gradient_norm, averaging.ema_half_life_steps if averaging else None),
            config.compiler.gradient_bucket_mib,
        ],
    }


def key_of(ingredients: Mapping[str, Any]) -> str:
    """Return the artifact's key, 16 hex digits."""
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:16]


def prefix_of(key: str) -> str:
    """Return the artifact's folder."""
    return COMPILED.key(key=key)


def ref_to(key: str, graphs: Mapping[str, CachedGraph]) -> CompileRef:
    """Return the artifact's reference for training."""
    return CompileRef(key=key, graphs=len(graphs), seconds=round(sum(graph.seconds for graph in graphs.values()), 3))


def is_complete(store: Store, key: str) -> bool:
    """Return True if the manifest says complete; only `fetch` checks the files."""
    try:
        return read_fact(store, prefix_of(key), "complete", bool)
    except (MissingFolder, CorruptFolder):
        return False


def fetch(store: Store, key: str, into: Path | None) -> CacheContents:
    """Return the intact part of an artifact; copy its files to `into` unless that is None.

    A file that does not match its checksum goes to quarantine/, and its graph counts as not compiled.
    """
    prefix = prefix_of(key)
    try:
        manifest = read_manifest(store, prefix)
    except MissingFolder:
        return NOTHING
    except CorruptFolder as error:
        print(f"{error}; moved to {quarantine(store, f'{prefix}/{MANIFEST}')}", flush=True)
        return NOTHING
    folder = store.local(prefix)
    sound, lost = [], []
    for entry in manifest.files:
        path = folder / entry.name
        if path.is_file() and path.stat().st_size == entry.bytes and sha256_of(path) == entry.sha256:
            sound.append(entry)
            continue
        lost.append(entry.name)
        if store.exists(f"{prefix}/{entry.name}"):
            quarantine(store, f"{prefix}/{entry.name}")
    graphs = {name: CachedGraph.model_validate(graph) for name, graph in manifest.facts["graphs"].items()}
    whole = {name: graph for name, graph in graphs.items() if not any(name in Path(file).parts for file in lost)}
    kept = tuple(entry for entry in sound if any(name in Path(entry.name).parts for name in whole))
    if lost:
        print(
            f"warning: {store.uri}/{prefix}: {lost[0]} does not match its checksum in {MANIFEST}; it is in quarantine/ "
            f"now, and {len(graphs) - len(whole)} of {len(graphs)} graphs must be compiled again",
            flush=True,
        )
        _write_manifest(store, prefix, kept, whole, complete=False, made_of=manifest.facts["made_of"])
    if into is not None:
        for entry in kept:
            target = into / entry.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / entry.name, target)
    return CacheContents(complete=manifest.facts["complete"] and not lost, graphs=whole, files=kept)


def list_cached(store: Store, key: str) -> dict[str, CachedGraph]:
    """Return the graphs of the manifest; files are not checked. Raises StoreError: it is missing or corrupt."""
    graphs = read_manifest(store, prefix_of(key)).facts["graphs"]
    return {name: CachedGraph.model_validate(graph) for name, graph in graphs.items()}


def publish(
    store: Store, made_of: Mapping[str, Any], before: CacheContents, met: Sequence[Graph], folder: Path, complete: bool
) -> CacheContents:
    """Add the new graphs to the artifact, the manifest last; return all graphs.

    The caller must hold the artifact's lease.
    """
    key = key_of(made_of)
    prefix = prefix_of(key)
    fresh = [graph for graph in met if graph.name not in before.graphs]
    files = list(before.files)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if any(graph.name in Path(name).parts for graph in fresh):
            place(store, path, f"{prefix}/{name}")
            files.append(FileEntry(name=name, bytes=path.stat().st_size, sha256=sha256_of(path)))
    graphs = dict(before.graphs)
    for graph in fresh:
        graphs[graph.name] = CachedGraph(where=graph.where, seconds=round(graph.seconds, 4), bytes=graph.bytes)
    _write_manifest(store, prefix, files, graphs, complete, made_of)
    return CacheContents(complete=complete, graphs=graphs, files=tuple(files))


def _write_manifest(
    store: Store,
    prefix: str,
    files: Sequence[FileEntry],
    graphs: Mapping[str, CachedGraph],
    complete: bool,
    made_of: Mapping[str, Any],
) -> None:
    entries = {name: graph.model_dump() for name, graph in graphs.items()}
    facts = {"complete": complete, "graphs": entries, "made_of": dict(made_of)}
    manifest = Manifest(kind=KIND, files=tuple(sorted(files, key=lambda entry: entry.name)), facts=facts)
    store.write(f"{prefix}/{MANIFEST}", manifest.to_json())


def expect(accelerator: Accelerator, store: Store, compiled: CompileRef | None, on_new: OnNewGraph) -> None:
    """Fetch warmup's graphs, and compare every later graph with them; does nothing on devices without graphs.

    If the workers of a machine share a folder, one of them fetches for all.

    Raises:
        CompileError: no compiled graphs exist, or some are lost and `on_new` is fail.
    """
    if accelerator.graphs is None:
        return
    if compiled is None:
        raise CompileError(
            f"accelerator: {accelerator.name} trains only with graphs that warmup has compiled; run warmup first"
        )
    key, folder = compiled.key, accelerator.graph_folder if accelerator.reads_graphs else None
    if folder is None:
        cached = fetch(store, key, None)
    else:
        found = once_per_machine(
            folder / f"fetched-{key}.json", lambda: fetch(store, key, folder).to_json(), f"to fetch compile/{key}"
        )
        cached = CacheContents.model_validate_json(found)
    if len(cached.graphs) < compiled.graphs and on_new == "fail":
        raise CompileError(
            f"{store.uri}/{compiled.prefix} has {len(cached.graphs)} sound graphs of the {compiled.graphs} that warmup "
            "made; run the span again, and warmup compiles the others again"
        )
    accelerator.graphs.expect(cached.graphs, cached.seconds, on_new)


def reuse(accelerator: Accelerator, store: Store, compiled: CompileRef | None) -> None:
    """Fetch warmup's graphs for a stage that may meet others too, for example of an older champion."""
    if accelerator.graphs is not None and compiled is not None:
        expect(accelerator, store, compiled, "note")


def graph_use(accelerator: Accelerator) -> GraphUse | None:
    """Return this process's use of the compile cache, and log it."""
    if accelerator.graphs is None:
        return None
    use = accelerator.graphs.use(accelerator.reads_graphs)
    print(use.sentence, flush=True)
    return use


VERSION = 1  # raise it when the checks compute something else


@contextlib.contextmanager
def provide_check_graphs(job: Job, accelerator: Accelerator) -> Iterator[None]:
    """Fetch the known graphs into the machine's folder; after the block, publish the new ones.

    If the workspace refuses reads or writes, print a warning and compile.
    """
    made_of = _ingredients(job, accelerator)
    known = CompileRef(key=key_of(made_of), graphs=0, seconds=0.0)
    with _only_warning():
        reuse(accelerator, job.store, known)
    yield
    if job.rank.is_main:
        with _only_warning():
            _publish(job, accelerator, made_of)


def _publish(job: Job, accelerator: Accelerator, made_of: dict[str, Any]) -> None:
    assert accelerator.graphs is not None
    assert accelerator.graph_folder is not None
    key, met = key_of(made_of), accelerator.graphs.met
    there = fetch(job.store, key, None)
    if not any(graph.name not in there.graphs for graph in met):
        return
    with lease.wait_for(job.store, COMPILE_LEASE.key(key=key), say=_say):
        there = fetch(job.store, key, None)
        publish(job.store, made_of, there, met, accelerator.graph_folder, complete=True)


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
