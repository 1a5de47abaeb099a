"""The other back ends that sentence-transformers knows, under its own `encode`: ONNX Runtime and OpenVINO.

Its loaders of them come with Optimum, whose releases ask for an older transformers than sentence-transformers 6 does
(docs/benchmarks.md), so the encoder is exported here. Everything around it is sentence-transformers' own: tokenising,
sorting by length, padding, pooling, normalising. Needs the extra `bench`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from transformers import PretrainedConfig
from transformers.modeling_outputs import BaseModelOutput

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
THREADS = len(os.sched_getaffinity(0))

# From one batch's arrays, int64 (texts, tokens), in the order of INPUTS, to float32 (texts, tokens, width).
Compute = Callable[[tuple[np.ndarray, ...]], np.ndarray]


class BackEnd(NamedTuple):
    """A way to compute the encoder: its package, its arithmetic, and how it opens an ONNX file of an encoder."""

    name: str
    package: str
    precision: str  # bf16, fp32 or int8
    open: Callable[[Path, PretrainedConfig], Compute]


def installed(back_end: BackEnd) -> bool:
    return importlib.util.find_spec(back_end.package) is not None


def with_back_end(folder: Path, back_end: BackEnd, file: Path, max_tokens: int) -> SentenceTransformer:
    """Return the model of a folder, its encoder computed by the back end from the exported `file`."""
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = max_tokens
    encoder: Any = model[0].model
    model[0].model = _Exported(back_end.open(file, encoder.config), encoder.config)
    return model


def export(folder: Path, file: Path) -> None:
    """Write the encoder of a sentence-transformers folder as ONNX, for any number of texts and tokens."""
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"attn_implementation": "eager"})
    encoder: Any = model[0].model
    example = tuple(torch.ones(2, 8, dtype=torch.int64) for _ in INPUTS)
    torch.onnx.export(
        _LastHidden(encoder).eval(),
        example,
        str(file),
        input_names=list(INPUTS),
        output_names=["last_hidden_state"],
        dynamic_axes={name: {0: "texts", 1: "tokens"} for name in (*INPUTS, "last_hidden_state")},
        opset_version=18,
        dynamo=False,
    )


class _LastHidden(torch.nn.Module):
    """The encoder with plain tensors in and out, as the exporter wants it."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self._encoder = encoder

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        return self._encoder(input_ids=ids, attention_mask=mask, token_type_ids=types).last_hidden_state


class _Exported(torch.nn.Module):
    """Stands where sentence-transformers has the encoder."""

    def __init__(self, compute: Compute, config: PretrainedConfig) -> None:
        super().__init__()
        self.config, self._compute = config, compute

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor, **_: Any
    ) -> BaseModelOutput:
        arrays = tuple(each.numpy() for each in (input_ids, attention_mask, token_type_ids))
        hidden: Any = torch.from_numpy(self._compute(arrays))
        return BaseModelOutput(last_hidden_state=hidden)


# --- the runtimes, which not every machine has installed ------------------------------------------------------------


def _onnx_runtime(file: Path, config: PretrainedConfig) -> Compute:
    onnxruntime = importlib.import_module("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda arrays: session.run(None, dict(zip(INPUTS, arrays, strict=True)))[0]


def _fused_onnx_runtime(file: Path, config: PretrainedConfig) -> Compute:
    """With attention, GELU and layer norm fused, which sentence-transformers calls an optimised model."""
    fused = file.with_suffix(".fused.onnx")
    optimizer = importlib.import_module("onnxruntime.transformers.optimizer")
    heads, width = config.num_attention_heads, config.hidden_size
    optimizer.optimize_model(str(file), "bert", num_heads=heads, hidden_size=width).save_model_to_file(str(fused))
    return _onnx_runtime(fused, config)


def _int8_onnx_runtime(file: Path, config: PretrainedConfig) -> Compute:
    """Weights in int8, activations quantised as they come, which sentence-transformers calls dynamic."""
    quantization, small = importlib.import_module("onnxruntime.quantization"), file.with_suffix(".int8.onnx")
    quantization.quantize_dynamic(file, small, weight_type=quantization.QuantType.QInt8, per_channel=True)
    return _onnx_runtime(small, config)


def _openvino(file: Path, precision: str) -> Compute:
    openvino = importlib.import_module("openvino")
    hints = {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": THREADS}
    compiled = openvino.Core().compile_model(file, "CPU", hints)
    return lambda arrays: compiled(dict(zip(INPUTS, arrays, strict=True)))[0]


BACK_ENDS = (
    BackEnd("ONNX Runtime", "onnxruntime", "fp32", _onnx_runtime),
    BackEnd("ONNX Runtime, fused", "onnxruntime", "fp32", _fused_onnx_runtime),
    BackEnd("OpenVINO", "openvino", "fp32", lambda file, config: _openvino(file, "f32")),
    BackEnd("OpenVINO", "openvino", "bf16", lambda file, config: _openvino(file, "bf16")),
    BackEnd("ONNX Runtime, dynamic", "onnxruntime", "int8", _int8_onnx_runtime),
)
