"""Whole flows as commands: the functions of the pipeline and the refresh, with workers that a fence can refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flows.pipeline import pipeline
from flows.refresh import refresh
from infra.store.fence import FencedStore
from tasks.contracts.jobs import Inputs, JobSpec, PublishInputs
from tasks.contracts.outcomes import Outcome
from tasks.contracts.runner import Waiter
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


FLOWS: Mapping[str, Callable[[Any], object]] = {
    "new items": _items,
    "whole refresh": lambda store: refresh.fn(store.uri, overrides=SETTINGS),
    "whole run": lambda store: pipeline.fn(store.uri, SPANS[2], overrides=SETTINGS),
}
