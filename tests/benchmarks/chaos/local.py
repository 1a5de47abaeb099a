"""Runs of the demo's shop on this machine: a workspace in a folder, and a Prefect server of their own.

Two months are ingested and the first is run. The run over the second is the one that is disturbed: it has a parent, a
champion and a catalogue. While it runs undisturbed, the workspace is copied before each stage; a scene begins with such
a copy.
"""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flows.demo.search_log import write_shop
from infra import prefect_server
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind
from tasks.contracts.stages import Stage
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.foundation.errors import CodeError
from tasks.runs.plan import planned_runs
from tests.benchmarks.chaos.command import MARK, Command, processes_of
from tests.benchmarks.chaos.draws import Act, Draw
from tests.benchmarks.chaos.place import Ended, Undisturbed, first_stage
from tests.benchmarks.chaos.watching import watched

CONFIG_FILE = Path(__file__).with_name("chaos.yaml")
FALTERING = Path(__file__).with_name("faltering")
COLUMNS = {"id": "query_id", "query": "query", "item": "product", "item_id": "product_id", "label": "bought"}
LINEAGE = "main"
MONTHS = ("2026-01", "2026-02")
ROWS_PER_SPAN, SEED = 400, 7
POLL_SECONDS = 0.02
END_SECONDS = 20.0  # the longest that workers take to see that their orchestrator is gone


class LocalPlace:
    """Makes the workspace in a new folder and runs it undisturbed; `stop` ends its Prefect server."""

    name = "This machine, the workspace in a folder"
    whole_share = 0.5

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        """Raise CodeError: an undisturbed run fails."""
        self.folder, self.home, self.scratch = folder, folder / "prefect", folder / "tmp"
        self.scratch.mkdir(parents=True)
        self.earlier: frozenset[str] = frozenset()  # the keys of runs before the one that is disturbed
        base = LocalScene(self, folder / "undisturbed")
        log = folder / "shop.jsonl.gz"
        write_shop(log, len(MONTHS), ROWS_PER_SPAN, SEED)
        ingest(base.store, log, Format.jsonl, "searched_at", SpanKind.month, COLUMNS)
        try:
            say(f"{MONTHS[0]} is run, for a parent and a champion")
            _released(base.run(MONTHS[0]))
            self.earlier = frozenset(planned_runs(base.store))
            say(f"{MONTHS[1]} is run, undisturbed")
            self.undisturbed = self._watched(base)
        except BaseException:
            base.close(keep=True)  # first: a command that goes on starts its server again
            self.stop()
            raise

    def scene(self, draw: Draw) -> "LocalScene":
        return LocalScene(self, self.folder / f"run-{draw.number}", self.before(first_stage(draw)))

    def before(self, stage: Stage) -> Path:
        """Return the copy of the workspace in which this stage is the next."""
        return self.folder / "before" / stage

    def stop(self) -> None:
        prefect_server.down(self.home)

    def _watched(self, base: "LocalScene") -> Undisturbed:
        """Run the second month and copy the workspace before each of its stages, while all its processes stand."""
        shutil.copytree(base.root, self.before(Stage.validate))
        started, command = time.time(), base.start()
        for stage in tuple(Stage)[1:]:
            while not (base.began(stage) or command.over):
                time.sleep(POLL_SECONDS)
            command.send_all(signal.SIGSTOP)
            shutil.copytree(base.root, self.before(stage), ignore=shutil.ignore_patterns(".tmp-*"))
            command.send_all(signal.SIGCONT)
            for begun in self.before(stage).glob(f"runs/*/{stage}"):
                if begun.parent.name not in self.earlier:
                    shutil.rmtree(begun)
        _released(command.finish())
        (run_key,) = set(planned_runs(base.store)) - self.earlier
        return watched(base.store, run_key, started, time.time())


class LocalScene:
    """A workspace in a folder of this machine. Its processes carry its mark, and its files falter on request."""

    def __init__(self, place: LocalPlace, folder: Path, before: Path | None = None) -> None:
        """Raise FileExistsError: the folder is there. `before` is a workspace to begin with a copy of."""
        self._place, self._folder, self._mark = place, folder, str(folder)
        self._commands: list[Command] = []
        folder.mkdir()
        self.root = folder / "workspace"
        if before is not None:
            shutil.copytree(before, self.root)
        self.store: Store = DirectoryStore(self.root)

    def start(self) -> Command:
        return self.command(*self.run_words())

    def run(self, month: str) -> Ended:
        return self.command(*self.run_words(month)).finish()

    def run_words(self, month: str = MONTHS[1]) -> tuple[str, ...]:
        """Return the command that runs the pipeline over a month."""
        return ("run", "--config", str(CONFIG_FILE), "--span", month, "--workspace", self.store.uri, "--json")

    def command(self, *words: str, hooks: Path = FALTERING, **variables: str) -> Command:
        """Begin `millrace` with these words, in the environment of the scene and `variables`.

        Args:
            hooks: a folder with a sitecustomize.py, which its processes import.
        """
        inherited = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
        own = {
            MARK: self._mark,
            "MILLRACE_CHAOS_FOLDER": self._mark,
            "PREFECT_HOME": str(self._place.home),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(hooks), os.environ.get("PYTHONPATH", "")])),
            "TMPDIR": str(self._place.scratch),
        }
        self._commands.append(Command(words, {**inherited, **own, **variables}))
        return self._commands[-1]

    def began(self, stage: Stage) -> bool:
        records = self.root.glob(f"runs/*/{stage}/attempt-*/ledger.json")
        return any(record.parts[-4] not in self._place.earlier for record in records)

    def workers(self) -> list[int]:
        return processes_of(self._mark, "tasks.worker")

    def server(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            pid = int(json.loads((self._place.home / "server.json").read_bytes())["pid"])
            os.kill(pid, 0)
            return pid
        return None

    def falter(self, act: Act) -> None:
        (self._folder / "faltering").symlink_to(act.value)

    def recover(self) -> None:
        (self._folder / "faltering").unlink()

    def left_over(self) -> list[str]:
        return [*self._processes(), *self._files(), *self._locks()]

    def close(self, keep: bool) -> str:
        for command in self._commands:
            command.end()
        for pid in processes_of(self._mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in self._place.scratch.glob("millrace-*"):
            shutil.rmtree(path, ignore_errors=True)
        if not keep:
            shutil.rmtree(self._folder)
        return str(self._folder)

    def _processes(self) -> Iterator[str]:
        deadline = time.monotonic() + END_SECONDS
        while (found := processes_of(self._mark)) and time.monotonic() < deadline:
            time.sleep(0.2)
        yield from (f"process {pid} goes on" for pid in found)

    def _files(self) -> Iterator[str]:
        for path in sorted(self.root.rglob(".tmp-*")):
            yield f"{path.relative_to(self.root)} is left in the workspace"
        for path in sorted(self._place.scratch.glob("millrace-*")):
            yield f"{path.name} is left in the folder of temporary files"

    def _locks(self) -> Iterator[str]:
        if holder := self.store.peek(f"lineages/{LINEAGE}.run"):
            yield f"lineages/{LINEAGE}.run is in use by {holder.name}"


def _released(ended: Ended) -> None:
    if ended.code != 0:
        raise CodeError(f"the undisturbed run ended with {ended.code}: {ended.err.strip()}")
