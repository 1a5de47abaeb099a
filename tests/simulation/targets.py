"""A search service in memory, and the worker that publishes to it: each request to the service is a turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import tasks.worker.publish
from infra.store.base import Store
from infra.store.manifest import expect_manifest, read_manifest
from tasks.contracts.jobs import JobSpec
from tasks.contracts.outcomes import PublishOutcome
from tasks.contracts.runs import Release
from tasks.contracts.workspace import RELEASE
from tasks.publish import publish_to_all, swap_back
from tasks.runs import releases
from tasks.runs.rollback import rollback
from tasks.worker.export.table_contents import IndexQuality
from tasks.worker.export.target import DamagedTable, Index, Owner, Shape, release_of, table_names
from tests.simulation.objects import Objects
from tests.support.fakes.fake_runner import small_config

NAME = "look"
BEGAN = (2, 3)  # releases with a table; the last one is served
ROWS = 2  # of the one partition of each release; a load puts one after the other
CONFIG = small_config(f"publish.targets=[{{kind: lancedb, name: {NAME}, uri: l}}]")


class SimulatedTarget:
    """One service: `served` is the table that consumers read, and its owner; `checked`, by process, the last index."""

    where = f"target {NAME}"

    def __init__(self, store: Store, objects: Objects, left_at: Mapping[int, int]) -> None:
        self._objects = objects
        self._left_at = left_at  # release -> the turn that moved the pointer away from it
        began = [Release.model_validate_json(objects.files[RELEASE.key(number=number)].data) for number in BEGAN]
        names = [table_names(NAME, each.number, each.vectors_sha256)[0] for each in began]
        self._tables = dict.fromkeys(names, ROWS)
        self.served = names[-1], Owner(store.uri, CONFIG.lineage)
        self.checked: dict[str, int] = {}
        self._seen: dict[str, str] = {}  # the served table that each process saw last, since it swapped

    def serving(self) -> str:
        self._turn("serving")
        self._seen[self._process()] = self.served[0]
        return self.served[0]

    def owner(self) -> Owner:
        self._turn("owner")
        return self.served[1]

    def tables(self) -> list[str]:
        self._turn("tables")
        return sorted(self._tables)

    def create(self, table: str, shape: Shape) -> None:
        self._turn("create")
        self._tables.setdefault(table, 0)

    def rows_by_partition(self, table: str, partitions: int) -> dict[int, int]:
        self._turn("rows")
        return {0: rows} if (rows := self._rows(table)) else {}

    def load(self, table: str, partition: int, rows: int, again: bool) -> None:
        if again:
            self._turn("clear")
            self._rows(table)
            self._tables[table] = 0
        for _ in range(rows):
            self._turn("load")
            self._tables[table] = self._rows(table) + 1

    def index(self, table: str) -> Index:
        self._turn("index")
        self.checked[self._process()] = self._turns()
        return Index(name="by cosine", rows=self._rows(table))

    def serve(self, table: str, owner: Owner) -> None:
        self._turn("serve")
        if self._rows(table) != ROWS:
            self._fail(f"{self.where} serves {table}, which has {self._rows(table)} rows of {ROWS}")
        number = release_of(table)
        if not self._was_current_since(number, self.checked.get(self._process(), 0)):
            self._fail(f"{self.where} went to release {number}, which was not current since its table was checked")
        self.served = table, owner
        self._seen.pop(self._process(), None)

    def drop(self, table: str) -> None:
        self._turn("drop")
        if table == self.served[0] and self._seen.get(self._process(), table) == table:  # else it has just looked
            self._fail(f"{self.where} dropped {table}, which it serves")
        self._tables.pop(table, None)

    def close(self) -> None: ...

    def check(self, table: str) -> None:
        """Raise DamagedTable if a table has not all rows."""
        self._turn("check")
        if self._tables.get(table) != ROWS:
            raise DamagedTable(f"{self.where}, table {table}: {self._tables.get(table)} rows of {ROWS}")

    def _was_current_since(self, number: int, turn: int) -> bool:
        pointer = releases.Pointer.model_validate_json(self._objects.files[releases.CURRENT].data)
        return number == pointer.release or self._left_at.get(number, -1) >= turn

    def _rows(self, table: str) -> int:
        if table not in self._tables:
            raise DamagedTable(f"{self.where}, table {table}: it is gone")
        return self._tables[table]

    def _turn(self, what: str) -> None:
        if self._objects.scheduler is not None:
            self._objects.scheduler.request(what, f"target {NAME}")

    def _turns(self) -> int:
        return self._objects.scheduler.turns if self._objects.scheduler is not None else 0

    def _process(self) -> str:
        strand = self._objects.scheduler.current if self._objects.scheduler is not None else None
        return strand.process.name if strand is not None else ""

    def _fail(self, sentence: str) -> None:
        if self._objects.scheduler is not None:
            self._objects.scheduler.fail(sentence)


class _Vectors:
    """The vectors of a release, whose files say nothing."""

    def __init__(
        self, store: Store, prefix: str, model_version: str, sha256: str, width: int | None, of_queries: str
    ) -> None:
        manifest = read_manifest(store, prefix)
        expect_manifest(store, prefix, manifest, sha256)
        self.sha256, self.named, self.model_version = sha256, sha256, model_version
        self.count, self.partitions = ROWS, 1
        self.shape = Shape(4, False, of_queries)

    def rows_by_partition(self) -> dict[int, int]:
        return {0: ROWS}

    def rows(self, partition: int) -> int:
        return ROWS


def publish_by_worker(store: Store, spec: JobSpec) -> PublishOutcome:
    """Do the work of the worker of a publication."""
    clock = SimpleNamespace(phase=lambda _: contextlib.nullcontext())
    job: Any = SimpleNamespace(spec=spec, store=store, config=spec.config, clock=clock)
    return tasks.worker.publish.run(job)


class Service:
    """The service that workers of this process open; `target` is that of the present interleaving."""

    target: SimulatedTarget

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Let workers find it inside the block, and its checks look at the number of rows alone."""
        checked = IndexQuality(recall=1.0, query_ms=0.5, queries=24)
        with contextlib.ExitStack() as held:
            for name, stand_in in (
                ("open_target", lambda settings: self.target),
                ("ReleaseVectors", _Vectors),
                ("check_content", lambda target, table, release: target.check(table)),
                ("check_ids", lambda target, table, release: None),
                ("check_index", lambda *_, **__: checked),
                ("report", lambda *_: None),
            ):
                held.enter_context(patch.object(tasks.worker.publish, name, stand_in))
            yield


def publish(store: Any) -> None:
    """`millrace publish`."""
    current = releases.current(store)
    assert current is not None
    publish_to_all(store, CONFIG, current, True)


def rollback_and_publish(store: Any) -> None:
    """`millrace rollback --to 2` with a target: it is switched at once, and checked afterwards."""
    went_to = rollback(store, to=BEGAN[0])
    swap_back(store, CONFIG, went_to)
    publish_to_all(store, CONFIG, went_to, True)


COMMANDS: Mapping[str, Callable[[Any], object]] = {
    "publish": publish,
    "publish again": publish,
    "rollback to 2 and publish": rollback_and_publish,
}
