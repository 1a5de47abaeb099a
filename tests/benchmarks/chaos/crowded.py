"""Places with room for several actors: the folder of local.py, and a bucket in which a month is released already."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from flows.demo.search_log import shop_rows, write_shop
from infra.store.factory import open_store
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.runs.plan import planned_runs
from tests.benchmarks.chaos.actors import Trouble
from tests.benchmarks.chaos.cloud import CloudScene
from tests.benchmarks.chaos.command import Command
from tests.benchmarks.chaos.draws import Draw
from tests.benchmarks.chaos.local import CONFIG_FILE, MONTHS, ROWS_PER_SPAN, SEED, LocalPlace, LocalScene
from tests.benchmarks.chaos.place import Undisturbed, first_stage
from tests.benchmarks.chaos.watching import watched
from tests.benchmarks.faults import world
from tests.benchmarks.faults.world import World
from tests.support.cloud.s3 import Fault
from tests.support.workspace.shop import STAGES

READING = Path(__file__).with_name("reading")
FEED_ITEMS = 5
_MANY = 10_000  # requests, more than there are
RUN, READER = "the-run", "a-reader"  # names that a client gives itself
MONTH = dt.date(2026, 3, 1)  # the one after those of the scene


class LocalCrowdPlace(LocalPlace):
    """Scenes begin with their first stage, or with the stage that is hit."""

    bucket = False

    def crowd_scene(self, draw: Draw) -> LocalCrowdScene:
        return LocalCrowdScene(self, self.folder / f"run-{draw.number}", self.before(first_stage(draw)))


class LocalCrowdScene(LocalScene):
    """A workspace in a folder, of which readers' changes are written down."""

    config_file = CONFIG_FILE

    def __init__(self, place: LocalPlace, folder: Path, before: Path) -> None:
        super().__init__(place, folder, before)
        self._changes = folder / "changes-by-readers"

    def reader(self, *words: str) -> Command:
        variables = {"MILLRACE_CHAOS_WORKSPACE": str(self.root), "MILLRACE_CHAOS_CHANGES": str(self._changes)}
        return self.command(*words, hooks=READING, **variables)

    def changed_by_readers(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted({f"a reader did {line}" for line in self._changes.read_text().splitlines()})
        return []

    def feed(self, number: int) -> Path:
        return write_feed(self.root.parent / f"feed-{number}.jsonl", number)

    def more_rows(self) -> Path:
        return write_month(self.root.parent / "more.jsonl.gz")

    def earlier_runs(self) -> frozenset[str]:
        return self._place.earlier

    def begin(self, trouble: Trouble) -> None:
        raise NotImplementedError(f"{trouble} is trouble of a bucket")


class CloudCrowdPlace:
    """AWS Batch and a bucket in which the first month is released, and the second waits. Scenes are whole runs."""

    name = "AWS Batch and S3, both emulated"
    whole_share = 1.0
    bucket = True

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.world, self.folder, self.earlier = World(folder), folder, frozenset[str]()
        source = folder / "months.jsonl.gz"
        write_shop(source, len(MONTHS), ROWS_PER_SPAN, SEED)
        self._base = self.world.s3.new_workspace()
        ingest(open_store(self._base), source, Format.jsonl, "searched_at", SpanKind.month, world.COLUMNS)
        try:
            say(f"{MONTHS[0]} is run on the emulated cloud, for a parent and a champion")
            self._run(self._base, MONTHS[0])
            self.earlier = frozenset(planned_runs(open_store(self._base)))
            say(f"{MONTHS[1]} is run, undisturbed")
            uri, started = self._copy(), time.time()
            self._run(uri, MONTHS[1])
            (run_key,) = set(planned_runs(open_store(uri))) - self.earlier
            self.undisturbed: Undisturbed = watched(open_store(uri), run_key, started, time.time())
        except BaseException:
            self.stop()
            raise

    def scene(self, draw: Draw) -> CloudCrowdScene:
        return self.crowd_scene(draw)

    def crowd_scene(self, draw: Draw) -> CloudCrowdScene:
        self.world.s3.forget()
        self.world.batch.forget()
        return CloudCrowdScene(self, self._copy(), MONTHS[1])

    def stop(self) -> None:
        self.world.stop()

    def _run(self, uri: str, month: str) -> None:
        scene = CloudCrowdScene(self, uri, month)
        ended = scene.start().finish()
        scene.close(keep=False)
        assert ended.code == 0, ended.err

    def _copy(self) -> str:
        """Return a new workspace like the first one."""
        s3, uri = self.world.s3, self.world.s3.new_workspace()
        old, new = (one.removeprefix("s3://").split("/", 1) for one in (self._base, uri))
        for key in open_store(self._base).list(""):
            if not key.startswith(".locks/"):
                source = {"Bucket": old[0], "Key": f"{old[1]}/{key}"}
                s3.client.copy_object(Bucket=new[0], Key=f"{new[1]}/{key}", CopySource=source)
        return uri


class CloudCrowdScene(CloudScene):
    """A workspace in a bucket; its server knows the run and the readers by the names that their clients give."""

    def __init__(self, place: CloudCrowdPlace, uri: str, month: str) -> None:
        super().__init__(place, world.Scene(place.world, uri, STAGES), month, place.earlier)
        self._s3, self._folder = place.world.s3, place.folder / uri.split("/")[2]
        self._folder.mkdir()
        self.config_file = place.world.config_file

    def command(self, *words: str, **variables: str) -> Command:
        named = {"AWS_SDK_UA_APP_ID": RUN} if words == self.run_words() else {}
        return super().command(*words, **{**named, **variables})

    def reader(self, *words: str) -> Command:
        return self.command(*words, AWS_SDK_UA_APP_ID=READER)

    def changed_by_readers(self) -> list[str]:
        bucket = self.scene.uri.split("/")[2]
        changes = {asked for agent, asked in self._s3.changes if f"app/{READER}" in agent and f"/{bucket}/" in asked}
        return sorted(f"a reader asked for {asked}" for asked in changes)

    def feed(self, number: int) -> Path:
        return write_feed(self._folder / f"feed-{number}.jsonl", number)

    def more_rows(self) -> Path:
        return write_month(self._folder / "more.jsonl.gz")

    def earlier_runs(self) -> frozenset[str]:
        return self._earlier

    def begin(self, trouble: Trouble) -> None:
        if trouble is Trouble.conflicts:
            self._s3.faults += [Fault("PUT", 409, "ConditionalRequestConflict")] * _MANY
        else:
            methods = ("GET", "HEAD", "PUT", "POST", "DELETE")
            self._s3.faults += [Fault(method, 503, "SlowDown", by=f"app/{RUN}") for method in methods] * _MANY

    def recover(self) -> None:
        changes = self._s3.changes
        super().recover()
        self._s3.changes = changes

    def _twins(self) -> Iterator[str]:
        """Yield nothing: a refresh has jobs of the same stages."""
        yield from ()


def write_feed(path: Path, number: int) -> Path:
    """Write a feed of items that no row names, and return its path."""
    found = list(shop_rows(1, FEED_ITEMS, SEED))
    kept = ("product", "category", "locale", "price", "searched_at")
    rows = [{**{name: row[name] for name in kept}, "product_id": f"new-{number}-{n}"} for n, row in enumerate(found)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_month(path: Path) -> Path:
    """Write the rows of the month after the scene's, and return the path."""
    write_shop(path, 1, ROWS_PER_SPAN, SEED + 1, first=MONTH)
    return path
