import errno
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tasks.foundation.disks import cause_of, message_of
from tasks.foundation.errors import FailureClass, HostError, classify


class Usage(NamedTuple):
    total: int
    used: int
    free: int


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("full", "error", "said", "unsaid"),
    [
        (
            "/tmp",
            NO_SPACE,
            r"temporary folder /tmp is on a disk of 1\.0 GiB that is full; .*set TMPDIR",
            "workspace",
        ),
        (
            "/work",
            NO_SPACE,
            r"workspace /work is on a disk of 1\.0 GiB that is full; free some space\. T",
            "TMPDIR",
        ),
        ("", NO_SPACE, r"look at what else was written", "/tmp|that is full"),
        ("/", OSError(errno.ENOSPC, "No space", "/no/file"), r"folder / is on a disk of 1\.0 GiB that is full", "/tmp"),
        ("", OSError(errno.EDQUOT, "Quota", "/no/file"), r"the quota of this user on the disk of / ", "/tmp"),
        ("", OSError(errno.ENOSPC, "No space", "/a", None, "/no/b"), r"the disk of / has space again", "/tmp"),
        ("/tmp", OSError(errno.EROFS, "Read-only", "/no/file"), r"the disk of / is mounted for reading only", "/tmp"),
    ],
)
def test_the_disk_that_is_full_is_named(monkeypatch, full, error, said, unsaid):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2**30, 2**30, 0 if str(folder) == full else 2**30))
    message = message_of(error, "/work")
    assert message.startswith(f"{error}: ")
    assert re.search(said, message)
    assert not re.search(unsaid, message)


def test_an_error_after_somebody_deleted_the_temporary_folder_is_the_machines(tmp_path: Path) -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", str(tmp_path / "gone" / "events"))
    assert cause_of(missing, tmp_path) is missing
    found = cause_of(missing, tmp_path / "gone")
    assert (classify(found), str(tmp_path / "gone") in str(found)) == (FailureClass.HOST, True)
    known, stopped = HostError("a worker was killed"), KeyboardInterrupt()
    assert cause_of(known, tmp_path / "gone") is known
    assert cause_of(stopped, tmp_path / "gone") is stopped
