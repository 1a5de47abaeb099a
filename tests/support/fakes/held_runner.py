"""Workers without arithmetic that report their steps and a loss curve, and that a test can hold in the middle.

A test holds a stage by a file named `train-2021-Q1` in the folder HOLDS, and lets it go by deleting it.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from pathlib import Path

from tasks.contracts.jobs import JobSpec, Progress, TrainInputs, Waiter
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import CurvePoint
from tests.support.fakes.fake_runner import FakeRunner
from tests.support.fakes.replacing import HOLDS

STEPS = 40
HELD_AT = 12  # the step before which it waits
POLL_SECONDS = 0.1


class HeldRunner(FakeRunner):
    """Each stage reports STEPS steps; a held one stops at HELD_AT, where it can still be cancelled."""

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        stage = spec.stage.value
        hold = Path(os.environ[HOLDS], f"{stage}-{spec.span.name}")
        for step in range(1, STEPS + 1):
            while step == HELD_AT and hold.exists():
                _say_so(hold)
                waiter.pulse()
                time.sleep(POLL_SECONDS)
            note = f"loss {_loss(step):.4f}" if stage == "train" else ""
            waiter.progress(Progress(what=stage, done=step, total=STEPS, note=note))
        super().run(spec, waiter, tries)

    def _train(self, spec: JobSpec, inputs: TrainInputs) -> TrainOutcome:
        done = super()._train(spec, inputs)
        steps = range(done.first_step + 1, done.last_step + 1)
        losses = tuple(CurvePoint(step=step, metrics={"loss": _loss(step)}) for step in steps)
        return done.model_copy(update={"losses": losses})


def _say_so(hold: Path) -> None:
    """Into the file, unless it was deleted just now."""
    with contextlib.suppress(FileNotFoundError), hold.open("r+") as file:
        file.write("waiting")


def _loss(step: int) -> float:
    """A curve that falls and wobbles."""
    return 1.2 + 2.0 * math.exp(-step / 12) + 0.05 * math.sin(step)
