"""One workspace with four releases and two models, both exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.runs import releases
from tests.support.workspace.served import copy_of


@pytest.fixture
def store(served: DirectoryStore, tmp_path: Path) -> DirectoryStore:
    """A copy whose current release is 4; 3 has the same model, 2 and 1 another one."""
    return copy_of(served, tmp_path)


def point_to(store: DirectoryStore, number: int) -> None:
    """Make another release current, as a rollback does."""
    raw, pointer = releases.read_pointer(store)
    assert pointer is not None
    releases.swap_pointer(store, pointer.model_copy(update={"release": number}), raw)
