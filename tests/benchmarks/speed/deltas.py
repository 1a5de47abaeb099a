"""Bytes of vectors and of the catalogue that refreshes write, and that lie in the workspace after a week of them.

    python -m tests.benchmarks.speed.deltas [--items 200000] [--keep]

The worker's own code makes both, with an encoder that hashes texts, in vectors of 384 numbers and partitions of 4,096
items at most; the week has a tenth of the items. Before there were deltas, a refresh wrote each partition with a
change whole.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import string
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from configs.schema.operations import PruneConfig
from infra.store.manifest import read_manifest
from tasks.contracts.references import FeedRef, RowsRef
from tasks.contracts.runs import Release
from tasks.data.layers import layers_of
from tasks.prune.prune import prune
from tasks.worker.catalogue import deltas, item_deltas
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.benchmarks.speed.publishing import quiet
from tests.support.workspace.catalogues import World
from tests.support.workspace.changing_shop import Shop

WIDTH, SHARD_ROWS = 384, 4096
CHANGES = (1, 1_000, 10_000)
HOURS, KEPT = 168, 3
HOURLY = 1_000  # changed items of a million
LARGE, CHANGED, PARTITIONS = 9766, 10, 2  # 10 million items in 1,024 partitions, of which a thousandth changes
WORDS = 11  # in an item's text


class Refreshed(NamedTuple):
    """Bytes that one refresh wrote: files of vectors, their manifest, and files of the catalogue."""

    vectors: int
    manifest: int
    catalogue: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=200_000)
    add_keep(parser)
    asked = parser.parse_args()
    with measuring("deltas", asked.keep) as sheet:
        one_refresh(sheet, asked.items)
        hours(sheet, asked.items // 10)
        records(sheet)


def one_refresh(sheet: Sheet, items: int) -> None:
    """Add the bytes of refreshes that change few items, with deltas and without."""
    columns = ("changed items", "their vectors, bytes", "with deltas: vectors", "manifest", "catalogue")
    sheet.table(*columns, "whole partitions: vectors", "catalogue of these")
    with tempfile.TemporaryDirectory(prefix="millrace-deltas-") as folder, pytest.MonkeyPatch.context() as patch:
        shop = opened(Path(folder), items, patch)
        first, start = shop.releases[0], dict(shop.items)
        for changed in CHANGES:
            found = []
            for written in (contextlib.nullcontext(), whole_partitions()):
                shop.items = dict(start)
                shop.change(changed)
                with written:
                    found.append(refreshed(shop, first))
            new, old = found
            size = changed * WIDTH * 4
            sheet.row(changed, size, new.vectors, new.manifest, new.catalogue, old.vectors, old.catalogue)


def hours(sheet: Sheet, items: int) -> None:
    """Add the bytes of a week of hourly refreshes with its prunes."""
    with tempfile.TemporaryDirectory(prefix="millrace-deltas-") as folder, pytest.MonkeyPatch.context() as patch:
        shop = opened(Path(folder), items, patch)
        hourly, first = max(1, HOURLY * items // 1_000_000), shop.releases[0]
        last = first
        vectors, items_bytes = (
            sum(entry.bytes for entry in read_manifest(shop.store, prefix).files)
            for prefix in (first.vectors_prefix, first.catalogue.prefix)
        )
        total = most = of_catalogue = most_of_catalogue = 0
        for hour in range(1, HOURS + 1):
            shop.change(hourly)
            found = refreshed(shop, last)
            total, of_catalogue = total + found.vectors, of_catalogue + found.catalogue
            last = shop.releases[-1]
            if hour % 24 == 0:
                prune(shop.store, PruneConfig.newest(KEPT), dry_run=False, warn=print)
            most = max(most, sum(shop.store.sizes("vectors").values()))
            most_of_catalogue = max(most_of_catalogue, sum(shop.store.sizes("catalogue").values()))
        layers, items_layers = (
            layers_of(read_manifest(shop.store, prefix)).values()
            for prefix in (last.vectors_prefix, last.catalogue.prefix)
        )
        shop.check(last)
    changed = HOURS * hourly * WIDTH * 4
    what = f"{HOURS} hours of {hourly:,} changed items of {items:,}, a prune to {KEPT} releases each day"
    records = HOURS * hourly * items_bytes / items
    sheet.table(what, "vectors", "catalogue")
    sheet.row("written, times what has changed", total / changed, of_catalogue / records)
    sheet.row("written, times all of them", total / vectors, of_catalogue / items_bytes)
    sheet.row("most in the workspace, times all of them", most / vectors, most_of_catalogue / items_bytes)
    sheet.row("files a partition", *(sum(map(len, each)) / shop.partitions for each in (layers, items_layers)))


def records(sheet: Sheet) -> None:
    """Add the bytes of the catalogue in a week, with as many changes a partition and hour as in a large shop."""
    chance = random.Random(1)
    words = ["".join(chance.choices(string.ascii_lowercase, k=chance.randint(3, 9))) for _ in range(5000)]

    def item(number: int, day: int) -> dict[str, Any]:
        return {"id": f"i{number}", "text": " ".join(chance.choices(words, k=WORDS)), "day": day}

    with tempfile.TemporaryDirectory(prefix="millrace-deltas-") as folder, quiet():
        world, many = World(Path(folder)), LARGE * PARTITIONS
        settings = (f"infer.shard_rows={LARGE * 3 // 2}",)
        sources: list[RowsRef | FeedRef] = [world.rows(*(item(number, 2) for number in range(many)))]
        made = world.build(*sources, settings=settings)
        assert made.partitions == PARTITIONS
        whole, total, files = sum(entry.bytes for entry in read_manifest(world.store, made.prefix).files), 0, 0
        for hour in range(HOURS):
            changed = chance.sample(range(many), CHANGED * PARTITIONS)
            sources.append(world.feed(*(item(number, 3) for number in changed), name=f"hour-{hour}"))
            made = world.build(*sources, bases=(made,), settings=settings)
            manifest = read_manifest(world.store, made.prefix)
            total += sum(entry.bytes for entry in manifest.files if entry.at is None)
            files += sum(map(len, layers_of(manifest).values()))
    sheet.table(f"catalogue: {HOURS} hours of {CHANGED} changed items in each partition of {LARGE:,}", "")
    sheet.row("bytes of an item", whole / many)
    sheet.row("written, times what has changed", total / (HOURS * CHANGED * PARTITIONS * whole / many))
    sheet.row("written, times all of it", total / whole)
    sheet.row("files a partition, on average", files / HOURS / PARTITIONS)


def opened(folder: Path, items: int, patch: pytest.MonkeyPatch) -> Shop:
    partitions = 1
    while partitions * SHARD_ROWS < items:
        partitions *= 2
    shop = Shop(folder, WIDTH, items, partitions)
    shop.patch(patch)
    with quiet():
        shop.refresh(None)
    return shop


@contextlib.contextmanager
def whole_partitions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in (deltas, item_deltas):
            patch.setattr(module, "DELTA_SHARE", 0.0)
        yield


def refreshed(shop: Shop, over: Release) -> Refreshed:
    with quiet():
        made = shop.refresh(over)
    for number in [*shop.of][:-1]:
        del shop.of[number]
    manifest, catalogue = (read_manifest(shop.store, prefix) for prefix in (made.prefix, made.catalogue.prefix))
    own, items = (sum(entry.bytes for entry in each.files if entry.at is None) for each in (manifest, catalogue))
    return Refreshed(own, len(manifest.to_json()), items)


if __name__ == "__main__":
    main()
