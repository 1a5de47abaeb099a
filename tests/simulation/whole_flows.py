"""Whole flows as commands: the pipeline and the refresh, with workers that a fence can refuse, and ingest."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from flows.pipeline import pipeline
from flows.refresh import refresh
from infra.store.lease import FencedStore
from tasks.contracts.jobs import Inputs, JobSpec, PublishInputs, Waiter
from tasks.contracts.outcomes import Outcome
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import ITEMS, ROWS, Layout
from tasks.data.files.formats import Format
from tasks.data.ingest import IngestOptions, ingest
from tasks.data.new_versions import Known
from tasks.data.span_versions import latest_version, latest_versions, list_feeds
from tests.simulation.objects import Objects
from tests.simulation.stores import copy_of
from tests.simulation.targets import publish_by_worker
from tests.simulation.workspaces import SPANS
from tests.support.fakes.fake_runner import FakeRunner, ingest_feed

SETTINGS = ("model.scratch.layers=1",)  # as `small_config`
FEED = "2021-01"
FEED_VERSION = 3  # of the items that come in; the workspace has two


class FencedRunner(FakeRunner):
    """Workers without arithmetic that write to the store as real ones do: each write looks at the fences first."""

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        self.store = FencedStore(self.store, spec.fences, spec.job_prefix)
        waiter.pulse()
        super().run(spec, waiter, tries)
        waiter.pulse()

    def _outcome(self, spec: JobSpec, inputs: Inputs) -> Outcome:
        if isinstance(inputs, PublishInputs):
            return publish_by_worker(self.store, spec)
        return super()._outcome(spec, inputs)


def _items(store: Any) -> None:
    """Item feeds have versions, and each is ingested once."""
    if not store.exists(f"items/{FEED}/v{FEED_VERSION}/MANIFEST.json"):
        ingest_feed(store, FEED, FEED_VERSION)


LATER = "2021-Q4"  # a span that the workspace lacks, of rows and of items
_AT = "2021-11-10T00:00:00+00:00"


class Export(NamedTuple):
    """A file of a source: the ids of its records, and the choice of the person who ingests it."""

    layout: Layout
    ids: range
    known: Known


EXPORTS: Mapping[str, Export] = {
    "ingest": Export(ROWS, range(4), Known.merge),
    "ingest more": Export(ROWS, range(3, 6), Known.merge),
    "ingest corrected": Export(ROWS, range(10, 12), Known.replace),
    "ingest items": Export(ITEMS, range(4), Known.merge),
    "ingest more items": Export(ITEMS, range(3, 6), Known.merge),
}


def _ingest(store: Any, export: Export) -> None:
    rows = [{"id": f"{n}", "q": f"query {n}", "i": f"item {n}", "at": _AT} for n in export.ids]
    source = copy_of("export.jsonl", {"export.jsonl": "".join(json.dumps(row) + "\n" for row in rows).encode()})
    mapping = {"query": "q", "item": "i", "id": "id"} if export.layout is ROWS else {"id": "id", "text": "i"}
    options = IngestOptions(known=export.known)
    ingest(store, source, Format.jsonl, "at", SpanKind.quarter, mapping, export.layout, options=options)


def lost_records(objects: Objects, store: Any, ended: Set[str]) -> str:
    """Return a sentence if the newest version lacks records of merged exports, or a record of the feeds is wrong.

    Args:
        ended: commands that ended without an error.
    """
    for layout, id_column in ((ROWS, "row_id"), (ITEMS, "item_id")):
        exports = [each for name, each in EXPORTS.items() if name in ended and each.layout is layout]
        if not exports or any(each.known is Known.replace for each in exports):
            continue
        version = latest_version(store, LATER, layout.root)
        keys = [key for key in objects.below(f"{layout.root}/{LATER}/v{version}/") if key.endswith(".parquet")]
        found = {
            each for key in keys for each in pq.read_table(io.BytesIO(objects.files[key].data))[id_column].to_pylist()
        }
        if lost := {f"{n}" for each in exports for n in each.ids} - found:
            return f"v{version} of {layout.root}/{LATER} lacks the ingested records {sorted(lost)}"
    listed, noted = latest_versions(store, "items"), {each.name: each.version for each in list_feeds(store)}
    return "" if noted == listed else f"the item feeds are {listed}, and their record says {noted}"


FLOWS: Mapping[str, Callable[[Any], object]] = {
    "new items": _items,
    "whole refresh": lambda store: refresh.fn(store.uri, overrides=SETTINGS),
    "whole run": lambda store: pipeline.fn(store.uri, SPANS[2], overrides=SETTINGS),
}
INGESTS: Mapping[str, Callable[[Any], object]] = {
    name: lambda store, export=export: _ingest(store, export) for name, export in EXPORTS.items()
}
