"""Seconds and bytes of publications to Postgres and LanceDB: of all vectors, and after refreshes that change few.

    python -m tests.benchmarks.speed.publishing [--items 100000] [--keep]

Items are made up, with vectors of 384 numbers in a space of ten dimensions, as neighbours need; Postgres with pgvector
runs on this machine, LanceDB's database is a folder. Each publication is checked as always: all ids, sampled rows, and
the index against exact search. Bytes written are those of LanceDB's new files, which share no bytes with earlier ones.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tasks.worker import publish
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.support.fakes.fake_runner import small_config
from tests.support.processes.postgres import Postgres
from tests.support.workspace import changing_shop
from tests.support.workspace.changing_shop import Shop
from tests.support.workspace.publications import publish_job

WIDTH, DIMENSIONS, SHARD_ROWS = 384, 10, 4096
CHANGES = (20, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=100_000)
    add_keep(parser)
    asked = parser.parse_args()
    with measuring("publishing", asked.keep) as sheet:
        measure(sheet, asked.items)


def measure(sheet: Sheet, items: int) -> None:
    """Publish a release, refreshes of it, and a rollback; add a row for each."""
    with (
        tempfile.TemporaryDirectory(prefix="millrace-publishing-") as folder,
        pytest.MonkeyPatch.context() as patch,
        Postgres() as postgres,
    ):
        shop = Shop(Path(folder), WIDTH, items, 2 ** max(0, (items // SHARD_ROWS).bit_length()))
        shop.patch(patch)
        patch.setattr(changing_shop, "vector_of", vector_of)
        with quiet():
            shop.refresh(None)
        database = Path(folder) / "lancedb"
        targets = {
            "Postgres": f"{{kind: pgvector, name: shop, dsn: '{postgres.empty_database()}'}}",
            "LanceDB": f"{{kind: lancedb, name: look, uri: {database}}}",
        }
        sheet.table("publication", "items", "rows written", "seconds", "MB written")

        def bring(name: str) -> None:
            release, seen = shop.releases[-1], _files(database)
            for service, target in targets.items():
                config, began = small_config(f"publish.targets=[{target}]"), time.monotonic()
                with quiet():
                    done = publish.run(publish_job(shop.store, config, release, only_current=False))
                took = time.monotonic() - began
                new = sum(size for file, size in _files(database).items() if file not in seen)
                written = new / 1e6 if service == "LanceDB" else "not counted"
                sheet.row(f"{service}, {name}", release.vectors, done.loaded, took, written)

        bring("the first of a model")
        for changed in CHANGES:
            with quiet():
                shop.change(changed)
                shop.refresh(shop.releases[-1])
            bring(f"after a refresh of {changed:,}")
        shop.releases.pop()
        bring("after a rollback of that")


def _files(folder: Path) -> dict[int, int]:
    """Return the bytes of the files below a folder by inode, so that a file with two names is counted once."""
    found = [path.stat() for path in folder.rglob("*") if path.is_file()]
    return {each.st_ino: each.st_size for each in found}


def vector_of(text: str, width: int) -> np.ndarray:
    """Return a unit vector, float32 (width,), that only this text has."""
    seed = int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:12], 16)
    found = np.random.default_rng(seed).normal(size=DIMENSIONS) @ _space(width)
    return (found / np.linalg.norm(found)).astype(np.float32)


@functools.cache
def _space(width: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(DIMENSIONS, width))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


if __name__ == "__main__":
    main()
