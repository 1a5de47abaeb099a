import errno
import re
import shutil
from typing import NamedTuple

import pytest

from tasks.foundation.disks import message_of


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize(
    ("full", "said", "unsaid"),
    [
        ("/tmp", r"the temporary folder /tmp is on a disk of 1\.0 GiB that is full; .*set TMPDIR", "the workspace"),
        ("/work", r"the workspace /work is on a disk of 1\.0 GiB that is full; free some space\. Then run", "TMPDIR"),
        ("", r"look at what else was written", "that is full"),
    ],
)
def test_the_disk_that_is_full_is_named(monkeypatch, full, said, unsaid):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2**30, 2**30, 0 if str(folder) == full else 2**30))
    message = message_of(OSError(errno.ENOSPC, "No space left on device"), "/work")
    assert message.startswith("[Errno 28] No space left on device: ")
    assert re.search(said, message)
    assert unsaid not in message
