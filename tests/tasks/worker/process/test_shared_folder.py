from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from tasks.worker.process.shared_folder import SharedFolder


def test_the_last_worker_to_leave_removes_the_folder(tmp_path: Path):
    workers = [SharedFolder(tmp_path / "graphs") for _ in range(3)]
    (tmp_path / "graphs/model.neff").touch()
    for worker in workers[:2]:
        worker.leave()
        assert (tmp_path / "graphs/model.neff").exists()
    workers[2].leave()
    assert not (tmp_path / "graphs").exists()


def test_a_worker_that_lets_go_of_it_has_left(tmp_path: Path):
    folder = SharedFolder(tmp_path / "graphs")
    del folder
    assert not (tmp_path / "graphs").exists()


def test_a_folder_that_is_removed_while_it_is_opened_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    before, lock = SharedFolder(tmp_path / "graphs"), fcntl.flock

    def lock_late(folder: int, how: int) -> None:
        if how == fcntl.LOCK_SH:
            before.leave()
        lock(folder, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    folder = SharedFolder(tmp_path / "graphs")
    assert folder.path.is_dir()
    folder.leave()
    assert not folder.path.exists()
