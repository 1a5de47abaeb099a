"""What the control plane asks of a place that runs stages. `local_runner.py` is the one for this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from configs.schema import Config
from infra.store import Store
from tasks.contracts import JobSpec
from tasks.progress import Progress


class Listener(Protocol):
    """Where a running stage's output goes."""

    def log(self, line: str) -> None: ...
    def progress(self, progress: Progress) -> None: ...


class Runner(Protocol):
    """Runs one stage to its end."""

    def run(self, spec: JobSpec, listener: Listener) -> None:
        """Start the workers of a stage whose spec lies in the workspace, and wait for them.

        Raises:
            StageError: of the class of the earliest failure among the workers, with its message.
        """
        ...


def make_runner(config: Config, store: Store) -> Runner:
    """The runner that `compute:` names."""
    from infra.local_runner import LocalRunner

    places: dict[str, Callable[[Store], Runner]] = {"local": LocalRunner}
    return places[config.compute](store)
