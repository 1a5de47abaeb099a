"""The export `onnx-int8`: the graph of `onnx` with the weights of its matrix products in int8, by onnxruntime."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

from tasks.worker.online.kinds import Source
from tasks.worker.online.onnx import GRAPH, graph_of, opened

__all__ = ["make", "opened"]


def make(source: Source, folder: Path) -> None:
    """Write the graph; activations are quantized as they come."""
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    root, said = logging.getLogger(), logging.getLogger().level
    plain = graph_of(source)
    root.setLevel(logging.ERROR)  # else it advises a preparation that the exporter has done
    try:
        # Weights of 7 bits: with 8, processors without VNNI instructions overflow 16 bits while they add two products.
        quantization.quantize_dynamic(
            plain, folder / GRAPH, weight_type=quantization.QuantType.QInt8, per_channel=True, reduce_range=True
        )
    finally:
        root.setLevel(said)
