"""Recall@10 of narrow vectors on the reviews, by each target that is on this machine and by arithmetic alone.

    python -m tests.benchmarks.quality.narrow --reviews path/to/reviews.jsonl.gz [--keep]

MiniLM is trained once on the reviews up to 2022-Q4, at three Matryoshka widths. Its release is published to LanceDB and
to Postgres, whole and narrow, and searched with the holdout queries as before every swap. The first table has the same
queries by exact products of the narrow vectors: alone, and as candidates that the vectors of the same width compare
again, as the services do. A holdout query counts as found if its item is among ten, beside others as relevant.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.load import load_config
from configs.schema.config import Config
from flows.cli.running import run
from flows.cli.terminal.options import RunOptions
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.jobs import PublishInputs
from tasks.contracts.outcomes import PublishOutcome
from tasks.contracts.runs import Release
from tasks.contracts.search import NarrowRecall
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.data.rows import ITEM_ID
from tasks.runs import releases
from tasks.worker import publish
from tasks.worker.export.target import CANDIDATES
from tasks.worker.export.targets import open_target
from tasks.worker.search import consumer
from tasks.worker.search.index import Index
from tasks.worker.search.narrow_recall import Holdout, measure_narrow, search_holdout
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.benchmarks.reviews import COLUMNS, CONFIG_FILE
from tests.support.processes.postgres import Postgres
from tests.support.workspace.publications import publish_job

SPAN, WIDTHS = "2022-Q4", (256, 128, 64)
TRAINED = (f"heads.contrastive.matryoshka={sorted(WIDTHS)}", "train.epochs=1")
MEASURED = ("publish.max_loss=1", "publish.min_recall=0")
FORMS = {"lancedb": (None, "int8", "binary"), "pgvector": (None, "binary")}
FOUND = ("recall@10", "loss", "95 % of the loss")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=Path, required=True, help="reviews as JSONL, plain or gzip")
    parser.add_argument("--workspace", default="workspace/narrow")
    add_keep(parser)
    asked = parser.parse_args()
    store = open_store(asked.workspace)
    release = released(store, asked.reviews)
    with measuring("narrow", asked.keep) as sheet, pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer, "encode_apart", once(consumer.encode_apart))
        holdout = holdout_of(store, release)
        by_arithmetic(sheet, store, release, holdout)
        by_targets(sheet, store, release, holdout)


def once(encode: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that embeds the queries at its first call: they are the same for all targets."""
    made: list[Any] = []

    def encode_once(*given: Any) -> Any:
        made.extend([] if made else [encode(*given)])
        return made[0]

    return encode_once


def released(store: Store, reviews: Path) -> Release:
    """Return the release of the reviews, made at the first call."""
    if (found := releases.current(store)) is None:
        ingest(store, reviews, Format.jsonl, "timestamp", SpanKind.quarter, COLUMNS)
        run(RunOptions(store, CONFIG_FILE, TRAINED), SPAN)
        found = releases.current(store)
    assert found is not None
    return found


def by_arithmetic(sheet: Sheet, store: Store, release: Release, holdout: Holdout) -> None:
    """Add a row for each width and form, by exact products in this process."""
    index = Index(store, release.vectors_prefix, release.model.of_items.version, sha256=release.vectors_sha256)
    ids = [each for _, table in index.tables([ITEM_ID]) for each in table[ITEM_ID].to_pylist()]
    whole = index.at(np.arange(index.vectors))
    sheet.table(f"exact, {len(ids):,} items, {len(holdout.own)} queries", "numbers", "bytes of a vector", *FOUND)
    for width in (index.width, *WIDTHS):
        items, queries = cut(whole, width), holdout._replace(vectors=cut(holdout.vectors, width))
        for name, bits, scores in (("float32", 32, products), ("int8", 8, rounded), ("one bit a number", 1, signs)):
            for again in (False, True)[: 1 + (bits < 32)]:
                found = measure_narrow(queries, functools.partial(nearest, ids, items, scores, again))
                sheet.row(f"{name}{', compared again' if again else ''}", width, width * bits // 8, *cells(found))


def holdout_of(store: Store, release: Release) -> Holdout:
    """Return the holdout queries with whole vectors."""
    job = publish_job(store, config_of("{kind: lancedb, name: look, uri: nowhere, form: int8}"), release)
    inputs = job.spec.inputs
    assert isinstance(inputs, PublishInputs)
    return search_holdout(job, inputs, job.config.publish.targets[0])


def cut(vectors: np.ndarray, width: int) -> np.ndarray:
    """Return the first numbers of vectors, of unit length."""
    narrow = vectors[:, :width].astype(np.float32)
    return narrow / np.linalg.norm(narrow, axis=1, keepdims=True)


def nearest(
    ids: list[str], items: np.ndarray, scores: Callable[[np.ndarray, np.ndarray], np.ndarray], again: bool,
    query: np.ndarray, k: int,
) -> list[str]:  # fmt: skip
    """Return the ids of the k nearest items; `again`: of CANDIDATES times as many, compared again by their vectors."""
    order = np.argsort(-scores(items, query), kind="stable")[: k * CANDIDATES if again else k]
    if again:
        order = order[np.argsort(-(items[order] @ query), kind="stable")][:k]
    return [ids[place] for place in order]


def products(items: np.ndarray, query: np.ndarray) -> np.ndarray:
    return items @ query


def rounded(items: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return products of vectors in 127 steps of the largest number."""
    step = float(np.abs(items).max()) / 127
    return np.rint(items / step) @ np.rint(query / step)


def signs(items: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Return the number of equal signs."""
    return ((items > 0) == (query > 0)).sum(axis=1)


def by_targets(sheet: Sheet, store: Store, release: Release, holdout: Holdout) -> None:
    """Add a row for each form and width of LanceDB and Postgres, published as in a run."""
    sheet.table("target", "form", "numbers", "index", *FOUND)
    with tempfile.TemporaryDirectory(prefix="millrace-narrow-") as folder, Postgres() as postgres:
        places = {"lancedb": f"uri: {folder}", "pgvector": f"dsn: '{postgres.empty_database()}'"}
        for kind, place in places.items():
            for form in FORMS[kind]:
                for width in (None, *WIDTHS):
                    narrow = (f"form: {form}, " if form else "") + (f"width: {width}, " if width else "")
                    config = config_of(
                        f"{{kind: {kind}, name: look_{form or 'whole'}_{width or 'all'}, {narrow}{place}}}"
                    )
                    with quiet():
                        done = publish.run(publish_job(store, config, release))
                    found = done.narrow or of_whole(config, done, holdout)
                    sheet.row(
                        kind, form or "float32", width or holdout.vectors.shape[1], done.recall or 0.0, *cells(found)
                    )


def of_whole(config: Config, done: PublishOutcome, holdout: Holdout) -> NarrowRecall:
    """Search a table of whole vectors likewise, which no publication does."""
    assert done.table is not None
    with contextlib.closing(open_target(config.publish.targets[0])) as target:
        return measure_narrow(holdout, functools.partial(target.nearest, done.table))


def config_of(target: str) -> Config:
    return load_config(CONFIG_FILE, (*TRAINED, f"publish.targets=[{target}]", *MEASURED))


def cells(found: NarrowRecall) -> tuple[str, ...]:
    return f"{found.recall_at_10:.4f}", f"{found.loss:+.4f}", f"{found.loss_low:+.4f} to {found.loss_high:+.4f}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


if __name__ == "__main__":
    main()
