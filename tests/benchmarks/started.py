"""A worker as it always is, behind its door, watched until its first step or killed after its first checkpoint.

    python -m tests.benchmarks.started {whole,killed,watched} STAGE --spec WORKSPACE#KEY

`watched` ends after the first step and prints the seconds since the process was asked for, in all and by part, as JSON.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tasks.worker import __main__ as door

IMPORTS = "imports of torch, transformers and our own"
STEP = "the first batch and its step"
PARTS = {  # what the stage calls before its first step -> what that is for
    "read_training_rows": "rows: their files checked, the holdout split off",
    "find_source": "the newest checkpoint: found and checked",
    "load_model": "the model: read and built",
    "make_start": "the optimiser: read",
    "open_pairs": "tokens: found and opened, pairs written",
    "plan_for": "the plan of batches, and their shape",
    "shape_for": "the plan of batches, and their shape",
    "sample_holdout": "the holdout's tokens",
}


def main(how: str) -> int:
    """Run the door with what is to be seen in between."""
    watch = {"whole": lambda stage: None, "killed": kill_after_a_checkpoint, "watched": Watched().watch}[how]
    find = importlib.import_module

    def found(name: str) -> ModuleType:
        began = time.monotonic()
        module = find(name)
        module.__dict__.setdefault("IMPORT_SECONDS", time.monotonic() - began)
        watch(module)
        return module

    door.importlib = type("Importlib", (), {"import_module": staticmethod(found)})  # type: ignore[assignment]
    return door.main()


def kill_after_a_checkpoint(stage: ModuleType) -> None:
    """Let the process die once a checkpoint is in the workspace."""
    from tasks.worker.training import checkpoint

    commit = checkpoint.commit

    def commit_and_die(*arguments: Any) -> None:
        commit(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.commit = commit_and_die  # type: ignore[assignment]


class Watched:
    """Times what happens before the first step is done."""

    def __init__(self) -> None:
        self.parts = {IMPORTS: 0.0} | dict.fromkeys(PARTS.values(), 0.0)

    def watch(self, stage: ModuleType) -> None:
        self.parts[IMPORTS] = stage.IMPORT_SECONDS
        for name, part in PARTS.items():
            setattr(stage, name, self._timed(getattr(stage, name), part))
        stage._take_steps = self._until_first_step(stage._take_steps)  # type: ignore[attr-defined]

    def _timed(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*arguments: Any) -> Any:
            began = time.monotonic()
            try:
                return call(*arguments)
            finally:
                self.parts[part] += time.monotonic() - began

        return timed

    def _until_first_step(self, take_steps: Callable[..., Any]) -> Callable[..., Any]:
        def first_step(job: Any, batches: Any, step: Any, *others: Any) -> None:
            began = time.monotonic()

            def last(batch: Any, number: int) -> None:
                step(batch, number)
                step.accelerator.synchronize()
                self.parts[STEP] = time.monotonic() - began
                whole = time.time() - float(os.environ[door.STARTED_AT])
                print(json.dumps({"step": number + 1, "seconds": whole, "parts": self.parts}), flush=True)
                os._exit(0)

            take_steps(job, batches, _Once(step, last), *others)

        return first_step


class _Once:
    """A training step in whose place another is called."""

    def __init__(self, step: Any, call: Callable[[Any, int], None]) -> None:
        self._step, self._call = step, call

    def __call__(self, batch: Any, number: int) -> None:
        self._call(batch, number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)


if __name__ == "__main__":
    os._exit(main(sys.argv.pop(1)))
