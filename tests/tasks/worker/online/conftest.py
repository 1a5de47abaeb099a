"""One workspace with four releases and two models, both exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tests.support.workspace.served import copy_of


@pytest.fixture
def store(served: DirectoryStore, tmp_path: Path) -> DirectoryStore:
    """A copy whose current release is 4; 3 has the same model, 2 and 1 another one."""
    return copy_of(served, tmp_path)
