"""The export `openvino`: the graph of `onnx` in OpenVINO's own form, fp32, opened by its runtime for processors."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from infra.store.manifest import CorruptFolder
from tasks.worker.online.kinds import Compute, ExportRefused, Source
from tasks.worker.online.onnx import graph_of

GRAPH = "model.xml"  # its weights are beside it, in model.bin


def make(source: Source, folder: Path) -> None:
    import openvino

    plain = graph_of(source)
    try:
        # The reader of its core: `convert_model` would send a report of its use.
        graph = openvino.Core().read_model(str(plain))
    except RuntimeError as error:
        raise ExportRefused(f"OpenVINO can't read its ONNX graph: {error}") from error
    for number, each in enumerate(graph.get_ordered_ops()):
        if each.get_type_name() != "Parameter":  # inputs have names of their own
            each.set_friendly_name(str(number))  # in place of one that counts the operations of this process
    staged = source.scratch / GRAPH
    openvino.save_model(graph, str(staged), compress_to_fp16=False)
    for path in (staged, staged.with_suffix(".bin")):
        shutil.move(path, folder / path.name)


def opened(folder: Path, threads: int) -> Compute:
    import openvino

    # Processors with bf16 would compute in it unless told otherwise.
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
    try:
        graph = openvino.Core().compile_model(str(folder / GRAPH), "CPU", settings)
    except RuntimeError as error:
        said = str(error).strip().splitlines()[-1]  # the lines above it are places in its source
        raise CorruptFolder(f"{folder / GRAPH} can't be opened by openvino: {said}") from error
    inputs: list[str] = [each.get_any_name() for each in graph.inputs]

    def compute(given: Any) -> Any:
        return graph({name: given[name] for name in inputs})[0]

    return compute
