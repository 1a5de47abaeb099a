"""The lists of docs/accelerators.md: what is stated about AWS and Neuron, and the tests that are marked to show it.

A test says `@pytest.mark.shows("name of a statement")`. `make docs` writes the lists.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "accelerators.md"
_LISTS = re.compile(r"(<!-- Written by `make docs`[^>]*-->\n\n).*?(\n\n<!-- end of the lists -->)", re.S)


class Statement(NamedTuple):
    """`proof`: the code or file itself ran or was checked here; it ran with a stand-in; nothing here could show it."""

    proof: Literal["ran", "emulated", "unproven"]
    sentence: str


STATEMENTS = {
    "same graphs": Statement("ran", "All workers trace the same graphs, on one, two and 16 machines"),
    "collectives of a step": Statement(
        "ran", "A training step has one all-gather, one reduce-scatter and one all-reduce, all of floats"
    ),
    "clean graphs": Statement(
        "ran", "No graph has data in 64 bits, a call of other code, or an infinity but where a maximum begins"
    ),
    "one graph": Statement(
        "ran", "The losses of a step are one graph of `torch.compile`, in fp32 and bf16, with and without features"
    ),
    "no new graph": Statement("ran", "Training meets no graph that warmup has not compiled"),
    "same numbers on XLA": Statement("ran", "PyTorch/XLA gives the losses and metrics of `cpu`"),
    "same numbers on a GPU": Statement("ran", "One NVIDIA GPU gives the losses of `cpu` within 0.1 % (an H100)"),
    "shared evaluation": Statement("ran", "All workers share an evaluation, and its numbers are those of one worker"),
    "place of a worker": Statement("ran", "A runtime that sees other workers than torchrun started is refused"),
    "variables": Statement("ran", "Each preset sets its variables and compiler flags, and no others"),
    "broken collectives": Statement("ran", "A collective with a wrong number is found, by health and before training"),
    "template": Statement(
        "ran", "AWS's own models take every call that the template leads to, and every command of aws.md"
    ),
    "machines": Statement("ran", "A container fits its machine, and has all its devices and EFA interfaces"),
    "least privilege": Statement(
        "ran", "Roles allow what the stages need and nothing of the others; data is encrypted"
    ),
    "files of the images": Statement("ran", "Each image gets every file and pin that it needs, and a user of its own"),
    "files for the compiler": Statement("ran", "The graphs for neuronx-cc are files that XLA itself reads"),
    "exports for Inferentia2": Statement(
        "emulated", "The export `neuron` has a graph for each length of texts, and is proved as the others are"
    ),
    "check-neuron": Statement(
        "emulated", "`make check-neuron` tries every image and level, and ends at the first step that fails"
    ),
    "one copy": Statement("emulated", "The workers of a machine ask the bucket for as much as one worker alone"),
    "compiled once": Statement("emulated", "Each machine compiles a graph once and fetches it once"),
    "compiler's cores": Statement(
        "emulated", "The compiler is bound to no NeuronCore, whatever its caller is bound to"
    ),
    "compiler's report": Statement("emulated", "A graph that did not compile is found, whatever the exit status"),
    "Neuron's tools": Statement(
        "emulated", "neuron-ls, fi_info, nccom-test and sysfs are read as documented, and each fault has its verdict"
    ),
    "neuron-monitor": Statement("emulated", "The use of cores and memory is in the result of train"),
    "codes": Statement("emulated", "A code of runtime or compiler in a log decides whether a stage is tried again"),
    "several nodes": Statement("emulated", "The nodes of a Batch job train together and end together"),
    "retries": Statement("emulated", "Batch repeats a lost host and a transient exit code, and nothing else"),
    "found again": Statement("emulated", "A job whose waiter died is found again, and no second one is started"),
    "excluded hosts": Statement("emulated", "A machine that failed checks gets no work"),
    "whole pipeline": Statement("emulated", "On Batch and S3 the pipeline gives the same on one machine"),
    "texts by their lengths": Statement(
        "emulated", "On `cuda`, packed texts need no mask, and have the vectors and gradients of one"
    ),
    "overlapped sums": Statement(
        "emulated", "On `cuda`, gradients are summed during the backward pass, and are those of a sum at its end"
    ),
    "TorchNeuron": Statement(
        "emulated", "`neuron` trains as `cpu` does, in two graphs a step, and compiles none that warmup has not"
    ),
    "refusals of TorchNeuron": Statement(
        "emulated", "Dynamic shapes, 64-bit data, breaks of a graph and waits for the host are refused"
    ),
    "images": Statement("unproven", "The images build, their packages fit, and they run with a read-only root"),
    "compiler": Statement("unproven", "neuronx-cc compiles these graphs, at -O1 and at -O2"),
    "training on Trainium": Statement(
        "unproven", "NeuronCores train, evaluate and embed, and give the numbers of `cpu`"
    ),
    "training on TorchNeuron": Statement("unproven", "TorchNeuron compiles and runs these graphs on Trn2 or Trn3"),
    "Inferentia2": Statement("unproven", "Inferentia2 compiles and runs the export `neuron`"),
    "parity of a GPU": Statement("unproven", "Several GPUs train together"),
    "stack": Statement("unproven", "CloudFormation makes the stack, and its machines take jobs"),
    "price": Statement("unproven", "Speed, use of the cores, and dollars for a million vectors"),
}


def page() -> str:
    """Return the page with the lists as they are now."""
    tests, parts = shown_by(), []
    for proof in ("ran", "emulated", "unproven"):
        lines = [f"*{proof.capitalize()}*:", ""]
        for name in (name for name, statement in STATEMENTS.items() if statement.proof == proof):
            paths = dict.fromkeys(path for path, _ in tests.get(name, ()))
            links = ", ".join(f"[{path.name}](../{path})" for path in paths)
            lines.append(f"- {STATEMENTS[name].sentence}{f': {links}' if links else ''}")
        parts.append("\n".join(lines))
    joined = "\n\n".join(parts)
    return _LISTS.sub(lambda found: f"{found[1]}{joined}{found[2]}", PAGE.read_text(encoding="utf-8"))


def shown_by() -> dict[str, list[tuple[Path, str]]]:
    """Each name that a mark has, with files and names of the tests that have it."""
    found: dict[str, list[tuple[Path, str]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for test, name in _marks(ast.parse(text)) if "mark.shows(" in text else ():
            found.setdefault(name, []).append((path.relative_to(ROOT), test))
    return found


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in (each for each in tree.body if isinstance(each, ast.FunctionDef)):
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.shows":
                for argument in mark.args:
                    yield node.name, ast.literal_eval(argument)
