"""The online encoder under load while releases and rollbacks swap it and three targets.

    python -m tests.benchmarks.fire [--seconds 120] [--keep]

Ten small releases of five models are made first, one of which was trained on queries alone. Then eight clients ask
`millrace serve --online` and search LanceDB, Postgres with pgvector and the stand-in of OpenSearch, as
tests/benchmarks/fire/clients.py says: first while nothing changes, then through nine more releases and three
rollbacks, each published to all targets, then idle again. A figure beyond its limit is marked, and the exit code is
then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.publish import publish_to_all, swap_back
from tasks.runs import releases
from tasks.runs.rollback import rollback
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.support.fakes.opensearch_server import OpensearchServer
from tests.support.processes.online_server import OnlineServer, running
from tests.support.processes.postgres import Postgres
from tests.support.workspace.served import in_use, make_served, point_to, served_config

SPANS = ("2021-Q1", "2021-Q2", "2021-Q3", "2021-Q4", "2022-Q1")  # each is released, and refreshed once
QUERIES_ALONE = "2021-Q3"  # releases 5 and 6 have the vectors of release 3, and a model of their own
DEEDS = (2, 3, 4, None, 5, 6, 7, None, 8, 9, 10, None)  # the release that becomes current; None: a rollback
SETTINGS = ("release.exports=[onnx]", "infer.shard_rows=4096")
YIELD = 5  # niceness of this process: elsewhere, releases are published by another machine
SLOWER, LARGER = 2.0, 1.25  # limits: p99 under fire to idle, memory at the end to that after the first rollback


class Moment(NamedTuple):
    """A change, and the moments of its steps, monotonic; `mib` is the server's memory after it."""

    deed: int | None
    release: int
    began: float
    targets: float
    server: float
    mib: float


def main() -> int:
    """Measure and print; return 1 if a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=120, help="seconds of fire; a quarter more is idle")
    add_keep(parser)
    asked = parser.parse_args()
    seconds = asked.seconds
    with contextlib.ExitStack() as opened:
        sheet = opened.enter_context(measuring("fire", asked.keep))
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="millrace-fire-")))
        with contextlib.redirect_stdout(sys.stderr):
            store = make_served(folder, *SETTINGS, spans=SPANS, queries_alone=QUERIES_ALONE)
        opensearch = OpensearchServer()
        opened.callback(opensearch.close)
        config = served_config(_targets(folder, opened.enter_context(Postgres()), opensearch))
        opened.enter_context(in_use(store))
        point_to(store, 1)
        _publish(store, config, back=False)
        server = opened.enter_context(running(store))
        spec = {"workspace": str(store.root), "url": server.url, "releases": releases.numbers(store)}
        spec["targets"] = [target.model_dump() for target in config.publish.targets]
        (folder / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        clients = _clients(folder / "spec.json")
        opened.callback(clients.kill)
        os.nice(YIELD)
        time.sleep(seconds / 8)
        began, before = time.monotonic(), _mib(server)
        moments = _fire(store, config, server, seconds)
        ended = time.monotonic()
        time.sleep(seconds / 8)
        said, _ = clients.communicate(b"")
        if clients.returncode:
            raise RuntimeError(f"the clients ended with exit code {clients.returncode}")
        code, told = server.end()
        print(told, file=sys.stderr)
        _print(sheet, json.loads(said), began, ended)
        _print_moments(sheet, before, moments)
    return int(sheet.missed > 0 or code != 0)


def _targets(folder: Path, postgres: Postgres, opensearch: OpensearchServer) -> str:
    lancedb = f"{{kind: lancedb, name: look, uri: {folder / 'lancedb'}}}"
    pgvector = f"{{kind: pgvector, name: shop, dsn: '{postgres.empty_database()}'}}"
    return f"publish.targets=[{lancedb}, {pgvector}, {{kind: opensearch, name: seek, url: '{opensearch.url}'}}]"


def _clients(spec: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.benchmarks.fire.clients", str(spec)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _fire(store: DirectoryStore, config: Config, server: OnlineServer, seconds: float) -> list[Moment]:
    """Do all deeds, evenly over the seconds; one that takes longer than its share delays the rest."""
    moments, start = list[Moment](), time.monotonic()
    for number, deed in enumerate(DEEDS):
        time.sleep(max(0.0, start + seconds * number / len(DEEDS) - time.monotonic()))
        began = time.monotonic()
        if deed is None:
            rollback(store)
        else:
            point_to(store, deed)
        _publish(store, config, back=deed is None)
        published, (_, pointer) = time.monotonic(), releases.read_pointer(store)
        assert pointer is not None
        server.wait_for(pointer.release)
        moments.append(Moment(deed, pointer.release, began, published, time.monotonic(), _mib(server)))
    time.sleep(max(0.0, start + seconds - time.monotonic()))
    return moments


def _publish(store: DirectoryStore, config: Config, back: bool) -> None:
    release = releases.current(store)
    assert release is not None
    with contextlib.redirect_stdout(sys.stderr):
        if back:
            swap_back(store, config, release)
        publish_to_all(store, config, release, only_current=True)


def _mib(server: OnlineServer) -> float:
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def _print(sheet: Sheet, seen: list[dict[str, Any]], began: float, ended: float) -> None:
    """Add what the clients saw."""
    failed = [sentence for each in seen for sentence in each["failed"]]
    mixed = [sentence for each in seen for sentence in each["mixed"]]
    for sentence in (*failed[:10], *mixed[:10]):
        print(sentence, file=sys.stderr)
    took = np.array([pair for each in seen for pair in each["took"]])
    fire = (took[:, 0] >= began) & (took[:, 0] < ended)
    idle, hot = (np.percentile(took[some, 1] * 1000, [50, 99]) for some in (~fire, fire))
    clients = f"answers to {len(seen)} clients, {len(DEEDS)} swaps in {ended - began:.0f} s"
    sheet.table(clients, "idle", "under fire", "ratio")
    sheet.row("number", int(np.sum(~fire)), int(np.sum(fire)), "")
    sheet.row("p50, ms", *map(float, (idle[0], hot[0], hot[0] / idle[0])))
    sheet.row("p99, ms", *map(float, (idle[1], hot[1], hot[1] / idle[1])), good=hot[1] < SLOWER * idle[1])
    sheet.row("failed requests and searches", "", len(failed), "", good=not failed)
    sheet.row("answers that mix models", "", len(mixed), "", good=not mixed)


def _print_moments(sheet: Sheet, before: float, moments: list[Moment]) -> None:
    sheet.table("", "release", "targets swapped, s", "server follows, s", "its memory, MiB")
    sheet.row("before", 1, "", "", before)
    settled = next(each.mib for each in moments if each.deed is None)
    for each in moments:
        named = "rollback" if each.deed is None else "release"
        large = each is moments[-1] and each.mib > LARGER * settled
        sheet.row(named, each.release, each.targets - each.began, each.server - each.began, each.mib, good=not large)


if __name__ == "__main__":
    sys.exit(main())
