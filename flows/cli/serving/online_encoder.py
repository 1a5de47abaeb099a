"""`millrace serve --online`: the command becomes the online encoder, a process of the worker plane."""

import os
import sys
from pathlib import Path
from typing import NoReturn

from infra.store.base import Store

PROGRAM = "tasks.worker.online"


def become(store: Store, port: int, release: int | None, host: str, token_file: Path | None) -> NoReturn:
    """Replace this process, so that its signals, its output and its exit code are the encoder's own."""
    arguments = ["--workspace", store.uri, "--port", str(port), "--host", host]
    arguments += [] if release is None else ["--release", str(release)]
    arguments += [] if token_file is None else ["--token-file", str(token_file)]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", PROGRAM, *arguments])
