"""Vectors after many refreshes: each item once, few bytes, with rollbacks, prunes and merges of deltas.

DuckDB reads them as docs/data.md says, so the check shares nothing with the product's readers; these are then compared
with it.
"""

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from configs.schema.operations import PruneConfig
from infra.store.manifest import MissingFolder, read_manifest
from tasks.contracts.runs import Release
from tasks.data.layers import DELTA_SHARE, layers_of
from tasks.prune.prune import prune
from tasks.worker import infer
from tasks.worker.catalogue.reuse import EarlierVectors
from tasks.worker.export.table_contents import ReleaseVectors
from tasks.worker.online.nearest import Vectors
from tasks.worker.process.job import Share
from tasks.worker.search.changes import shared_items
from tasks.worker.search.index import Index
from tests.support.workspace.changing_shop import MODEL, Shop, vector_of
from tests.support.workspace.jobs import tiny_config
from tests.support.workspace.releases import make_current

ITEMS = 2000


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    made = Shop(tmp_path, 32, ITEMS, 4)
    made.patch(monkeypatch)
    return made


def readers_agree(shop: Shop, release: Release) -> None:
    ids = [item_id for item_id, *_ in shop.rows(release)]
    store, prefix, sha256 = shop.store, release.vectors_prefix, release.vectors_sha256
    assert sha256 is not None
    published = ReleaseVectors(store, prefix, MODEL.version, sha256)
    tables = [published.rows(number) for number in range(shop.partitions)]
    assert sorted(item for table in tables for item in table["item_id"].to_pylist()) == ids
    assert sum(published.rows_by_partition().values()) == published.count == len(ids)
    hashes = [hashlib.sha256("".join(f"{item}\n" for item in t["item_id"].to_pylist()).encode()) for t in tables]
    assert hashlib.sha256("".join(each.hexdigest() for each in hashes).encode()).hexdigest() == release.ids_sha256
    online = Vectors(store, release.ref)
    assert len(online) == len(ids)
    for memory in (2**30, 0):
        index = Index(store, prefix, MODEL.version, memory, sha256)
        assert index.vectors == len(ids)
        item = ids[len(ids) // 2]
        asked = vector_of(shop.of[release.number][item], shop.width)
        assert index.nearest(asked, 5) == online.nearest(asked, 5)
        assert index.nearest(asked, 1)[0].item_id == item
        assert (index.places_of([*ids, "none"]) >= 0).sum() == len(ids)
        np.testing.assert_array_equal(index.at(index.places_of([item]))[0], asked)
    earlier = EarlierVectors(store, prefix, MODEL.version)
    asked_ids = pa.chunked_array([pa.array([*ids, "none"])])
    assert earlier.holds(asked_ids, Share(0, 1)).tolist() == [True] * len(ids) + [False]
    earlier.check(Share(0, 1))


def test_for_two_days_every_item_has_one_vector_and_the_bytes_stay_few(shop: Shop) -> None:
    """48 hours of 1 % each; two rollbacks, a prune every six hours, and merges of all kinds."""
    shop.refresh(None)
    whole, current, seen, written = shop.bytes(), shop.releases[0], set[int](), []
    for hour in range(1, 49):
        shop.change(changed=12, gone=4, new=4)
        if hour in (20, 33):  # over a release of some hours ago, as after a rollback
            current = shop.releases[-3]
            make_current(shop.store, current)
        before = shop.bytes()
        made = shop.refresh(current)
        written.append(shop.bytes() - before)
        current = shop.releases[-1]
        shop.check(current)
        layers = layers_of(read_manifest(shop.store, made.prefix)).values()
        seen |= {len(each) for each in layers}
        if hour % 6 == 0:
            prune(shop.store, PruneConfig.newest(3), dry_run=False, warn=lambda _: None)
            for release in shop.releases[-3:]:
                shop.check(release)
            with pytest.raises(MissingFolder):
                read_manifest(shop.store, shop.releases[-6].vectors_prefix)
        assert shop.bytes() <= 2.5 * whole
    assert len(seen) > 3, "shards alone, and with several deltas"
    assert min(written) < whole / 20
    assert sum(written) < 9 * whole, "of 47 if partitions were written whole"
    readers_agree(shop, current)
    one, other = (Index(shop.store, each.vectors_prefix, MODEL.version, 0) for each in shop.releases[-2:])
    same = [shop.of[48].keys() & shop.of[49].keys()]
    assert [int(mask.sum()) for mask in shared_items(one, other)] == [len(same[0])] * 2


def test_a_refresh_writes_its_changes_and_reads_no_vector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = Shop(tmp_path, 384, 1000, 4)
    shop.patch(monkeypatch)
    shop.refresh(None)
    whole = shop.bytes()
    for changed in (4, 40):
        shop.change(changed)
        before = shop.bytes()
        made = shop.refresh(shop.releases[-1])
        own = [entry for entry in read_manifest(shop.store, made.prefix).files if entry.at is None]
        assert sum(entry.bytes for entry in own) <= 2 * changed * 384 * 4
        assert shop.bytes() - before <= 2 * changed * 384 * 4 + 4096, "and the manifest"
        assert (len(shop.embedded), made.vectors_reused) == (changed, 1000 - changed)
        shop.check(shop.releases[-1])
    for path in shop.store.root.glob(f"{shop.releases[0].vectors_prefix}/*.parquet"):
        path.write_bytes(b"x" * path.stat().st_size)
    shop.change(4)
    inputs = shop.releases[-1]
    with monkeypatch.context() as patch:
        patch.setattr("tasks.worker.catalogue.reuse.in_turn", lambda *_: [])  # whose turn is another hour
        shop.refresh(inputs)
    assert len(shop.embedded) == 4
    assert shop.bytes() < 1.5 * whole


def test_a_change_beyond_the_share_is_a_new_shard(shop: Shop) -> None:
    shop.refresh(None)
    shop.change(changed=int(ITEMS * DELTA_SHARE * 1.5))
    made = shop.refresh(shop.releases[-1])
    assert read_manifest(shop.store, made.prefix).version == 1
    assert all(len(each) == 1 for each in layers_of(read_manifest(shop.store, made.prefix)).values())
    shop.check(shop.releases[-1])


def test_an_item_whose_new_text_gets_no_vector_loses_its_old_one(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be found by a text that it no longer has."""
    shop.config = tiny_config("infer.max_bad_share=0.01")
    shop.refresh(None)
    shop.items["i00007"] = "new text"
    embed = infer.embed
    monkeypatch.setattr(infer, "embed", lambda *args, **kwargs: embed(*args, **kwargs) * 3)  # type: ignore[arg-type]
    made = shop.refresh(shop.releases[-1])
    assert (made.vectors, made.bad, len(shop.embedded)) == (ITEMS - 1, 1, 1)
    del shop.of[2]["i00007"]
    shop.check(shop.releases[-1])
    monkeypatch.setattr(infer, "embed", embed)
    shop.items["i00008"] = "another text"
    made = shop.refresh(shop.releases[-1])
    assert (made.vectors, made.bad, len(shop.embedded)) == (ITEMS, 0, 2)
    shop.check(shop.releases[-1])


@pytest.mark.parametrize("which", [0, 1, 2], ids=["the shard", "a delta below", "the newest delta"])
def test_a_damaged_file_of_a_partition_is_not_named_on(shop: Shop, which: int) -> None:
    shop.refresh(None)
    for changed in (120, 8):
        shop.change(changed)
        shop.refresh(shop.releases[-1])
    manifest = read_manifest(shop.store, shop.releases[-1].vectors_prefix)
    layers = layers_of(manifest)
    number = next(number for number, each in layers.items() if len(each) == 3)
    key = layers[number][which].key(shop.releases[-1].vectors_prefix)
    shop.store.path(key).write_bytes(b"damaged")
    shop.change(4)
    made = shop.refresh(shop.releases[-1])
    named = {entry.key(made.prefix) for entry in read_manifest(shop.store, made.prefix).files}
    assert key not in named
    assert len(layers_of(read_manifest(shop.store, made.prefix))[number]) == 1
    shop.check(shop.releases[-1])
    readers_agree(shop, shop.releases[-1])


@pytest.mark.parametrize("damaged", [False, True])
def test_a_later_attempt_keeps_deltas_unless_a_file_below_is_damaged(shop: Shop, damaged: bool) -> None:
    shop.refresh(None)
    shop.change(20)
    made = shop.refresh(shop.releases[-1])
    manifest = read_manifest(shop.store, made.prefix)
    assert made.deltas == shop.partitions
    assert made.written == sum(entry.bytes for entry in manifest.files if entry.at is None)
    shop.store.delete(f"{made.prefix}/MANIFEST.json")
    if damaged:
        shop.store.path(manifest.files[0].key(made.prefix)).write_bytes(b"damaged")
    assert shop.inputs is not None
    again = shop.embed(shop.inputs, 2, attempt=2)
    assert again.shards_reused == shop.partitions - damaged
    assert bool(shop.embedded) == damaged
    assert (read_manifest(shop.store, made.prefix) == manifest) != damaged
    shop.check(shop.releases[-1])
