"""Temporary folders and files go with a dead process, and stay with a live one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.temporary import ATTEMPT, clear_unfinished, scratch_folder, temporary_file
from tasks.foundation.errors import HostError
from tasks.running.lineage_lock import hold_lineage


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_the_folder_of_a_killed_process_is_deleted_and_that_of_a_live_one_stays(temporary: Path) -> None:
    (temporary / f"{ATTEMPT}killed" / "below").mkdir(parents=True)
    (temporary / "of-another-program").mkdir()
    with scratch_folder(ATTEMPT) as first, scratch_folder(ATTEMPT) as second:
        (first / "file").touch()
        assert sorted(temporary.iterdir()) == sorted([first, second, temporary / "of-another-program"])
    assert [path.name for path in temporary.iterdir()] == ["of-another-program"]


_KILLED = """
import os, signal
from infra.store.s3_transfers import mirror_of
mirror_of("s3://bucket").folder.mkdir()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_downloads_of_a_killed_process_are_deleted_by_the_next_one(temporary: Path) -> None:
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", _KILLED], cwd=Path(__file__).parents[3], env=os.environ | {"TMPDIR": str(temporary)}
        )
        assert done.returncode == -signal.SIGKILL
        assert len([*temporary.iterdir()]) == 1


def test_an_error_after_somebody_deleted_the_folder_is_the_machines_and_leaves_nothing(temporary: Path) -> None:
    with pytest.raises(HostError, match=f"deleted.*{temporary}/{ATTEMPT}"), scratch_folder(ATTEMPT) as folder:
        folder.rename(temporary / "moved").joinpath("gone", "file").touch()
    with pytest.raises(KeyError), scratch_folder(ATTEMPT):
        raise KeyError("a bug")
    assert [path.name for path in temporary.iterdir()] == ["moved"]


_DIES = """
import os, signal, sys
from pathlib import Path
from infra.store.directory import DirectoryStore
with DirectoryStore(Path(sys.argv[1]))._staged("models/m/weights") as staged:
    staged.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_next_holder_of_a_lineage_deletes_what_a_killed_writer_left(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _DIES, str(tmp_path)], cwd=Path(__file__).parents[3])
    assert done.returncode == -signal.SIGKILL
    (left,) = (tmp_path / "models" / "m").iterdir()
    assert left.name.startswith(".tmp-")
    with hold_lineage(DirectoryStore(tmp_path), "lineages/main.run", print):
        assert list((tmp_path / "models" / "m").iterdir()) == []


def test_what_is_being_written_stays(tmp_path: Path) -> None:
    with temporary_file(tmp_path) as staged:
        staged.write_bytes(b"half")
        clear_unfinished(DirectoryStore(tmp_path))
        assert staged.read_bytes() == b"half"
        os.replace(staged, tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]
