"""A worker as it always is, behind its door, watched until its first step or killed after its first checkpoint.

    python -m tests.benchmarks.started {whole,killed,watched} STAGE --spec WORKSPACE#KEY

`watched` ends after the first step and prints, as JSON, the seconds since the process was asked for and the CPU seconds
of all its threads, in all and by part.
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
from typing import Any, NamedTuple

from tasks.worker import __main__ as door

IMPORTS = "imports of torch, transformers and our own"
STEP = "the first batch and its step"
PARTS = {  # what the stage calls before its first step -> what that is for
    "read_training_rows": "rows: their files checked, the holdout split off",
    "find_resume_point": "the newest checkpoint: found and checked",
    "load_model": "the model: read and built",
    "make_start": "the optimiser: read",
    "open_pairs": "tokens: found and opened, pairs written",
    "make_plan": "the plan of batches, and their shape",
    "choose_shape": "the plan of batches, and their shape",
    "sample_holdout": "the holdout's tokens",
}


def main(how: str) -> int:
    """Run the door with what is to be seen in between."""
    watch = {"whole": lambda stage: None, "killed": kill_after_a_checkpoint, "watched": Watched().watch}[how]
    find = importlib.import_module

    def found(name: str) -> ModuleType:
        began = Spent.since(NOTHING)
        module = find(name)
        vars(module)["IMPORTED"] = Spent.since(began)
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


class Spent(NamedTuple):
    """Seconds, and CPU seconds of all threads of this process."""

    seconds: float
    cpu: float

    @classmethod
    def since(cls, start: Spent) -> Spent:
        return cls(time.time() - start.seconds, time.process_time() - start.cpu)

    def and_also(self, more: Spent) -> Spent:
        return Spent(self.seconds + more.seconds, self.cpu + more.cpu)


NOTHING = Spent(0.0, 0.0)


class Watched:
    """Times what happens before the first step is done."""

    def __init__(self) -> None:
        self.parts = dict.fromkeys((IMPORTS, *PARTS.values(), STEP), NOTHING)

    def watch(self, stage: ModuleType) -> None:
        self.parts[IMPORTS] = vars(stage)["IMPORTED"]
        for name, part in PARTS.items():
            setattr(stage, name, self._timed(getattr(stage, name), part))
        stage._take_steps = self._until_first_step(stage._take_steps)  # type: ignore[attr-defined]

    def _timed(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        @functools.wraps(call)
        def timed(*arguments: Any) -> Any:
            began = Spent.since(NOTHING)
            result = call(*arguments)
            self.parts[part] = self.parts[part].and_also(Spent.since(began))
            return result

        return timed

    def _until_first_step(self, take_steps: Callable[..., Any]) -> Callable[..., Any]:
        def first_step(job: Any, batches: Any, step: Any, *others: Any) -> None:
            began = Spent.since(NOTHING)

            def last(batch: Any, number: int) -> None:
                step(batch, number)
                step.accelerator.synchronize()
                self.parts[STEP] = Spent.since(began)
                whole = Spent.since(Spent(float(os.environ[door.STARTED_AT]), 0.0))
                print(json.dumps({"step": number + 1, "whole": whole, "parts": self.parts}), flush=True)
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
