"""A small workspace with releases: real items, vectors and models; health, warmup and evaluate do no arithmetic.

Each span is trained and released, then refreshed once, and the refreshes name files of the releases before.
"""

from __future__ import annotations

import datetime as dt
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import infra.compute.factory
from configs.schema.config import Config
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.jobs import JobSpec, Waiter
from tasks.contracts.runs import Release
from tasks.contracts.stages import Chore, Stage
from tasks.data.rows import CORE, FEED_KIND
from tasks.data.span_versions import noted
from tasks.planning.next_run import plan_run
from tasks.runs import releases
from tests.support.fakes.fake_runner import FakeRunner
from tests.support.fakes.own_process import OwnProcess, encode_here
from tests.support.fakes.stages import carry_out, refreshed
from tests.support.workspace.jobs import COLOURS, THINGS, tiny_config

ROWS, ITEMS = 120, 60
REAL = (Stage.validate, Stage.train, Stage.infer, Stage.release, Chore.publish)


def served_config(*overrides: str) -> Config:
    return tiny_config("infer.shard_rows=16", "validate.items.unrelated.warn=null", "train.epochs=1", *overrides)


class PartlyReal(FakeRunner):
    """Gives all that makes or uses items and vectors to the real workers, in this process."""

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        if spec.stage in REAL:
            self.specs.append(spec)
            OwnProcess(self.store).run(spec, waiter, tries)
        else:
            super().run(spec, waiter, tries)


@contextmanager
def in_use(store: Store) -> Iterator[PartlyReal]:
    """Let the stages of a workspace run here."""
    runner = PartlyReal(store)
    with pytest.MonkeyPatch.context() as patch:
        encode_here(patch)
        patch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
        yield runner


def take_in(store: Store, span: str) -> None:
    """Ingest a span of rows; each span is about the same items."""
    index = range(ROWS)
    words = [f"{COLOURS[i % len(COLOURS)]} {THINGS[i * 3 % len(THINGS)]}" for i in index]
    table = {
        "row_id": [f"{span}-{i}" for i in index],
        "query": [f"want a {word} {i % 7} please" for i, word in enumerate(words)],
        "item": [
            f"{COLOURS[i % ITEMS % len(COLOURS)]} {THINGS[i % ITEMS * 3 % len(THINGS)]} {i % ITEMS}" for i in index
        ],
        "item_id": [f"i{i % ITEMS:03d}" for i in index],
        "time": [_moment(span)] * ROWS,
        "label": [float(i % 5 + 1) for i in index],
    }
    _commit(store, f"spans/{span}/v1", pa.table({name: table[name] for name in CORE}, pa.schema(CORE)), "span")


def take_in_feed(store: Store, version: int, item: str) -> None:
    """Ingest a version of the feed that adds one new item to those of the versions before."""
    ids = [f"new-{number}" for number in range(1, version)] + [item]
    times = pa.array([_moment("2021-Q2")] * len(ids), CORE["time"])
    table = pa.table({"item_id": ids, "item": [f"a new {each}" for each in ids], "time": times,
                      "deleted": [False] * len(ids)})  # fmt: skip
    with noted(store, {"2021-05": version}):
        _commit(store, f"items/2021-05/v{version}", table, FEED_KIND)


def make_served(
    folder: Path, *overrides: str, spans: Sequence[str] = ("2021-Q1", "2021-Q2"), queries_alone: str = ""
) -> DirectoryStore:
    """A workspace whose current release is 4, a refresh of 3; of the model before, release 2 is a refresh of 1.

    Args:
        queries_alone: the span on which queries alone are trained; empty: none.
    """
    store = DirectoryStore(folder / "workspace")
    with in_use(store):
        for version, span in enumerate(spans, start=1):
            config = served_config(*overrides, *(["train.sides=queries"] if span == queries_alone else []))
            take_in(store, span)
            carry_out(plan_run(store, config, span))
            take_in_feed(store, version, f"new-{version}")
            refreshed(store, config)
    return store


def refresh(store: Store) -> Release:
    return refreshed(store, served_config())


def point_to(store: Store, number: int) -> None:
    """Make another release current; targets follow later."""
    raw, pointer = releases.read_pointer(store)
    assert pointer is not None
    releases.swap_pointer(store, pointer.model_copy(update={"release": number}), raw)


def copy_of(store: DirectoryStore, folder: Path) -> DirectoryStore:
    """A copy of the workspace, at the same address as far as its records go."""
    shutil.copytree(store.root, folder / "workspace")
    return DirectoryStore(folder / "workspace")


def _moment(span: str) -> dt.datetime:
    return dt.datetime(int(span[:4]), 3 * int(span[-1]) - 1, 10, tzinfo=dt.UTC)


def _commit(store: Store, prefix: str, table: pa.Table, kind: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, Path(folder) / "part-00000.parquet")
        facts = {"rows": table.num_rows, "ingested_at": "2021-06-01T00:00:00.000000+00:00"}
        commit(store, prefix, Path(folder), kind, facts)
