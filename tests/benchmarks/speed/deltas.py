"""Bytes of vectors that refreshes write, and that lie in the workspace after a week of them.

    python -m tests.benchmarks.speed.deltas [--items 200000] [--keep]

The worker's own code makes the vectors, with an encoder that hashes texts, in vectors of 384 numbers and partitions of
4,096 items at most; the week has a tenth of the items. Before there were deltas, a refresh wrote each partition with a
change whole.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from configs.schema.operations import PruneConfig
from infra.store.manifest import read_manifest
from tasks.contracts.runs import Release
from tasks.data.layers import layers_of
from tasks.prune.prune import prune
from tasks.worker.catalogue import deltas
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.benchmarks.speed.publishing import quiet
from tests.support.workspace.changing_shop import Shop

WIDTH, SHARD_ROWS = 384, 4096
CHANGES = (1, 1_000, 10_000)
HOURS, KEPT = 168, 3
HOURLY = 1_000  # changed items of a million


class Refreshed(NamedTuple):
    """Bytes that one refresh wrote: files of vectors, and their manifest."""

    vectors: int
    manifest: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=200_000)
    add_keep(parser)
    asked = parser.parse_args()
    with measuring("deltas", asked.keep) as sheet:
        one_refresh(sheet, asked.items)
        hours(sheet, asked.items // 10)


def one_refresh(sheet: Sheet, items: int) -> None:
    """Add the bytes of refreshes that change few items, with deltas and without."""
    columns = ("changed items", "their vectors, bytes", "with deltas: files", "manifest", "whole partitions: files")
    sheet.table(*columns)
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
            sheet.row(changed, size, new.vectors, new.manifest, old.vectors)


def hours(sheet: Sheet, items: int) -> None:
    """Add the bytes of a week of hourly refreshes with its prunes."""
    with tempfile.TemporaryDirectory(prefix="millrace-deltas-") as folder, pytest.MonkeyPatch.context() as patch:
        shop = opened(Path(folder), items, patch)
        hourly, first = max(1, HOURLY * items // 1_000_000), shop.releases[0]
        last = first
        vectors = sum(entry.bytes for entry in read_manifest(shop.store, first.vectors_prefix).files)
        total, most = 0, 0
        for hour in range(1, HOURS + 1):
            shop.change(hourly)
            total += refreshed(shop, last).vectors
            last = shop.releases[-1]
            if hour % 24 == 0:
                prune(shop.store, PruneConfig.newest(KEPT), dry_run=False, warn=print)
            most = max(most, sum(shop.store.sizes("vectors").values()))
        layers = layers_of(read_manifest(shop.store, last.vectors_prefix)).values()
        shop.check(last)
    changed = HOURS * hourly * WIDTH * 4
    what = f"{HOURS} hours of {hourly:,} changed items of {items:,}, a prune to {KEPT} releases each day"
    sheet.table(what, "")
    sheet.row("written, times the changed vectors", total / changed)
    sheet.row("written, times all vectors", total / vectors)
    sheet.row("most in the workspace, times all vectors", most / vectors)
    sheet.row("files a partition", sum(map(len, layers)) / shop.partitions)


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
        patch.setattr(deltas, "DELTA_SHARE", 0.0)
        yield


def refreshed(shop: Shop, over: Release) -> Refreshed:
    with quiet():
        made = shop.refresh(over)
    for number in [*shop.of][:-1]:
        del shop.of[number]
    manifest = read_manifest(shop.store, made.prefix)
    own = sum(entry.bytes for entry in manifest.files if entry.at is None)
    return Refreshed(own, len(manifest.to_json()))


if __name__ == "__main__":
    main()
