"""Milliseconds of one query on one core: each export of a model against sentence-transformers on torch, in one run.

    python -m tests.benchmarks.speed.exports

All have the same weights, MiniLM-L6, and embed the same texts, taking turns text by text, so that a noisy machine is
noisy to all. Tokenising is included. docs/benchmarks.md has a result; only its ratios say something.
"""

from __future__ import annotations

import os
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from configs.load import load_config
from configs.schema.stages import ExportKind
from tasks.worker.export.export import export_model
from tasks.worker.export.texts_graph import write_exports
from tasks.worker.online.export_folder import FOLDER
from tasks.worker.online.exported import Exported
from tasks.worker.online.kinds import KINDS
from tasks.worker.online.opened import Encoder, ReleasedModel
from tasks.worker.training.start import build_parts
from tests.benchmarks.reviews import CONFIG_FILE

OVERRIDES = ("heads.classification=null",)
TEXTS, MOST_WORDS, WARM = 150, 30, 5
WORDS = ("red", "blue", "small", "large", "lamp", "desk", "kettle", "garden", "chair", "warm", "wooden", "kitchen")


def main() -> None:
    """Make the exports, time them and print the table as Markdown."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sides: dict[str, Encoder] = {"sentence-transformers, torch": ReleasedModel(exported(folder))}
        sides |= {path.name: Exported(path, threads=1) for path in sorted((folder / FOLDER).iterdir())}
        sizes = {path.name: size_of(path) for path in (folder / FOLDER).iterdir()}
        table(sides, sizes, texts())


def exported(folder: Path) -> Path:
    """Write the model's folder with the exports whose packages are installed; return it."""
    config = load_config(CONFIG_FILE, OVERRIDES)
    parts = build_parts(config, ())
    export_model(parts, config, "main-0", folder)
    kinds: list[ExportKind] = [kind for kind in KINDS if all(find_spec(name) for name in KINDS[kind].makers)]
    print("Not made, a package is missing:", ", ".join(KINDS.keys() - kinds) or "none", flush=True)
    for kind, reason in write_exports(parts, "main-0", config.infer.max_tokens, (), kinds, folder).items():
        print(f"{kind} can't be made: {reason}", flush=True)
    return folder


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def texts() -> list[str]:
    """Texts of 2 to MOST_WORDS words, always the same."""
    random = np.random.default_rng(7)
    return [" ".join(random.choice(WORDS, random.integers(2, MOST_WORDS + 1))) for _ in range(TEXTS)]


def table(sides: dict[str, Encoder], sizes: dict[str, int], queries: list[str]) -> None:
    """Time the sides, the first of which the others are compared with."""
    first = next(iter(sides))
    for side in sides.values():
        for query in queries[:WARM]:
            side.embed([query], "query")
    took: dict[str, list[float]] = {name: [] for name in sides}
    vectors: dict[str, list[np.ndarray]] = {name: [] for name in sides}
    for query in queries:
        for name, side in sides.items():
            began = time.perf_counter()
            (vector,) = side.embed([query], "query")
            took[name].append(1000 * (time.perf_counter() - began))
            vectors[name].append(vector)
    print("\n| one query, one core | p50, ms | p99, ms | p50 against torch's | MB | least cosine |")
    print("|---|---:|---:|---:|---:|---:|")
    exact = np.stack(vectors[first])
    for name, each in took.items():
        p50, p99 = np.percentile(each, [50, 99])
        ratio = np.median(took[first]) / p50
        size = f"{sizes[name] / 1e6:.0f}" if name in sizes else ""
        cosine = (np.stack(vectors[name]) * exact).sum(axis=1).min()
        print(f"| {name} | {p50:.2f} | {p99:.2f} | {ratio:.2f} times as fast | {size} | {cosine:.5f} |", flush=True)
    print(f"\nLoad of the machine over the last minute: {os.getloadavg()[0]:.1f} processes on {os.cpu_count()} cores.")


if __name__ == "__main__":
    main()
