"""Each command killed before each of its changes to the store, and given again: the end is the undisturbed one."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import infra.compute.factory
from configs.schema.operations import PruneConfig
from flows.backfill import backfill
from flows.pipeline import pipeline
from flows.refresh import refresh
from infra.store import s3_store, s3_transfers
from tasks.contracts import workspace
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest as ingest_rows
from tasks.foundation.clock import Clock, Repeating, keep_time_by
from tasks.laboratory.import_checkpoint import import_checkpoint
from tasks.prune.prune import prune
from tasks.publish import publish_to_all, swap_back
from tasks.runs import releases, snapshot
from tasks.runs.rollback import rollback
from tests.simulation.objects import InlineExecutor, Objects
from tests.simulation.scheduler import START, Killed
from tests.simulation.stores import RULES, copy_of
from tests.simulation.without_prefect import without_prefect
from tests.simulation.workspaces import opened
from tests.support.fakes.fake_runner import FakeRunner, ingest, ingest_feed, small_config

SETTINGS = ("model.scratch.layers=1",)
TARGETS = (*SETTINGS, "publish.targets=[{kind: lancedb, name: look, uri: l}]")
AFTER_SECONDS = 120.0  # until somebody gives the command again; a lease lives for 60
SPANS = ("2021-Q1", "2021-Q2", "2021-Q3")
# Records of what happened on the way, one more for each attempt.
_ON_THE_WAY = (
    workspace.SPEC, workspace.LEDGER, workspace.SEEN, workspace.INVOCATION, workspace.LOCK, workspace.FENCE,
    workspace.PLANNED, workspace.BAD_ROWS,
)  # fmt: skip
_BESIDE = ("packs/", "open/", "watch/", "outbox/", "campaigns/", "quarantine/", ".locks/")
_TIMES = re.compile(r'"(at|[a-z_]+_at|seconds|attempt|until|state|sentence|write)": ?("[^"]*"|[-0-9.e+]+|null),?')

_SEAL = re.compile(r',\n  "sha256": "[0-9a-f]{64}"\n}\n$')  # of a release, with the times in it


class MovingClock(Clock):
    """A clock that only sleeps and requests move."""

    def __init__(self) -> None:
        self.time = 0.0

    def seconds(self) -> float:
        return START + self.time

    def uptime(self) -> float:
        return self.time

    def boot(self) -> str:
        return "one machine"

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def repeat(self, act: Callable[[], None], every_seconds: float, name: str) -> Repeating:
        return _NoRenewal()


class _NoRenewal:
    def stop(self, patience_seconds: float) -> bool:
        return True


class Mortal(Objects):
    """Objects whose process dies before its n-th change, and sends no request after that."""

    def __init__(self, objects: Objects, clock: MovingClock) -> None:
        super().__init__()
        alike = objects.copy()
        self.files, self._order, self._writes = alike.files, alike._order, alike._writes
        self.clock, self.changes, self.dies_at, self.dead = clock, 0, 0, False

    @property
    def time(self) -> float:
        return self.clock.time

    def turn(self, what: str, key: str) -> None:
        self.clock.time += 0.01
        if self.dead:
            raise Killed

    def put(self, key: str, data: bytes, tag: str = "", metadata: Mapping[str, str] | None = None) -> Any:
        self._count()
        return super().put(key, data, tag, metadata)

    def remove(self, key: str) -> None:
        self._count()
        super().remove(key)

    def _count(self) -> None:
        self.changes += 1
        if self.changes == self.dies_at:
            self.dead = True
        if self.dead:
            raise Killed


class Command(NamedTuple):
    """A command, and the work before it."""

    before: Callable[[Any], object]
    act: Callable[[Any], object]


def _two_runs(store: Any, settings: tuple[str, ...] = SETTINGS) -> None:
    ingest(store, *SPANS)
    for _ in SPANS[:2]:
        pipeline.fn(store.uri, "", overrides=settings)


def _with_new_items(store: Any) -> None:
    _two_runs(store)
    ingest_feed(store, "2021-01")


def _with_refreshes(store: Any) -> None:
    _two_runs(store)
    for version in (1, 2, 3):
        ingest_feed(store, "2021-01", version)
        refresh.fn(store.uri, overrides=SETTINGS)


def _with_a_correction(store: Any) -> None:
    _two_runs(store)
    ingest(store, SPANS[1], version=2)


def _rolled_back(store: Any) -> None:
    """`millrace rollback --to 1`, which is refused once it is done; then the targets, as `millrace publish` does."""
    current = releases.current(store)
    if current is None or current.number != 1:
        rollback(store, to=1)
    made = releases.read(store, 1)
    swap_back(store, small_config(TARGETS[1]), made)
    publish_to_all(store, small_config(TARGETS[1]), made, True)


def _published(store: Any) -> None:
    current = releases.current(store)
    assert current is not None
    publish_to_all(store, small_config(TARGETS[1]), current, True)


def _ingested(store: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "log.jsonl"
        rows = [
            {"q": f"query {n}", "i": f"item {n}", "id": str(n), "at": f"2021-0{1 + n % 6}-10T00:00:00+00:00"}
            for n in range(24)
        ]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        ingest_rows(store, source, Format.jsonl, "at", SpanKind.quarter, {"query": "q", "item": "i", "id": "id"})


def _imported(store: Any) -> None:
    import_checkpoint(store, small_config(), copy_of("weights.pt", {"weights.pt": b"weights"}))


COMMANDS: Mapping[str, Command] = {
    "run": Command(_two_runs, lambda store: pipeline.fn(store.uri, SPANS[2], overrides=SETTINGS)),
    "refresh": Command(_with_new_items, lambda store: refresh.fn(store.uri, overrides=SETTINGS)),
    "rollback": Command(lambda store: _two_runs(store, TARGETS), _rolled_back),
    "publish": Command(_two_runs, _published),
    "prune": Command(_with_refreshes, lambda store: prune(store, PruneConfig.newest(1), False, lambda _: None)),
    "backfill": Command(
        _with_a_correction, lambda store: backfill.fn(store.uri, SPANS[1], SPANS[1], parallel=1, overrides=SETTINGS)
    ),
    "ingest": Command(lambda store: None, _ingested),
    "import": Command(lambda store: ingest(store, SPANS[0]), _imported),
}


class Swept(NamedTuple):
    """A command with all of its crash points: the first change before which a kill makes another end, with the keys."""

    command: str
    rules: str
    changes: int
    wrong: Mapping[int, str]


def sweep(command: str, rules: str) -> Swept:
    """Kill a command before each of its changes in turn, and give it again."""
    with _place() as clock:
        begin = Objects()
        with _workers(begin, rules) as store:
            COMMANDS[command].before(store)
        undisturbed = Mortal(begin, clock)
        with _workers(undisturbed, rules) as store:
            COMMANDS[command].act(store)
        wanted, wrong = end_of(undisturbed), {}
        for n in range(1, undisturbed.changes + 1):
            if (difference := _killed_at(n, command, rules, begin, clock, wanted)) is not None:
                wrong[n] = difference
        return Swept(command, rules, undisturbed.changes, wrong)


def _killed_at(
    n: int, command: str, rules: str, begin: Objects, clock: MovingClock, wanted: Mapping[str, str]
) -> str | None:
    objects = Mortal(begin, clock)
    objects.dies_at = n
    served: dict[str, Any] = {}
    with _workers(objects, rules, served) as store, contextlib.suppress(Killed):
        COMMANDS[command].act(store)
    objects.dies_at, objects.dead = 0, False
    clock.time += AFTER_SECONDS
    try:
        with _workers(objects, rules, served) as store:
            COMMANDS[command].act(store)
    except Exception as error:
        return f"given again: {type(error).__name__}: {error}"
    return difference(wanted, end_of(objects))


def end_of(objects: Objects) -> dict[str, str]:
    """Return the contents that count, without times and numbers of attempts."""
    found = {}
    for key, stored in objects.files.items():
        if key.startswith(_BESIDE) or any(kind.match(key) for kind in _ON_THE_WAY):
            continue
        text = stored.data.decode("latin-1")
        if workspace.RELEASE.match(key):
            text = _SEAL.sub("", text)
        found[key] = _TIMES.sub("", text) if key.endswith(".json") or key == "releases/CURRENT" else text
    return found


def difference(wanted: Mapping[str, str], found: Mapping[str, str]) -> str | None:
    """Return the keys that differ, and None if none does."""
    lacking, more = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = sorted(key for key in wanted.keys() & found.keys() if wanted[key] != found[key])
    parts = [
        f"{word} {', '.join(keys[:3])}"
        for word, keys in (("lacks", lacking), ("has", more), ("changed", other))
        if keys
    ]
    return "; ".join(parts) or None


@contextlib.contextmanager
def _place() -> Iterator[MovingClock]:
    clock = MovingClock()
    logging.disable(logging.CRITICAL)
    with contextlib.ExitStack() as held:
        held.callback(logging.disable, logging.NOTSET)
        held.enter_context(keep_time_by(clock))
        held.enter_context(without_prefect())
        for module in (s3_store, s3_transfers, snapshot):
            held.enter_context(patch.object(module, "ThreadPoolExecutor", InlineExecutor))
        yield clock


@contextlib.contextmanager
def _workers(objects: Objects, rules: str, served: dict[str, Any] | None = None) -> Iterator[Any]:
    """Open the store; its workers keep what the targets serve, which a killed process does not take along."""
    served = {} if served is None else served

    def runner(config: object, store: Any, stage: object) -> FakeRunner:
        made = FakeRunner(store)
        made.served, made.tables = served.setdefault("served", {}), served.setdefault("tables", set())
        return made

    with opened(objects, rules) as store, patch.object(infra.compute.factory, "make_runner", runner):
        yield store


def main() -> int:
    """Print a table of all commands on both stores, and return the exit status."""
    print("| command | store | changes | ends otherwise |\n|---|---|---:|---|")
    wrong = 0
    for command in sys.argv[1:] or COMMANDS:
        for rules in RULES:
            swept = sweep(command, rules)
            wrong += len(swept.wrong)
            print(f"| {command} | {rules} | {swept.changes} | {len(swept.wrong)} |", flush=True)
            for n, what in swept.wrong.items():
                print(f"    before change {n}: {what[:300]}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
