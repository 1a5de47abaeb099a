"""A workspace whose search workers have no model, for all that `millrace serve` asks them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flows.cli.serving import search_worker
from infra.store.directory import DirectoryStore

ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture
def unreal_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    """A workspace without releases."""
    monkeypatch.setattr(search_worker, "WORKER", (sys.executable, "-m", "tests.support.fakes.search_worker"))
    monkeypatch.chdir(ROOT)
    return DirectoryStore(tmp_path)
