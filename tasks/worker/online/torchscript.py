"""The export `torchscript`: one traced graph in fp32, opened by torch alone, or by libtorch from another language.

TorchScript is a program, and some of its operations read and write files. So its code is read before torch opens it:
functions `forward` of known operations on tensors, and nothing else.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.store.manifest import CorruptFolder
from tasks.worker.online.kinds import Compute, ExportRefused, Source

GRAPH = "model.pt"
# Operations of the encoders of docs/models.md, with pooling, dense layers and the interaction.
_KNOWN = """
    __and__ __or__ abs add add_ arange bitwise_not bmm cat chunk clamp clamp_min contiguous cos device div embedding eq
    expand expand_as floor_divide full_like gather ge gelu gt layer_norm linalg_vector_norm linear log lt masked_fill
    matmul mean min mul neg permute pow relu reshape rsqrt scaled_dot_product_attention select sigmoid silu sin size
    slice softmax sub sum tanh to transpose type_as unbind unsqueeze view where zeros_like
"""
OPERATIONS = {f"torch.{name}" for name in _KNOWN.split()} | {"int", "ops.prim.NumToTensor"}
_SYNTAX = (
    ast.Module, ast.ClassDef, ast.FunctionDef, ast.arguments, ast.arg, ast.Assign, ast.AnnAssign, ast.Return, ast.Call,
    ast.keyword, ast.Attribute, ast.Name, ast.Constant, ast.List, ast.Tuple, ast.UnaryOp, ast.USub, ast.expr_context,
)  # fmt: skip
_LEFT_OUT = ("version", "byteorder", ".data/serialization_id", ".data/version")  # torch's writer adds them


def make(source: Source, folder: Path) -> None:
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's about constants; the proof finds a wrong one
        try:
            traced: Any = torch.jit.trace(source.graph, tuple(source.given.values()), check_trace=False)
        except Exception as error:  # the tracer raises many kinds
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ExportRefused(f"torch can't trace its encoder: {reason}") from error
        graph = torch.jit.freeze(traced).graph.copy()
    graph.eraseInput(0)  # the module, which a frozen graph does not use
    staged = source.scratch / GRAPH
    # As a function of its own: the name of a traced class counts the traces of this process.
    vars(torch)["_C"]._create_function_from_graph("forward", graph).save(str(staged))
    without_notes(staged, folder / GRAPH)
    if (problem := next(problems(folder / GRAPH), None)) is not None:
        raise ExportRefused(f"its graph {problem}")


def opened(folder: Path, threads: int) -> Compute:
    import torch

    torch.set_num_threads(threads)
    graph = load(folder / GRAPH)
    names = [each.name for each in graph.forward.schema.arguments[1:]]

    def compute(given: Any) -> Any:
        with torch.inference_mode():
            return graph(*(torch.from_numpy(given[name]) for name in names)).numpy()

    return compute


def load(file: Path, also: str = "", by: str = "torch") -> Any:
    """Open a TorchScript file. Raises CorruptFolder: the file is damaged, or its code does more than compute.

    Args:
        also: prefix of further operations that it may have; empty: none.
        by: package that has them, for the message.
    """
    import torch

    try:
        problem = next(problems(file, also), None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch 2.10 and later warn at each call
            graph = None if problem else torch.jit.load(str(file), map_location="cpu")
    except (RuntimeError, ValueError, SyntaxError) as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise CorruptFolder(f"{file} can't be opened by {by}: {said}") from error
    if problem:
        raise CorruptFolder(f"{file} is not opened: it {problem}")
    return graph


def problems(file: Path, also: str = "") -> Iterator[str]:
    """Yield a clause for each thing in a file's code that is no computation. Raises RuntimeError: it is no archive."""
    reader = _reader(file)
    records = reader.get_all_records()
    if len(set(records)) < len(records):
        yield "has two records of one name"
    for name in records:
        if name.startswith("code/") and not name.endswith(".debug_pkl"):
            yield from _of_code(reader.get_record(name).decode("utf-8"), also)


def without_notes(file: Path, to: Path) -> None:
    """Write a TorchScript file again without the lines of source code that it came from: they hold paths."""
    import torch

    reader, writer = _reader(file), vars(torch)["_C"].PyTorchFileWriter(str(to))
    (version,) = (name for name in reader.get_all_records() if name.endswith("version"))
    writer.set_min_version(int(reader.get_record(version)))  # its operations need it; the writer's own is the oldest
    for name in reader.get_all_records():
        if not name.endswith(".debug_pkl") and name not in _LEFT_OUT:
            held = reader.get_record(name)
            writer.write_record(name, held, len(held))
    writer.write_end_of_file()


def _reader(file: Path) -> Any:
    import torch

    return vars(torch)["_C"].PyTorchFileReader(str(file))  # the parser of torch.jit.load itself


def _of_code(code: str, also: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, _SYNTAX):
            yield f"has {type(node).__name__} in its code"
        elif isinstance(node, ast.FunctionDef) and node.name != "forward":
            yield f"has a function {node.name}"
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name not in OPERATIONS and not (also and name.startswith(also)):
                yield f"has the operation {name}"
