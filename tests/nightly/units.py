"""The slow proofs as units, dealt into parts that take at most 35 minutes on two cores."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PART_MINUTES = 35.0
_UNKNOWN_MINUTES = 5.0  # of a file of proofs that was never run
_PROOF = "pytest.mark.proof"


class Unit(NamedTuple):
    """A program that proves something by itself."""

    name: str
    arguments: tuple[str, ...]  # of Python
    minutes: float = _UNKNOWN_MINUTES  # until one was measured
    goes_on: bool = False  # keeps in workspace/ all that it has done, and goes on there

    @property
    def command(self) -> list[str]:
        return [sys.executable, *self.arguments]


_BENCHMARKS = "tests.benchmarks"
PROGRAMS = (
    Unit("faults", ("-m", f"{_BENCHMARKS}.faults"), 30, goes_on=True),
    Unit("traps", ("-m", f"{_BENCHMARKS}.traps"), 30, goes_on=True),
    Unit("chaos", ("-m", f"{_BENCHMARKS}.chaos", "--kills", "10"), 30, goes_on=True),
    Unit("chaos of four actors", ("-m", f"{_BENCHMARKS}.chaos", "--kills", "10", "--actors", "4"), 30, goes_on=True),
    Unit("scale", ("-m", f"{_BENCHMARKS}.scale"), 30),
    Unit("success", ("-m", f"{_BENCHMARKS}.success"), 20),
    Unit("demo on Batch", ("-m", "tests.support.cloud.batch_demo"), 10),
    Unit("demo on XLA", ("-m", "flows.demo", "xla"), 15),
    Unit("fire", ("-m", f"{_BENCHMARKS}.fire"), 5),
    Unit("simulation", ("-m", "tests.simulation", "--seconds", "900"), 20),
    Unit("fuzz", ("-m", "pytest", "tests/fuzz", "-q"), 20),
)


def units() -> list[Unit]:
    """Return all programs, and each file of tests that has proofs."""
    return [*PROGRAMS, *_proofs()]


def _proofs() -> Iterator[Unit]:
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if _PROOF in file.read_text(encoding="utf-8"):
            path = file.relative_to(ROOT).as_posix()
            yield Unit(path, ("-m", "pytest", "-m", "proof", "-q", path))


def parts(every: Sequence[Unit], minutes: Mapping[str, float]) -> list[list[Unit]]:
    """Return the units of each part: the longest first, each into the first part with room for it.

    Args:
        minutes: of units that were run; others count with their guess.
    """
    took = {unit.name: min(PART_MINUTES, minutes.get(unit.name, unit.minutes)) for unit in every}
    dealt: list[list[Unit]] = []
    for unit in sorted(every, key=lambda unit: (-took[unit.name], unit.name)):
        room = (part for part in dealt if sum(took[each.name] for each in part) + took[unit.name] <= PART_MINUTES)
        part = next(room, None)
        if part is None:
            dealt.append([unit])
        else:
            part.append(unit)
    return dealt
