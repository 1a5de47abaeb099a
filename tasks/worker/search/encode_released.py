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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    queries = vectors_of(model, "query", given["queries"], given["query_entities"])
    items = vectors_of(model, "document", given["items"], given["item_entities"])
    np.savez(vectors, queries=queries, items=items, loading=loading)


def vectors_of(model: Any, side: str, entries: Sequence[Any], entities: Sequence[str | None]) -> np.ndarray:
    """Return vectors, float32 (entries, width); width 0 without an entry.

    Args:
        model: a SentenceTransformer.
        side: `query` or `document`.
        entities: one for each entry, which gets its prompt if it has one.
    """
    encode_side = model.encode_query if side == "query" else model.encode_document
    names = np.array([name if (name := f"{side}:{each}") in model.prompts else "" for each in entities])
    made = np.zeros((0, 0), dtype=np.float32)
    for name in sorted(set(names)):
        own = np.flatnonzero(names == name)
        chosen = [entries[place] for place in own.tolist()]
        some = encode_side(chosen, prompt_name=name or None, show_progress_bar=False)
        made = made if made.size else np.zeros((len(names), some.shape[1]), dtype=np.float32)
        made[own] = some
    return made


if __name__ == "__main__":
    main(sys.argv[1:])
