"""Encode queries and items with an exported model, as a consumer's program does.

`python encode_released.py FOLDER ENTRIES VECTORS ...`, three arguments per model. ENTRIES is a JSON file with the lists
`queries` and `items` (texts, or dicts with features), `query_entities` and `item_entities` (the entity of each, or
null), and `trust`: true if the folder's code is the pipeline's own. VECTORS is the .npz file to write, with `queries`
and `items`, float32 (entries, width), and `loading`, the seconds of importing the library. Nothing of the pipeline is
imported, and no vector is changed.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np


def main(arguments: list[str]) -> None:
    """Encode the entries of each model on the command line."""
    for number in range(0, len(arguments), 3):
        encode(*(Path(argument) for argument in arguments[number : number + 3]))


def encode(folder: Path, entries: Path, vectors: Path) -> None:
    """Encode the entries with the model in a folder, and write the vectors."""
    began = time.monotonic()
    from sentence_transformers import SentenceTransformer

    loading = time.monotonic() - began
    given = json.loads(entries.read_text(encoding="utf-8"))
    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=given["trust"])
    found = {}
    for side, kind, encode_side in (
        ("queries", "query", model.encode_query),
        ("items", "document", model.encode_document),
    ):
        about = [f"{kind}:{each}" for each in given[f"{'query' if kind == 'query' else 'item'}_entities"]]
        names = np.array([name if name in model.prompts else "" for name in about])
        made = np.zeros((0, 0), dtype=np.float32)
        for name in sorted(set(names)):
            own = np.flatnonzero(names == name)
            entries_of = [given[side][place] for place in own]
            some = encode_side(entries_of, prompt_name=name or None, show_progress_bar=False)
            made = made if made.size else np.zeros((len(names), some.shape[1]), dtype=np.float32)
            made[own] = some
        found[side] = made
    np.savez(vectors, **found, loading=loading)


if __name__ == "__main__":
    main(sys.argv[1:])
