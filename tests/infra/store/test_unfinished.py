"""Temporary files in a workspace: those of dead processes go, those of live ones stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from infra.store.directory import DirectoryStore
from infra.store.unfinished import clear_unfinished, temporary_file
from tasks.running.lineage_lock import hold_lineage

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
