"""`python -m tasks.worker.online.encode_exported FOLDER ENTRIES VECTORS`: embeds with an export as the server does.

ENTRIES is a JSON file with the lists `queries` and `items`, of texts with features. VECTORS is the .npz file to write:
`queries` and `items`, float32 (entries, width), and `milliseconds`, float64: of the first queries, each alone and on
one core. A process that has loaded a package which the kind of export must not need, as torch for `onnx`, fails.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from tasks.worker.online.exported import Exported
from tasks.worker.online.kinds import KINDS

TIMED = 200  # queries
WARM = 3  # queries before the first that is timed


def main(folder: Path, entries: Path, vectors: Path) -> None:
    """Embed the entries and write their vectors."""
    given = json.loads(entries.read_text(encoding="utf-8"))
    model = Exported(folder)
    queries, items = model.embed(given["queries"], "query"), model.embed(given["items"], "item")
    np.savez(vectors, queries=queries, items=items, milliseconds=_timed(folder, given["queries"] or given["items"]))
    for name in KINDS[model.kind].unneeded:
        if name in sys.modules:
            sys.exit(f"{folder} was opened by a process that has {name} loaded")


def _timed(folder: Path, entries: list[dict[str, object]]) -> np.ndarray:
    model, took = Exported(folder, threads=1), list[float]()
    for entry in [*entries[:WARM], *entries[:TIMED]]:
        began = time.perf_counter()
        model.embed([entry], "query")
        took.append(time.perf_counter() - began)
    return np.array(took[min(WARM, len(entries)) :]) * 1000


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
