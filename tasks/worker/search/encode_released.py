"""Encodes queries and items with the model in a folder, as any program of a consumer does.

`python encode_released.py FOLDER ENTRIES VECTORS ...`: ENTRIES is a JSON file with the lists `queries` and `items`,
texts or dicts with features; VECTORS becomes an .npz file of the same two names, float32 (entries, width). Three more
for each further model. Nothing of the pipeline is imported, and no vector is changed.
"""

import json
import sys
from pathlib import Path

import numpy as np


def main(arguments: list[str]) -> None:
    """Encode what the command line names."""
    for number in range(0, len(arguments), 3):
        encode(*(Path(argument) for argument in arguments[number : number + 3]))


def encode(folder: Path, entries: Path, vectors: Path) -> None:
    """Write the vectors of the entries by the model in a folder."""
    from sentence_transformers import SentenceTransformer

    with_code = any(folder.glob("*.py"))
    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=with_code)
    given = json.loads(entries.read_text())
    found = {}
    for side, encode_side in (("queries", model.encode_query), ("items", model.encode_document)):
        made = encode_side(given[side], show_progress_bar=False) if given[side] else np.zeros((0, 0))
        found[side] = np.asarray(made, dtype=np.float32)
    np.savez(vectors, **found)


if __name__ == "__main__":
    main(sys.argv[1:])
