"""The real workers, in the process of the test: all that a stage does, without the start of a process.

A stage has one worker here. The wall between the planes is not tested with it.
"""

from __future__ import annotations

import importlib

from configs.load import config_hash
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec
from tasks.contracts.results import StageResult
from tasks.contracts.runner import Waiter
from tasks.worker.process.job import Job, PhaseClock, Rank


class OwnProcess:
    """Implements `Runner`. `specs` are the jobs it was given, in order."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.specs: list[JobSpec] = []

    def found(self, spec: JobSpec) -> bool:
        return False

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        self.specs.append(spec)
        clock = PhaseClock(booting=0.0)
        outcome = importlib.import_module(f"tasks.worker.{spec.stage.name}").run(
            Job(spec, self.store, Rank(0, 1, 0), clock)
        )
        result = StageResult(
            run_key=spec.run_key,
            attempt=spec.attempt,
            config_sha256=config_hash(spec.config),
            phases=clock.read(),
            outcome=outcome,
        )
        self.store.write(f"{spec.stage_prefix}/result.json", result.to_json())
