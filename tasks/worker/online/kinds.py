"""The kinds of export. A kind is a file in this folder, which makes it and opens it, and an entry in `KINDS`.

Alone, since a release names kinds without the packages that make and open them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

import numpy as np

from configs.schema.stages import ExportKind
from tasks.foundation.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

# From the inputs by name, each with a row for each text, to unit vectors, float32 (texts, width).
Compute = Callable[[Mapping[str, np.ndarray]], np.ndarray]


class ExportRefused(Exception):
    """This model can't be exported so; the sentence has the reason."""


class Source(NamedTuple):
    """A model to export: its graph from tokens and features to unit vectors, for any number of texts of any length.

    `given` is an example of the inputs, in their order: two texts. `scratch` is a folder for files on the way.
    """

    graph: nn.Module
    given: dict[str, Tensor]
    max_tokens: int
    scratch: Path


class KindFile(Protocol):
    """The functions in the file of a kind."""

    def make(self, source: Source, folder: Path) -> None:
        """Write the graph into an empty folder, without a path of this machine; the same model gives the same bytes.

        Raises:
            ExportRefused: it can't be made; the folder is deleted.
        """
        ...

    def opened(self, folder: Path, threads: int) -> Compute:
        """Open a graph. Raises CorruptFolder: a file is damaged; ImportError: its runtime is not installed."""
        ...


class Kind(NamedTuple):
    """A kind of export.

    `makers` and `runtime` are the packages that make and open it, brought by `install` and `install_runtime`. `exact`
    ones must reach release.min_cosine. `unneeded` are packages without which it must be opened and used.
    """

    makers: tuple[str, ...]
    install: str
    runtime: str
    install_runtime: str
    exact: bool
    unneeded: tuple[str, ...]


_ONNX = Kind(
    makers=("onnx", "onnxruntime", "onnxscript"),
    install="pip install 'millrace[export]'",
    runtime="onnxruntime",
    install_runtime="pip install 'millrace[online]'",
    exact=True,
    unneeded=("torch",),
)
KINDS: dict[ExportKind, Kind] = {
    "onnx": _ONNX,
    "onnx-int8": _ONNX._replace(exact=False),
    "openvino": Kind(
        makers=(*_ONNX.makers, "openvino"),
        install="pip install 'millrace[export,openvino]'",
        runtime="openvino",
        install_runtime="pip install 'millrace[online,openvino]'",
        exact=True,
        unneeded=("torch",),
    ),
    "torchscript": Kind(
        makers=("torch",),
        install="pip install 'millrace[worker]'",
        runtime="torch",
        install_runtime="pip install torch",
        exact=True,
        unneeded=("transformers", "sentence_transformers"),
    ),
    "neuron": Kind(
        makers=("torch_neuronx",),
        install="take an image of Inferentia2 for PyTorch 2.9, which has torch-neuronx and neuronx-cc",
        runtime="torch_neuronx",
        install_runtime="take an image of Inferentia2 for PyTorch 2.9",
        exact=False,  # matrix products are computed in bf16
        unneeded=("transformers", "sentence_transformers"),
    ),
}


def file_of(kind: ExportKind) -> KindFile:
    """Return the file of a kind."""
    return cast(KindFile, importlib.import_module(f"tasks.worker.online.{kind.replace('-', '_')}"))


def expect_makers(kind: ExportKind) -> None:
    """Raise ConfigError if a package is missing that makes a kind."""
    missing = [name for name in KINDS[kind].makers if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"release.exports: {kind} needs {', '.join(missing)}, which the worker's machine lacks: "
            f"{KINDS[kind].install}, or take {kind} out of release.exports"
        )


def can_open(kind: ExportKind) -> bool:
    """Return True if the runtime of a kind is installed here."""
    return find_spec(KINDS[kind].runtime) is not None
