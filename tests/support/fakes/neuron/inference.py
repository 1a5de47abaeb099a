"""torch-neuronx 2.9 on the processor, as far as its page "PyTorch NeuronX Tracing API for Inference" describes it.

A traced module has one operation `neuron::forward_v2` with the compiled graph, which is TorchScript here in place of a
NEFF. It takes the shapes and types of its example alone. Matrices are rounded to bf16 if the compiler is told to cast.
"""

from __future__ import annotations

import copy
import functools
import io
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tasks.worker.online.torchscript import without_notes

VERSION = "2.9.0.2.14.27725"
TARGETS = ("inf2", "trn1")
SIZED_BY_DATA = ("aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2")
SPLIT = b"\n"  # between the description of the inputs, JSON, and the graph


def put(folder: Path) -> Path:
    """Write the package below a folder, as an image has it; return the folder that belongs on the path."""
    site = folder / "neuronx-site"
    about = site / f"torch_neuronx-{VERSION}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-neuronx\nVersion: {VERSION}\n")
    (site / "torch_neuronx").mkdir()
    (site / "torch_neuronx" / "__init__.py").write_text("from tests.support.fakes.neuron.inference import trace\n")
    return site


def trace(
    func: torch.nn.Module,
    example_inputs: torch.Tensor | tuple[torch.Tensor, ...],
    *,
    compiler_workdir: str | None = None,
    compiler_args: str | Sequence[str] | None = None,
) -> torch.jit.ScriptModule:
    """Compile a module for the shapes of its example.

    Raises:
        RuntimeError: the compiler refuses an argument, or a size that the data decide.
    """
    given = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    flags = compiler_args.split() if isinstance(compiler_args, str) else list(compiler_args or ())
    target = next((flag.partition("=")[2] for flag in flags if flag.startswith("--target=")), TARGETS[0])
    if target not in TARGETS:
        raise RuntimeError(f"neuronx-cc: error: argument --target: invalid choice: {target}")
    module = copy.deepcopy(func)
    if "--auto-cast=matmult" in flags:
        for weight in module.parameters():
            if weight.dim() == 2:
                weight.data = weight.data.bfloat16().float()
    with torch.no_grad():
        graph = torch.jit.freeze(torch.jit.trace(module, given, check_trace=False)).graph.copy()
    for node in graph.nodes():
        if node.kind() in SIZED_BY_DATA:
            raise RuntimeError(f"NCC_EMOD025: Dynamic shape is not supported: {node.kind()}")
    shapes = json.dumps([[str(each.dtype), list(each.shape)] for each in given]).encode()
    names = [each.debugName() for each in graph.inputs()][1:]
    neff = torch.frombuffer(bytearray(shapes + SPLIT + _compiled(graph)), dtype=torch.uint8)
    if compiler_workdir is not None:
        Path(compiler_workdir).mkdir(parents=True)
        (Path(compiler_workdir) / "graph.neff").write_bytes(bytes(neff.tolist()))
    outer = torch.jit.freeze(torch.jit.trace(_Fused(neff).eval(), given, check_trace=False)).graph.copy()
    for value, name in zip(list(outer.inputs())[1:], names, strict=True):
        value.setDebugName(name)
    return torch.jit.load(io.BytesIO(_saved(outer)))


class _Fused(torch.nn.Module):
    """The one operation of a traced module."""

    def __init__(self, neff: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("neff", neff)

    def forward(self, *given: torch.Tensor) -> torch.Tensor:
        return torch.ops.neuron.forward_v2(list(given), self.neff)[0]


def _compiled(graph: Any) -> bytes:
    """Return a graph without the lines of source code that it came from, as a NEFF is."""
    with tempfile.TemporaryDirectory(prefix="neuronx-") as name:
        traced, alone = Path(name) / "traced.pt", Path(name) / "graph.pt"
        traced.write_bytes(_saved(graph))
        without_notes(traced, alone)
        return alone.read_bytes()


def _saved(graph: Any) -> bytes:
    graph.eraseInput(0)
    return vars(torch)["_C"]._create_function_from_graph("forward", graph).save_to_buffer()


@functools.cache
def _loaded(neff: bytes) -> tuple[list[Any], Any]:
    shapes, _, graph = neff.partition(SPLIT)
    return json.loads(shapes), torch.jit.load(io.BytesIO(graph))


def _run(given: list[torch.Tensor], model: torch.Tensor) -> list[torch.Tensor]:
    shapes, graph = _loaded(model.numpy().tobytes())
    for number, (each, (dtype, shape)) in enumerate(zip(given, shapes, strict=True)):
        if (str(each.dtype), list(each.shape)) != (dtype, shape):
            has = f"{list(each.shape)} of {each.dtype}"
            raise RuntimeError(f"input {number} is {has}, and the graph was compiled for {shape} of {dtype}")
    return [graph(*given)]


_LIBRARY = torch.library.Library("neuron", "FRAGMENT")
_LIBRARY.define("forward_v2(Tensor[] inputs, Tensor model) -> Tensor[]")
_LIBRARY.impl("forward_v2", _run, "CompositeExplicitAutograd")
