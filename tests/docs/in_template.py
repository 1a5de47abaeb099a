"""The parts of the templates that are copies.

Of configs/instances.yaml: mappings, conditions, values of parameters. Of infra/aws/orchestrator.sh: the orchestrator's
user data.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

from configs.instances import Instance, instances

PAGE = Path(__file__).resolve().parents[2] / "infra/aws/millrace.yaml"
SCRIPT = PAGE.with_name("orchestrator.sh")
PARAMETERS = {"accelerator": "AcceleratorType", "infer": "InferType", "gpu": "GpuType"}

# Conditions on one of these parameters, by its stack.
CONDITIONS: dict[str, tuple[str, Callable[[Instance], bool]]] = {
    "SmallAccelerator": ("accelerator", lambda row: row.efa_cards == 0),
    "WideAccelerator": ("accelerator", lambda row: row.efa_cards == 16),
    "BlockAccelerator": ("accelerator", lambda row: row.capacity_block == "only"),
    "NativeAccelerator": ("accelerator", lambda row: row.accelerator == "neuron"),
    "LargeInfer": ("infer", lambda row: row.devices >= 6),
    "LargerInfer": ("infer", lambda row: row.devices >= 12),
    "LargestInfer": ("infer", lambda row: row.devices >= 16),
}


def page() -> str:
    """Return the template with its machines as the table has them now, and with the script as it is."""
    text = PAGE.read_text(encoding="utf-8")
    for stack, parameter in PARAMETERS.items():
        kinds = [name for name, row in instances().items() if stack in row.stack]
        values = ", ".join(kinds if stack == "accelerator" else ['""', *kinds])
        text = _put(text, rf"(\n  {parameter}:\n(?:    .*\n)*?    AllowedValues: )\[[^\]]*\]", f"[{values}]")
    started = {name: row for name, row in instances().items() if row.stack}
    machines = "".join(f"    {name}: {{{_machine(row)}}}\n" for name, row in started.items())
    text = _put(text, r"(\n  Machines:\n)(?:    \S+: \{.*\}\n)+", machines)
    nodes = re.search(r"\n  AcceleratorNodes:\n(?:    .*\n)*?    AllowedValues: \[([^\]]*)\]", text)
    assert nodes is not None
    counts = [int(each.strip(' "')) for each in nodes[1].split(",")]
    vcpus = "".join(
        f"    {name}: {{{', '.join(_entry(count, count * row.vcpus) for count in counts)}}}\n"
        for name, row in started.items()
        if "accelerator" in row.stack
    )
    text = _put(text, r"(\n  AcceleratorVcpus:.*\n)(?:    \S+: \{.*\}\n)+", vcpus)
    for condition, (stack, holds) in CONDITIONS.items():
        kinds = [name for name, row in started.items() if stack in row.stack and holds(row)]
        text = _put(text, rf"(\n  {condition}: )\S.*?(?= #)", _is_one_of(PARAMETERS[stack], kinds))
    place = r"(\n +# Written by `make docs` from infra/aws/orchestrator\.sh.*\n +- \|\n)(?: {16}.*\n|\n)+"
    return _put(text, place, textwrap.indent(SCRIPT.read_text(encoding="utf-8"), " " * 16) + "\n")


class OnEks:
    """The template for Amazon EKS, which has the machines with NVIDIA GPUs alone."""

    PAGE = PAGE.with_name("eks.yaml")

    @classmethod
    def page(cls) -> str:
        """Return the template with the machines as the table has them now."""
        gpus = {name: row for name, row in instances().items() if "gpu" in row.stack}
        machines = "".join(f"    {name}: {{{_machine(row)}}}\n" for name, row in gpus.items())
        text = _put(cls.PAGE.read_text(encoding="utf-8"), r"(\n  Machines:.*\n)(?:    \S+: \{.*\}\n)+", machines)
        return _put(text, r"(\n  GpuType:\n(?:    .*\n)*?    AllowedValues: )\[[^\]]*\]", f"[{', '.join(gpus)}]")


def _put(text: str, pattern: str, new: str) -> str:
    changed, count = re.subn(pattern, lambda found: found[1] + new, text)
    assert count == 1, f"{count} places for {pattern}"
    return changed


def _machine(row: Instance) -> str:
    share = {"Vcpus": row.job_vcpus, "MemoryMib": row.job_mib, "SharedMib": row.shared_mib}
    if "gpu" in row.stack:
        share["Gpus"] = row.devices
    return ", ".join(f'{name}: "{value}"' for name, value in share.items())


def _is_one_of(parameter: str, kinds: list[str]) -> str:
    each = [f"!Equals [!Ref {parameter}, {kind}]" for kind in kinds]
    return each[0] if len(each) == 1 else f"!Or [{', '.join(each)}]"


def _entry(count: int, vcpus: int) -> str:
    return f'"{count}": "{vcpus}"'
