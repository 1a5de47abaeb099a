"""The export `onnx`: one graph in fp32 by torch's own exporter, opened by onnxruntime."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.store.manifest import CorruptFolder
from tasks.worker.online.export_folder import CATEGORICAL, IDS, MASK, NUMERIC, VECTORS
from tasks.worker.online.kinds import Compute, ExportRefused, Source

GRAPH = "model.onnx"
MOST_BYTES = 2**31 - 2**20  # bytes of weights: protobuf, the format of a graph, ends at 2 GiB
OPSET = 20  # has GELU, and every released onnxruntime since 1.17 knows it


def make(source: Source, folder: Path) -> None:
    shutil.copyfile(graph_of(source), folder / GRAPH)


def opened(folder: Path, threads: int) -> Compute:
    import onnxruntime

    graph, options = folder / GRAPH, onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors: a warning about the machine is no line for each process
    try:
        session: Any = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no class of their own
        raise CorruptFolder(f"{graph} can't be opened by onnxruntime: {error}") from error
    inputs: list[str] = [each.name for each in session.get_inputs()]
    return lambda given: session.run([VECTORS], {name: given[name] for name in inputs})[0]


def graph_of(source: Source) -> Path:
    """Return the file of the graph, made at the first call.

    Raises:
        ExportRefused: it is too large, or has an operation that ONNX lacks.
    """
    file = source.scratch / GRAPH
    if not file.exists():
        _save(_exported(source), file)
    return file


def _exported(source: Source) -> Any:
    import torch

    size = sum(each.numel() * each.element_size() for each in source.graph.parameters())
    if size > MOST_BYTES:
        raise ExportRefused(f"its weights have {size / 2**30:.1f} GiB, and a graph in one file holds up to 2 GiB")
    any_number = torch.export.Dim.DYNAMIC
    shapes: dict[str, Any] = {IDS: {0: any_number, 1: any_number}, MASK: {0: any_number, 1: any_number}}
    shapes |= {name: {0: any_number} for name in (NUMERIC, CATEGORICAL) if name in source.given}
    said = logging.getLogger("torch.onnx")
    before = said.level
    said.setLevel(logging.ERROR)  # else a line for each operation of torchvision, which is not here
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's, about its own code
            made = torch.onnx.export(
                source.graph, (), kwargs=source.given, input_names=list(source.given), output_names=[VECTORS],
                dynamic_shapes=shapes, opset_version=OPSET, dynamo=True, verbose=False,
            )  # fmt: skip
    except Exception as error:  # the exporter raises many kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ExportRefused(f"torch's exporter can't trace its encoder: {reason}") from error
    finally:
        said.setLevel(before)
    assert made is not None
    return made.model_proto


def _save(graph: Any, file: Path) -> None:
    """Write a graph without the exporter's notes: they hold paths of this machine."""
    for part in _parts(graph.graph):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    del graph.metadata_props[:]
    file.write_bytes(graph.SerializeToString(deterministic=True))


def _parts(graph: Any) -> Iterator[Any]:
    yield from (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output)
