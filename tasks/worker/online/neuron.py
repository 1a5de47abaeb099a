"""The export `neuron`: graphs compiled ahead for Inferentia2 by torch-neuronx 2.9, one for each length of texts.

A NeuronCore runs fixed shapes alone, so a call is of one text, padded up to the smallest length that holds it.
"""

from __future__ import annotations

import importlib
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from infra.store.manifest import CorruptFolder
from tasks.foundation.errors import ConfigError
from tasks.worker.online.export_folder import IDS, MASK
from tasks.worker.online.kinds import Compute, ExportRefused, Source
from tasks.worker.online.torchscript import load, problems, without_notes

if TYPE_CHECKING:
    from torch import Tensor

SHORTEST = 32  # tokens; the next lengths are twice the one before, up to the longest text
FLAGS = ["--target=inf2", "--auto-cast=matmult", "--auto-cast-type=bf16"]
OWN = "ops.neuron."  # its operations, which hold the compiled graph
_FILE = re.compile(r"model-(\d+)\.pt")


def lengths_of(max_tokens: int) -> list[int]:
    """Return the lengths that graphs are compiled for, rising."""
    found, length = [], SHORTEST
    while length < max_tokens:
        found.append(length)
        length *= 2
    return [*found, max_tokens]


def make(source: Source, folder: Path) -> None:
    import torch

    sdk = _sdk()
    for length in lengths_of(source.max_tokens):
        given = tuple(_of_length(name, each[:1], length) for name, each in source.given.items())
        work, file = source.scratch / f"neuron-{length}", folder / f"model-{length}.pt"
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the tracer's about constants; the proof finds a wrong one
                traced = sdk.trace(source.graph, given, compiler_workdir=str(work), compiler_args=FLAGS)
        except Exception as error:  # the tracer and the compiler raise many kinds
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ExportRefused(f"it can't be compiled for texts of {length} tokens: {reason}") from error
        staged = source.scratch / file.name
        torch.jit.save(traced, str(staged))
        without_notes(staged, file)
        if (problem := next(problems(file, OWN), None)) is not None:
            raise ExportRefused(f"its graph {problem}")


def opened(folder: Path, threads: int) -> Compute:
    import torch

    _sdk()  # registers its operations
    files = {int(named[1]): path for path in folder.iterdir() if (named := _FILE.fullmatch(path.name))}
    graphs = {length: load(files[length], OWN, "torch_neuronx") for length in sorted(files)}
    if not graphs:
        raise CorruptFolder(f"{folder} has no graph of any length")

    def compute(given: Any) -> Any:
        texts = []
        for row in range(len(given[IDS])):
            tokens = int(given[MASK][row].sum())
            length = next((each for each in graphs if each >= tokens), None)
            if length is None:
                raise CorruptFolder(f"{folder} has no graph for a text of {tokens} tokens")
            names = [each.name for each in graphs[length].forward.schema.arguments[1:]]
            inputs = [_of_length(name, torch.from_numpy(given[name][row : row + 1]), length) for name in names]
            texts.append(graphs[length](*inputs).float().numpy())
        return np.concatenate(texts)

    return compute


def _of_length(name: str, given: Tensor, length: int) -> Tensor:
    """Return an input with integers of 32 bits, as NeuronCores have; ids and mask padded to, or cut at, a length."""
    import torch

    if given.dtype == torch.int64:
        given = given.to(torch.int32)
    if name not in (IDS, MASK):
        return given
    given = given[:, :length]  # the tokens of a longer text beside it are padding of this one
    return torch.nn.functional.pad(given, (0, length - given.shape[1]))


def _sdk() -> Any:
    """Return torch-neuronx. Raises ImportError; ConfigError: it is TorchNeuron."""
    sdk: Any = importlib.import_module("torch_neuronx")
    if not hasattr(sdk, "trace"):
        raise ConfigError(
            "the export neuron needs torch-neuronx 2.9, and here is TorchNeuron, of the same name: take an image of "
            "Inferentia2 for PyTorch 2.9, or take neuron out of release.exports"
        )
    return sdk
