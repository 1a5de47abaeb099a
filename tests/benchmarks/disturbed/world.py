"""A place with a Prefect server, made once, and a workspace of its own for each run that is disturbed there.

The demo's shop is ingested, all months but the last are run for a parent and a champion, and the last one is run
undisturbed, as a measure. A scene is a workspace as it stood before some stages of that run.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from flows.demo.search_log import shop_rows, write_shop
from infra import prefect_server
from infra.store.base import Store
from tasks.contracts.spans import SpanKind
from tasks.contracts.stages import Stage
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.foundation.errors import CodeError
from tasks.runs import ledger
from tasks.runs.plan import planned_runs
from tests.benchmarks.disturbed.command import LONGEST_SECONDS, Command, end_at_sigterm, processes
from tests.benchmarks.disturbed.invariants import content
from tests.benchmarks.disturbed.judge import Undisturbed, measured
from tests.support.processes.command import CommandResult
from tests.support.workspace.shop import COLUMNS

T = TypeVar("T")
W = TypeVar("W", bound="World")

MONTHS = ("2026-01", "2026-02")
LATER = dt.date(2026, 3, 1)  # the month after them
ROWS, SEED = 400, 7  # of a month; of the shop
FEED_ITEMS = 5
LOCK = "lineages/main.run"


class World(ABC):
    """Runs from its making until `stop`."""

    name: str
    months: tuple[str, ...] = MONTHS
    whole_share: float  # of the disturbed runs that begin with their first stage, from 0 to 1
    config_file: Path
    undisturbed: Undisturbed

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        """Raise CodeError: an undisturbed run fails."""
        self.folder, self.home = folder, folder / "prefect"
        self.earlier: frozenset[str] = frozenset()  # the keys of runs before the one that is disturbed
        self.scenes, self.kept = set[Scene](), list[str]()  # open ones; places of closed ones that stay for a look
        self.services = contextlib.ExitStack()  # ended last
        os.environ.pop("PREFECT_API_URL", None)
        try:
            base, source = self.serve(), folder / "shop.jsonl.gz"
            write_shop(source, len(self.months), ROWS, SEED)
            columns = {name: column for name, _, column in (pair.partition("=") for pair in COLUMNS.split(","))}
            ingest(base.store, source, Format.jsonl, "searched_at", SpanKind.month, columns)
            for month in self.months[:-1]:
                say(f"{month} is run, for a parent and a champion")
                _released(base.start(span=month).finish())
            self.earlier = frozenset(planned_runs(base.store))
            say(f"{self.months[-1]} is run, undisturbed")
            self.keep(base)
            started = time.time()
            _released(self.run_last(base))
            ended = time.time()
            (run_key,) = set(planned_runs(base.store)) - self.earlier
            records = ledger.records(base.store, run_key)
            if tuple(record.stage for record in records) != tuple(Stage):
                raise CodeError(f"the undisturbed run has other attempts than one of each stage: {records}")
            self.undisturbed = measured(records, started, ended, content(base.store))
        except BaseException:
            self.stop()
            raise

    @abstractmethod
    def serve(self) -> Scene:
        """Start the services of the place, and return a scene with an empty workspace."""

    @abstractmethod
    def keep(self, base: Scene) -> None:
        """Keep a copy of a workspace in which the last month is next."""

    def run_last(self, base: Scene) -> CommandResult:
        """Run the last month, undisturbed."""
        return base.run()

    @abstractmethod
    def scene(self, name: str, stages: Sequence[Stage]) -> Scene:
        """Return a scene in which these stages are not done, for a run called `name`."""

    def stop(self) -> None:
        """End the commands and the services."""
        for scene in self.scenes:  # first: a command that goes on starts its server again
            scene.end()
        prefect_server.down(self.home)
        self.services.close()


@contextlib.contextmanager
def opened(make: Callable[[Path, Callable[[str], None]], W], say: Callable[[str], None]) -> Iterator[W]:
    """Make a world in a temporary folder, which stays if a scene in it was kept. SIGTERM ends both."""
    end_at_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="millrace-disturbed-"))
    kept = False
    try:
        world = make(folder, say)
        try:
            yield world
        finally:
            kept = bool(world.kept)
            world.stop()
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


class Scene(ABC):
    """A workspace in which the same command can be run, and be disturbed."""

    look_seconds = 0.0  # before each listing of the workspace

    def __init__(self, world: World, store: Store, stages: Sequence[Stage], files: Path) -> None:
        """Make the folder `files`, for files of the scene that are not in its workspace.

        Raises:
            FileExistsError: the folder exists.
        """
        files.mkdir(parents=True)
        self.world, self.store, self.stages, self.files = world, store, stages, files
        self._made_at, self._started, self._commands = ledger.now(), 0.0, list[Command]()
        world.scenes.add(self)

    def run_words(self, *settings: str, span: str = "") -> tuple[str, ...]:
        """Return the command that runs the pipeline over a span, by default the last."""
        overrides = [word for setting in settings for word in ("--set", setting)]
        fixed = ("run", "--config", str(self.world.config_file), "--span", span or self.world.months[-1], "--json")
        return (*fixed, "--workspace", self.store.uri, *overrides)

    def start(self, *settings: str, span: str = "", **variables: str) -> Command:
        """Begin `millrace run`."""
        self._started = self._started or time.monotonic()
        return self.command(*self.run_words(*settings, span=span), **variables)

    def run(self, *settings: str) -> CommandResult:
        return self.start(*settings).finish()

    def command(self, *words: str, **variables: str) -> Command:
        """Begin `millrace` with these words, in the environment of the scene and `variables`."""
        self._commands.append(Command(words, {"PREFECT_HOME": str(self.world.home), **variables}))
        return self._commands[-1]

    @abstractmethod
    def reader(self, *words: str) -> Command:
        """Begin a command that must change nothing."""

    @abstractmethod
    def changed_by_readers(self) -> list[str]:
        """Return the changes that such commands made all the same."""

    @abstractmethod
    def falter(self, how: str) -> None:
        """Begin with trouble: `store-errors`, `store-delays`, `disk-full`; in a bucket also `conflicts`, `cut-off`."""

    @abstractmethod
    def recover(self) -> None:
        """End the trouble that `falter` began."""

    @abstractmethod
    def left_over(self) -> list[str]:
        """Return processes, jobs, locks and temporary files that no ended command should leave, a sentence each."""

    def send_all(self, command: Command, number: signal.Signals) -> None:
        """Send a signal to a command and to its workers."""
        command.send_all(number)

    def close(self, keep: bool) -> None:
        """End all commands; delete the workspace, or keep it for a look, in the folder `files`."""
        self.end()
        self.world.scenes.discard(self)
        if keep:
            self.world.kept.append(str(self.files))
        else:
            shutil.rmtree(self.files)

    def end(self) -> None:
        """End all commands."""
        for command in self._commands:
            command.end()

    @property
    def seconds(self) -> float:
        """Since the first run was started."""
        return time.monotonic() - self._started

    def begun(self) -> set[Stage]:
        """Return the stages of which an attempt has begun in the run that is disturbed."""
        time.sleep(self.look_seconds)
        parts = [key.split("/") for key in self.store.list("runs") if key.endswith("/ledger.json")]
        return {Stage(part[2]) for part in parts if part[1] not in self.world.earlier and part[2] in tuple(Stage)}

    def attempts(self) -> list[ledger.LedgerRecord]:
        """Return the ledger's records of the attempts that began in this scene."""
        return [record for record in ledger.records(self.store) if record.started_at >= self._made_at]

    def workers(self, stage: str = "") -> list[int]:
        """Return the worker processes of all stages, or of one stage, by rank."""
        found = [
            (int(one.variables.get("RANK", "0")), one.pid)
            for one in processes()
            if one.module == "tasks.worker"
            and (not stage or stage in one.words)
            and any(self.store.uri in word for word in one.words)
        ]
        return [pid for _, pid in sorted(found)]

    def forkers(self) -> list[int]:
        """Return the processes of the scene from which workers are forked."""
        return []

    def server(self) -> int | None:
        """Return the process group of the Prefect server; None if none runs."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(json.loads((self.world.home / "server.json").read_bytes())["pid"])
            os.kill(pid, 0)
            return pid
        return None

    def wait_for(self, found: Callable[[], T | None], command: Command | None = None, every: float = 0.1) -> T:
        """Return the result of `found`, once that is true.

        Raises:
            TimeoutError: it did not come true, or the command ended before.
        """
        deadline = time.monotonic() + LONGEST_SECONDS
        while not (result := found()):
            if time.monotonic() > deadline or (command is not None and command.over):
                ended = f"; the run ended before: {command.finish().err}" if command and command.over else ""
                raise TimeoutError(f"the event that was waited for did not happen{ended}")
            time.sleep(every)
        return result

    def feed(self, number: int) -> Path:
        """Write a feed of items that no row names, and return its path."""
        found = list(shop_rows(1, FEED_ITEMS, SEED))
        kept = ("product", "category", "locale", "price", "searched_at")
        rows = [
            {**{name: row[name] for name in kept}, "product_id": f"new-{number}-{n}"} for n, row in enumerate(found)
        ]
        path = self.files / f"feed-{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def more_rows(self) -> Path:
        """Write the rows of the month after the scene's, and return the path."""
        path = self.files / "more.jsonl.gz"
        write_shop(path, 1, ROWS, SEED + 1, first=LATER)
        return path

    def locks(self) -> Iterator[str]:
        """Yield a sentence if somebody holds the lineage."""
        if holder := self.store.peek(LOCK):
            yield f"{LOCK} is in use by {holder.name}"


def _released(result: CommandResult) -> None:
    if result.code != 0:
        raise CodeError(f"the undisturbed run ended with {result.code}: {result.err.strip()}")
