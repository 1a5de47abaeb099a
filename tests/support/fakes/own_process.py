"""The real workers, and the released model's proof, in the process of the test: without the start of a process."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from configs.load import config_hash
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec, Waiter
from tasks.contracts.outcomes import StageResult
from tasks.worker.process.job import Job, PhaseClock, Rank
from tasks.worker.search import consumer, encode_released
from tasks.worker.search.consumer import Encoded


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
        outcome = importlib.import_module(f"tasks.worker.{spec.stage.module}").run(
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


def encode_here(patch: pytest.MonkeyPatch, loading: float = 0.0) -> None:
    """Let releases encode in this process from now on, as if their library took `loading` seconds to load."""
    read = consumer._read

    def here(path: Path) -> Encoded:
        return read(path)._replace(loading=loading)

    patch.setattr(consumer, "_run_apart", lambda arguments, folder: encode_released.main(arguments))
    patch.setattr(consumer, "_read", here)
