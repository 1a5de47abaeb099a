"""TorchNeuron on the processor: its device, its compiler and its collectives, as far as its documents describe them.

Graphs run on the processor. Refused is what the pages "torch.compile backend reference", "How torch.compile works on
Neuron" and the compiler's error codes refuse: shapes that vary, 64-bit input, types and operations without a lowering.
A break of the graph, and with it a wait for the host, is refused by `fullgraph=True` itself. Compiled graphs are files
of the cache, two folders deep, as in its PersistentCacheBackend. In compile-only mode graphs are compiled, and not run:
their results are zeros.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.registry import register_backend
from torch.utils.backend_registration import rename_privateuse1_backend

CACHE, COMPILE_ONLY = "TORCH_NEURONX_NEFF_CACHE_DIR", "TORCH_NEURONX_COMPILE_ONLY"
PLATFORM = "NEURON_PLATFORM_TARGET_OVERRIDE"
LOG = "NATIVE_STAND_IN"  # a file with a line for each graph that any process has compiled or run
VERSION = "2.14.3.0.1"
ROOT = Path(__file__).resolve().parents[4]
NO_TYPES = (torch.float64, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64)
LOWERED = ("aten", "prims", "_c10d_functional", "_c10d_functional_autograd", "_operator", "rngprims")

TRACED: list[str] = []  # a name for each graph that Dynamo gave to the compiler in this process, in order
RUN: list[str] = []  # each run of a compiled graph: the name of the traced one, and its direction
COMPILED: list[str] = []  # the files that were not in the cache


class NotOnNeuronError(RuntimeError):
    """The compiler refuses a graph; `TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION` is 1 by default, so it is raised."""


def put(folder: Path) -> None:
    """Make the package importable in this process and its children, as in an image that has it."""
    site = folder / "torch-neuron-site"
    about = site / f"torch_neuronx-{VERSION}.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch-neuronx\nVersion: {VERSION}\n")
    package = site / "torch_neuronx"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("from tests.support.fakes.neuron.native import install\n\ninstall()\n")
    sys.path.insert(0, str(site))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(site)])
    os.environ[LOG] = str(site / "graphs.jsonl")


def log(folder: Path) -> list[dict[str, Any]]:
    """Each graph that a process compiled or ran: pid, compile_only, platform, what (compiled or run), name."""
    path = folder / "torch-neuron-site" / "graphs.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _note(what: str, name: str) -> None:
    entry = {"pid": os.getpid(), "compile_only": _compiles_only(), "platform": os.environ.get(PLATFORM)}
    with Path(os.environ[LOG]).open("a") as file:
        file.write(json.dumps({**entry, "what": what, "name": name}) + "\n")


def _compiles_only() -> bool:
    return os.environ.get(COMPILE_ONLY) == "1"


def install() -> None:
    """Do what importing torch_neuronx does: name the device, and register the compiler and the collectives."""
    rename_privateuse1_backend("neuron")
    torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cpu")
    torch.accelerator.synchronize = lambda device=None: None
    register_backend(_compile, name="neuron")
    dist.Backend.register_backend("neuron", dist.ProcessGroupGloo, devices=["cpu"])


def _compile(traced: fx.GraphModule, inputs: Sequence[Any], **_: Any) -> Callable[..., Any]:
    name = f"graph {len(TRACED)}"

    def lower(direction: str) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
        def compiled(graph: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
            _refuse(graph)
            _keep(graph)

            def run(arguments: list[Any]) -> Any:
                if _compiles_only():
                    return _zeros(graph)
                RUN.append(f"{name}, {direction}")
                _note("run", RUN[-1])
                return graph.forward(*arguments)

            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compiled

    found = aot_autograd(fw_compiler=lower("forward"), bw_compiler=lower("backward"))(traced, inputs)
    TRACED.append(name)
    return found  # type: ignore[no-any-return]


def _zeros(graph: fx.GraphModule) -> list[Any]:
    """Return results of the graph's types and shapes."""
    (results,) = graph.graph.output_node().args
    assert isinstance(results, tuple | list)
    values = [each.meta["val"] if isinstance(each, fx.Node) else each for each in results]
    return [
        torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).zero_()
        if isinstance(value, torch.Tensor)
        else value
        for value in values
    ]


def _refuse(graph: fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, tuple | list) else [value]:
            if isinstance(tensor, torch.SymInt | torch.SymFloat | torch.SymBool) or (
                isinstance(tensor, torch.Tensor) and any(isinstance(size, torch.SymInt) for size in tensor.shape)
            ):
                raise NotOnNeuronError(f"NCC_EMOD025: Dynamic shape is not supported: {node.name} is {tensor}")
            if isinstance(tensor, torch.Tensor):
                _refuse_type(node, tensor.dtype)
        if node.op == "call_function":
            module = str(getattr(node.target, "namespace", getattr(node.target, "__module__", "")))
            if module not in LOWERED:
                raise NotOnNeuronError(f"NCC_EHCA005: custom call target {node.target} is not recognized")


def _refuse_type(node: fx.Node, dtype: torch.dtype) -> None:
    if dtype in NO_TYPES:
        raise NotOnNeuronError(f"{node.name} is {dtype}, a type that NeuronCores do not have")
    if dtype == torch.int64 and node.op == "placeholder":
        raise NotOnNeuronError(f"input {node.name} is int64; NeuronCores have 32-bit integers")


def _keep(graph: fx.GraphModule) -> None:
    """Write the graph's file unless it is there."""
    shapes = [
        (str(node.meta["val"].dtype), tuple(node.meta["val"].shape))
        for node in graph.graph.nodes
        if isinstance(node.meta.get("val"), torch.Tensor)
    ]
    name = hashlib.sha256(f"{graph.code}{shapes}".encode()).hexdigest()
    path = Path(os.environ.get(CACHE, "/tmp/neff_cache"), name[:2], name[2:4], f"{name}.neff")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = path.with_suffix(f".{os.getpid()}")
        staged.write_text(graph.code)
        staged.replace(path)
        COMPILED.append(path.name)
        _note("compiled", path.name)
