"""Commands whose streams are full, closed or of a small codec: the exit code is that of the work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MILLRACE = str(Path(sys.executable).with_name("millrace"))
FULL = "could not be written: No space left on device"


@pytest.mark.parametrize(
    ("words", "streams", "code", "said"),
    [
        ("--version", ">/dev/full", 0, f"standard output {FULL}"),
        ("--version", "2>/dev/full", 0, "millrace 0.1.0"),
        ("--version", ">&-", 0, ""),
        ("--version", ">&- 2>&-", 0, ""),
        ("releases --workspace nowhere", ">/dev/full", 78, "nowhere"),
        ("releases --workspace nowhere", "2>/dev/full", 78, f"standard error {FULL}"),
        ("releases --workspace nowhere", "2>&-", 78, ""),
        ("releases --workspace 'm\u00f6bel \u2212'", "2>&1", 78, "CONFIG"),
        ("--help", "| head -2", 0, "Usage"),
    ],
)
def test_what_can_not_be_printed_does_not_change_the_exit_code(
    tmp_path: Path, words: str, streams: str, code: int, said: str
) -> None:
    script = f"set -o pipefail; {MILLRACE} {words} {streams}"
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        ["bash", "-c", script.encode()], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert said in done.stdout + done.stderr
