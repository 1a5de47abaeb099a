"""What is loaded while a run works is there afterwards; a failure to load it is not a failure of the run."""

from __future__ import annotations

import subprocess
import sys

import pytest

from flows.running import preloading


def test_gates_and_figures_are_loaded_when_the_block_ends() -> None:
    program = (
        "import sys\nfrom flows.running.preloading import preloading\n"
        "before = {'matplotlib', 'great_expectations'} & set(sys.modules)\n"
        "with preloading():\n    pass\n"
        "print(sorted(before), {'matplotlib', 'great_expectations'} <= set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[] True\n", done.stderr


def test_a_run_continues_when_preloading_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def broken(figure: object) -> bytes:
        tried.append(figure)
        raise ImportError("no fonts")

    monkeypatch.setattr(preloading, "svg", broken)
    with preloading.preloading():
        pass
    assert tried
