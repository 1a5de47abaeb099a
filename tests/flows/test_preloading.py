"""What is loaded beside the work: it is there afterwards, and trouble with it stops nobody."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flows import preloading


def test_gates_and_pictures_are_loaded_when_the_block_is_over() -> None:
    program = (
        "import sys\nfrom flows.preloading import preloading\n"
        "before = {'matplotlib', 'great_expectations'} & set(sys.modules)\n"
        "with preloading():\n    pass\n"
        "print(sorted(before), {'matplotlib', 'great_expectations'} <= set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[] True\n", done.stderr


def test_what_can_not_be_loaded_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def broken(curves: object) -> bytes:
        tried.append(curves)
        raise ImportError("no fonts")

    monkeypatch.setattr(preloading, "draw", broken)
    with preloading.preloading():
        pass
    assert tried
