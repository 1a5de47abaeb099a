"""The encoders of the benchmark, under one name each: Millrace, and sentence-transformers in each of its ways."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sentence_transformers import SentenceTransformer

from tests.benchmarks.ours import Arithmetic, Millrace
from tests.benchmarks.speed.back_ends import BACK_ENDS, export, installed, with_back_end
from tests.benchmarks.theirs import BATCH_ROWS, MAX_TOKENS

ATTENTION = ("sdpa", "eager")  # the first is what sentence-transformers takes unless told otherwise


class Encoder(NamedTuple):
    """One way to encode, and the arithmetic that it has: unit vectors, float32 (texts, width)."""

    name: str
    precision: str
    encode: Callable[[list[str]], np.ndarray]

    def __str__(self) -> str:
        return f"{self.name} ({self.precision})"


def millrace(ours: Millrace, precision: Arithmetic) -> Encoder:
    return Encoder("Millrace", precision, lambda texts: ours.encode(texts, precision))


def peers(folder: Path, scratch: Path) -> Iterator[Encoder]:
    """Yield sentence-transformers in each of its ways; one whose package is missing is named on standard error.

    Args:
        folder: the model, as sentence-transformers reads it.
        scratch: where the exported models go.
    """
    for attention in ATTENTION:
        for precision in ("bf16", "fp32"):
            model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"attn_implementation": attention})
            model.max_seq_length = MAX_TOKENS
            yield _peer(f"torch, {attention} attention", precision, model.bfloat16() if precision == "bf16" else model)
    file = scratch / "model.onnx"
    for back_end in BACK_ENDS:
        if not installed(back_end):
            print(f"{back_end.name} left out: {back_end.package} is not installed (extra bench)", file=sys.stderr)
            continue
        if not file.exists():
            export(folder, file)
        yield _peer(back_end.name, back_end.precision, with_back_end(folder, back_end, file, MAX_TOKENS))


def _peer(name: str, precision: str, model: SentenceTransformer) -> Encoder:
    def encode(texts: list[str]) -> np.ndarray:
        vectors = model.encode(
            texts, batch_size=BATCH_ROWS, normalize_embeddings=True, show_progress_bar=False, convert_to_tensor=True
        )
        return vectors.float().numpy()

    return Encoder(f"sentence-transformers, {name}", precision, encode)
