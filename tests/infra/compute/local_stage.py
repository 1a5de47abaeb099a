"""A stage of stand-ins, run by the local runner."""

import sys

import pytest

from infra.compute.local import LocalRunner
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import StageError
from tests.support.fakes.stand_ins import Heard, health_spec

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def run(store: DirectoryStore, workers: int = 1, listener: Heard | None = None) -> Heard:
    listener = listener or Heard()
    LocalRunner(store).run(health_spec(store, workers), listener, tries=1)
    return listener


def failure(store: DirectoryStore, workers: int = 1, listener: Heard | None = None) -> StageError:
    with pytest.raises(StageError) as caught:
        run(store, workers, listener)
    return caught.value
