"""The compiled graphs of one program as a checked artifact of the workspace, `compile/<key>/`.

Every graph has its files, checksums, seconds and the place where it was met in the manifest. Who builds it, and when,
is `ahead.py`'s business.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from configs.schema import Config
from infra.manifest import MANIFEST, CorruptFolder, FileEntry, Manifest, MissingFolder, quarantine, read_manifest
from infra.store import Store, sha256_of
from tasks.contracts import CompileRef
from tasks.errors import CompileError
from tasks.records import Record
from tasks.worker.accelerators import Accelerator
from tasks.worker.checkpoint import ModelParts
from tasks.worker.graphs import Graph, OnNewGraph

KIND = "compile"


class CachedGraph(Record):
    """One graph of the manifest: what was being done when it was met, seconds to compile, bytes on disk."""

    where: str
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Cached:
    """What is sound of an artifact. `complete`: a whole trial run met no other graph, and no file was lost since."""

    complete: bool
    graphs: dict[str, CachedGraph]
    files: tuple[FileEntry, ...]

    @property
    def seconds(self) -> float:
        """What compiling all of it took."""
        return sum(graph.seconds for graph in self.graphs.values())


NOTHING = Cached(complete=False, graphs={}, files=())


def ingredients(config: Config, parts: ModelParts, world: int, accelerator: Accelerator) -> dict[str, Any]:
    """All that the graphs depend on, as JSON: compiler, flags, model, shapes, batch, world, precision, objective."""
    train, infer = config.train, config.infer
    encoder = parts.encoder_config.to_diff_dict()
    return {
        "compiler": accelerator.compiler,
        "transformers": transformers.__version__,
        "flags": accelerator.flags,
        "encoder": {name: value for name, value in encoder.items() if not name.startswith("_")},
        "model": parts.model.shape.model_dump(mode="json"),
        "heads": config.heads.model_dump(mode="json"),
        "shapes": train.shapes.model_dump(mode="json"),
        "batch_rows": [train.batch_rows, infer.batch_rows],
        "rungs": list(infer.token_rungs),
        "world": world,
        "precision": [accelerator.choose_precision(train.precision), accelerator.choose_precision(infer.precision)],
        "update": [train.weight_decay, train.max_gradient_norm],
    }


def key_of(ingredients: Mapping[str, Any]) -> str:
    """16 hex digits that name the artifact."""
    return hashlib.sha256(json.dumps(ingredients, sort_keys=True).encode()).hexdigest()[:16]


def prefix_of(key: str) -> str:
    """The artifact's folder."""
    return f"compile/{key}"


def ref_to(key: str, graphs: Mapping[str, CachedGraph]) -> CompileRef:
    """What training is given."""
    return CompileRef(key=key, graphs=len(graphs), seconds=round(sum(graph.seconds for graph in graphs.values()), 3))


def is_complete(store: Store, key: str) -> bool:
    """What the manifest says; whether the files are sound, `fetch` finds out."""
    try:
        return bool(read_manifest(store, prefix_of(key)).facts["complete"])
    except (MissingFolder, CorruptFolder):
        return False


def fetch(store: Store, key: str, into: Path | None) -> Cached:
    """What is sound of an artifact, and its files below `into` where the runtime can read them back.

    A file that does not match its checksum goes to quarantine/, and its graph counts as never compiled.
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
    return Cached(manifest.facts["complete"] and not lost, whole, kept)


def publish(
    store: Store, made_of: Mapping[str, Any], before: Cached, met: Sequence[Graph], folder: Path, complete: bool
) -> CompileRef:
    """Upload what was compiled beside what is there already; the manifest last. Hold the artifact's lease."""
    key = key_of(made_of)
    prefix = prefix_of(key)
    fresh = [graph for graph in met if graph.name not in before.graphs]
    files = list(before.files)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if any(graph.name in Path(name).parts for graph in fresh):
            store.upload(path, f"{prefix}/{name}")
            files.append(FileEntry(name=name, bytes=path.stat().st_size, sha256=sha256_of(path)))
    graphs = dict(before.graphs)
    for graph in fresh:
        graphs[graph.name] = CachedGraph(where=graph.where, seconds=round(graph.seconds, 4), bytes=graph.bytes)
    _write_manifest(store, prefix, files, graphs, complete, made_of)
    return ref_to(key, graphs)


def _write_manifest(
    store: Store,
    prefix: str,
    files: Sequence[FileEntry],
    graphs: Mapping[str, CachedGraph],
    complete: bool,
    made_of: Mapping[str, Any],
) -> None:
    told = {name: graph.model_dump() for name, graph in graphs.items()}
    facts = {"complete": complete, "graphs": told, "made_of": dict(made_of)}
    manifest = Manifest(kind=KIND, files=tuple(sorted(files, key=lambda entry: entry.name)), facts=facts)
    store.write(f"{prefix}/{MANIFEST}", manifest.to_json())


def expect(accelerator: Accelerator, store: Store, compiled: CompileRef | None, on_new: OnNewGraph) -> None:
    """Fetch what warmup compiled, and from now on hold every graph against it; nothing on devices without graphs.

    Raises:
        CompileError: there are no compiled graphs, or some are lost, and `on_new` is fail.
    """
    if accelerator.graphs is None:
        return
    if compiled is None:
        raise CompileError(f"accelerator: {accelerator.name} trains only what warmup has compiled; run warmup first")
    cached = fetch(store, compiled.key, accelerator.graph_folder if accelerator.reads_graphs else None)
    if len(cached.graphs) < compiled.graphs and on_new == "fail":
        raise CompileError(
            f"{store.uri}/{compiled.prefix} has {len(cached.graphs)} sound graphs of the {compiled.graphs} that warmup "
            "made; run the span again, and warmup makes the others anew"
        )
    accelerator.graphs.expect(cached.graphs, cached.seconds, on_new)


def reuse(accelerator: Accelerator, store: Store, compiled: CompileRef | None) -> None:
    """Fetch what warmup compiled for a stage that may meet other graphs as well, as those of an older champion."""
    if accelerator.graphs is not None and compiled is not None:
        expect(accelerator, store, compiled, "note")
