"""Milliseconds of one query on one core: each export of a model against sentence-transformers on torch, in one run.

    python -m tests.benchmarks.speed.exports [--keep]

All have the same weights, MiniLM-L6, and embed the same texts, taking turns text by text, so that a noisy machine is
noisy to all. Tokenising is included.
"""

from __future__ import annotations

import argparse
import os
import sys
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
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.benchmarks.reviews import CONFIG_FILE

OVERRIDES = ("heads.classification=null",)
TEXTS, MOST_WORDS, WARM = 150, 30, 5
WORDS = ("red", "blue", "small", "large", "lamp", "desk", "kettle", "garden", "chair", "warm", "wooden", "kitchen")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_keep(parser)
    keep = parser.parse_args().keep
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    with measuring("exports", keep) as sheet, tempfile.TemporaryDirectory(prefix="millrace-exports-") as name:
        folder = Path(name)
        sides: dict[str, Encoder] = {"sentence-transformers, torch": ReleasedModel(exported(folder))}
        sides |= {path.name: Exported(path, threads=1) for path in sorted((folder / FOLDER).iterdir())}
        measure(sheet, sides, folder / FOLDER)


def exported(folder: Path) -> Path:
    """Write the model's folder with the exports whose packages are installed; return it."""
    config = load_config(CONFIG_FILE, OVERRIDES)
    parts = build_parts(config, ())
    export_model(parts, config, "main-0", folder)
    kinds: list[ExportKind] = [kind for kind in KINDS if all(find_spec(name) for name in KINDS[kind].makers)]
    not_made = dict.fromkeys(KINDS.keys() - kinds, "a package is missing")
    not_made |= write_exports(parts, "main-0", config.infer.max_tokens, (), kinds, folder)
    for kind, reason in not_made.items():
        print(f"{kind} can't be made: {reason}", file=sys.stderr)
    return folder


def texts() -> list[str]:
    """Texts of 2 to MOST_WORDS words, always the same."""
    random = np.random.default_rng(7)
    return [" ".join(random.choice(WORDS, random.integers(2, MOST_WORDS + 1))) for _ in range(TEXTS)]


def measure(sheet: Sheet, sides: dict[str, Encoder], exports: Path) -> None:
    """Time the sides, the first of which the others are compared with, and add a row for each."""
    first, queries = next(iter(sides)), texts()
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
    sheet.table("one query, one core", "p50, ms", "p99, ms", "times as fast by p50", "MB", "least cosine")
    exact = np.stack(vectors[first])
    for name, each in took.items():
        p50, p99 = map(float, np.percentile(each, [50, 99]))
        size = sum(path.stat().st_size for path in (exports / name).glob("*"))
        cosine = (np.stack(vectors[name]) * exact).sum(axis=1).min()
        sheet.row(name, p50, p99, float(np.median(took[first])) / p50, size / 1e6 if size else "", f"{cosine:.5f}")


if __name__ == "__main__":
    main()
