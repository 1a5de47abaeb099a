"""The limits of health in configs/base.yaml, written from configs/instances.yaml."""

from __future__ import annotations

import re
from pathlib import Path

from configs.instances import INSTANCES, Instance, instances

PAGE = INSTANCES.with_name("base.yaml")
_ROWS = re.compile(r"(\n  machines: .*\n)(?:    \S+: \{devices: .*\}\n)+")


def page() -> str:
    """Return the settings with a row of limits for each type with Neuron devices."""
    rows = "".join(f"    {name}: {{{_limits(row)}}}\n" for name, row in instances().items() if row.on_neuron)
    changed, count = _ROWS.subn(lambda found: found[1] + rows, Path(PAGE).read_text(encoding="utf-8"))
    assert count == 1, PAGE
    return changed


def _limits(row: Instance) -> str:
    return ", ".join(f"{name}: {_number(value)}" for name, value in row.limits.model_dump().items())


def _number(value: float) -> str:
    return "1.0e+6" if value == 1e6 else str(value)
