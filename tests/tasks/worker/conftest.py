"""An empty workspace, one with releases, and fake tools of the Neuron SDK."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tests.support.fakes.neuron.neuron_tools import FakeTools
from tests.support.workspace.served import make_served


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeTools:
    return FakeTools(tmp_path / "bin", monkeypatch)


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    """Four releases of two models, both exported. Not to be changed: `copy_of` it."""
    return make_served(tmp_path_factory.mktemp("served"), "release.exports=[onnx]")
