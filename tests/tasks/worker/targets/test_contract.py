"""What every kind of target must do; each test runs on all of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import PublishOutcome
from tasks.contracts.runs import Release
from tasks.data.items import part_name, partition_of
from tasks.worker import publish
from tasks.worker.targets import open_target
from tasks.worker.targets.base import Target
from tests.support.workspace.publications import publish_job
from tests.support.workspace.releases import PARTITIONS, write_release
from tests.tasks.worker.targets.places import Hit, Place


def bring(store: DirectoryStore, place: Place, release: Release, *overrides: str, **inputs: bool) -> PublishOutcome:
    return publish.run(publish_job(store, place.config(*overrides), release, **inputs))


def vector_of(store: DirectoryStore, release: Release, item_id: str) -> np.ndarray:
    part = part_name(partition_of(item_id, PARTITIONS))
    table = pq.read_table(store.path(f"{release.vectors_prefix}/{part}"), columns=["item_id", "vector"])
    return np.asarray(table["vector"][table["item_id"].to_pylist().index(item_id)].as_py(), dtype=np.float32)


def served(store: DirectoryStore, place: Place, release: Release) -> bool:
    """Whether consumers get this release, all of it."""
    found = place.search(vector_of(store, release, "i0007"), release.vectors)
    expected = {(f"i{n:04d}", f"item i{n:04d} of {release.model.version}, it's \"new\"\n", release.model.version)
                for n in range(release.vectors)}  # fmt: skip
    return found is not None and set(found) == expected


@pytest.fixture
def target(place: Place) -> Iterator[Target]:
    target = open_target(place.config().publish.targets[0])
    yield target
    target.close()


def test_consumers_get_every_item_with_its_text_and_the_models_version(store, place):
    release = write_release(store, 3)
    outcome = bring(store, place, release)
    assert (outcome.served_before, outcome.vectors, outcome.loaded, outcome.dropped) == (None, 60, 60, ())
    assert outcome.table is not None
    assert outcome.table.startswith("look_r3_")
    assert outcome.recall == 1.0
    (nearest,) = place.search(vector_of(store, release, "i0007"), 1) or ()
    assert nearest == Hit("i0007", 'item i0007 of main-00000003, it\'s "new"\n', "main-00000003")
    assert served(store, place, release)


def test_vectors_of_half_the_bytes_are_served_too(store, place):
    release = write_release(store, 1, fp16=True)
    bring(store, place, release)
    assert served(store, place, release)
