"""`python -m tests.support.fakes.millrace ...` is the command `millrace` with workers that do no arithmetic.

FAKE_FAIL=train:DATA lets a stage fail with that class, train@2026-02:DATA that of one span alone; a signal's name in
place of the class is sent to the process itself.
FAKE_RECALL sets the challenger's recall@10, and trainings keep answers to rows with this recall.
"""

from __future__ import annotations

import os
import signal

from configs.schema.config import Config
from flows.cli import main
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec, Runner, TrainInputs, Waiter
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.workspace import ANSWERS
from tasks.foundation.errors import ERRORS, FailureClass
from tests.support.fakes import replacing
from tests.support.fakes.fake_runner import FakeRunner
from tests.support.fakes.held_runner import HeldRunner

ROWS = 2000  # enough to tell a recall of 0.5 from 0.4


class FailingRunner(FakeRunner):
    """Fails as the environment says."""

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        where, _, how = os.environ.get("FAKE_FAIL", "").partition(":")
        stage, _, span = where.partition("@")
        if spec.stage.value == stage and span in ("", spec.span.name):
            if how.startswith("SIG"):
                signal.raise_signal(signal.Signals[how])
            else:
                self.fail(spec.stage, ERRORS[FailureClass(how)]("row 3 is bad"))
        super().run(spec, waiter, tries)

    def _train(self, spec: JobSpec, inputs: TrainInputs) -> TrainOutcome:
        """Train, and keep the answers that a comparison of two trainings needs: the first rows find their item."""
        from tests.support.measures.results import write_answers  # numpy and pyarrow are slow to load

        found = round(ROWS * self.metrics["recall@10"])
        key = write_answers(self.store, ANSWERS.of(spec), [1] * found + [20] * (ROWS - found))
        return super()._train(spec, inputs).model_copy(update={"answers_key": key})


def make_runner(config: Config, store: Store, stage: Stage | Chore) -> Runner:
    runner = HeldRunner(store) if replacing.HOLDS in os.environ else FailingRunner(store)
    runner.metrics["recall@10"] = float(os.environ.get("FAKE_RECALL", "0.5"))
    return runner


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job hands down that it is ignored
    replacing.install()
    main()
