"""`millrace serve` in the background: started by the demo, found again, ended by `millrace down`."""

import os
import sys
import time
from pathlib import Path

from pydantic import Field

from flows.cli.serving.server import HOST
from infra import background
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.records import find_record
from tasks.foundation.errors import HostError
from tasks.foundation.records import Record

PORT = 4280
START_SECONDS = 60.0
RECORD, LOG = "pages.json", "pages.log"  # next to the Prefect server's


class _Entry(Record):
    """`pages.json`: the last process that was started for a state directory."""

    pid: int
    port: int
    workspace: str = Field(description="its URI")

    @property
    def words(self) -> tuple[str, ...]:
        """Parts of the process's command line."""
        return "millrace serve", f"--port {self.port}"


def up(store: Store, home: Path, port: int = PORT) -> str:
    """Return the address of the pages of a workspace; a process that shows another workspace is replaced.

    Raises:
        HostError: it did not start, for example because the port is taken; says why.
    """
    home = home.resolve()
    entry = _read(home)
    if entry is not None and background.is_running(entry.pid, *entry.words):
        if (entry.workspace, entry.port) == (store.uri, port):
            return f"http://{HOST}:{port}"
        background.end(entry.pid, *entry.words)
    home.mkdir(parents=True, exist_ok=True)
    command = (str(Path(sys.executable).with_name("millrace")), "serve", "--port", str(port), "--workspace", store.uri)
    log = home / LOG
    with log.open("wb") as output:
        entry = _Entry(pid=background.start(command, output, Path.cwd(), os.environ), port=port, workspace=store.uri)
    DirectoryStore(home).write(RECORD, entry.to_json())
    deadline = time.monotonic() + START_SECONDS
    while " shows " not in (said := log.read_text(errors="replace", encoding="utf-8")):
        ended = background.status(entry.pid) is not None
        if ended or time.monotonic() > deadline:
            background.end(entry.pid, *entry.words)
            (home / RECORD).unlink(missing_ok=True)
            raise HostError(f"the pages are not served: {said.strip() or f'nothing within {START_SECONDS:.0f} s'}")
        time.sleep(0.1)
    return f"http://{HOST}:{port}"


def down(home: Path) -> bool:
    """Stop serving the pages of `home`; return False if none were served. Touches no other process."""
    home = home.resolve()
    entry = _read(home)
    running = entry is not None and background.is_running(entry.pid, *entry.words)
    if entry is not None and running:
        background.end(entry.pid, *entry.words)
    if entry is not None:
        (home / RECORD).unlink(missing_ok=True)
    return running


def _read(home: Path) -> _Entry | None:
    return find_record(DirectoryStore(home), RECORD, _Entry, "delete it") if home.is_dir() else None
