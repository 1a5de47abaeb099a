"""Known right answers as negatives, and popular items, on two made-up lineages.

    python -m tests.benchmarks.quality.negatives [--topics 60] [--seeds 3]

Several answers: each topic has five items, all right for its queries; a fifth of the pairs is held out. The second span
is trained without mined negatives, with them, and with them where only pairs of training rows are known to be right.
Popular items: a search log by Zipf's law, trained without and with `heads.contrastive.logq`. A tiny model from scratch;
recall@1 of held-out pairs among all items, other right items left out, by seed.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import io
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.load import load_config
from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit, read_manifest
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import HoldoutRule, MinedRelease, RowsRef, SpanRef
from tasks.data.holdout import split_holdout
from tasks.data.rows import CORE, ITEM_ID, QUERY, ROWS_KIND, distinct_items
from tasks.worker import train
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import load_parts
from tasks.worker.training.holdout import encode_side
from tasks.worker.training.row_keys import TextKeys, keys_of
from tasks.worker.training.training_rows import TrainingRows
from tests.support.workspace.jobs import all_rows, infer_vectors, make_catalogue, make_job, model_of

RIGHT, ASKED, NEAREST = 5, 4, 1  # items of a topic; ways to ask for one; items that are looked at
OPENINGS = ("", "buy ", "best ", "cheap ")
SETTINGS = [
    "model.scratch={vocab_size: 1500, hidden_size: 64, layers: 1, attention_heads: 2, intermediate_size: 128, "
    "max_tokens: 64}",
    "train.max_tokens={query: 24, item: 24}",
    "train.sequence_tokens=64",
    "train.batch_rows=32",
    "train.learning_rate=1e-3",
    "train.precision=fp32",
    "train.epochs=6",
    "train.checkpoint_every=100000 steps",
    "train.evaluate_every_steps=100000",
    "infer.max_tokens=24",
    "infer.sequence_tokens=64",
    "infer.batch_sequences=32",
    "evaluate.holdout_share=0.2",
]
MINED = "heads.contrastive.negatives={per_query: 2}"


def main() -> None:
    """Measure and print two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    names, found = ("no mining", "mining", "mining, held-out pairs not known"), []
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory(prefix="millrace-") as name, contextlib.redirect_stdout(io.StringIO()):
            found.append(several_answers(Path(name), arguments.topics, seed))
    _print("recall@1 of held-out pairs", names, found)
    parts = ("all", "rare items", "popular items")
    names, found = tuple(f"{part}, {way}" for part in parts for way in ("plain", "logq")), []
    for seed in range(arguments.seeds):
        with tempfile.TemporaryDirectory(prefix="millrace-") as name, contextlib.redirect_stdout(io.StringIO()):
            found.append(popular_items(Path(name), arguments.topics, seed))
    _print("recall@1 of held-out pairs", names, found)


def several_answers(folder: Path, topics: int, seed: int) -> list[float]:
    """Return the recall without mining, with it, and with it where held-out pairs are not known."""
    random = np.random.default_rng(seed)
    words = _words(random, topics)
    pairs = [(t, ask, item) for t in range(topics) for ask in range(ASKED) for item in range(RIGHT)]
    random.shuffle(pairs)
    halves = pairs[: len(pairs) // 2], pairs[len(pairs) // 2 :]
    store = DirectoryStore(folder / "workspace")
    spans = [_span(store, folder, number, half, words) for number, half in enumerate(halves)]
    config = load_config(None, [*SETTINGS, f"seed={seed}"])
    first = _train(store, config, TrainInputs(rows=(spans[0],), history=(), parent=None), "first")
    model = model_of(first)
    vectors = infer_vectors(store, config, spans[0], model).prefix
    release = MinedRelease(
        number=1,
        model=model,
        vectors=vectors,
        vectors_sha256=read_manifest(store, vectors).sha256,
        catalogue=make_catalogue(store, config, spans[0]),
    )
    found = []
    for name, settings in (("plain", ()), ("mined", (MINED,)), ("half", (MINED,))):
        inputs = TrainInputs(
            rows=(spans[1],),
            history=(spans[0],),
            parent=model.checkpoint,
            mined=release if settings else None,
        )
        own = load_config(None, [*SETTINGS, f"seed={seed}", *settings])
        with _only_training_rows(own) if name == "half" else contextlib.nullcontext():
            outcome = _train(store, own, inputs, name)
        hits, _ = _hits(store, own, spans, outcome)
        found.append(float(hits.mean()))
        store.delete("negatives")
        store.delete(outcome.checkpoint.prefix)
    return found


def popular_items(folder: Path, topics: int, seed: int) -> list[float]:
    """Return the recall without and with the correction: of all rows, of rare items, of popular ones."""
    random = np.random.default_rng(seed)
    words = _words(random, topics)
    items = random.permutation(topics * RIGHT)
    weight = 1.0 / (1 + np.arange(len(items)))
    drawn = items[random.choice(len(items), topics * 40, p=weight / weight.sum())]
    pairs = [(int(one) // RIGHT, int(random.integers(ASKED)), int(one) % RIGHT) for one in drawn]
    store = DirectoryStore(folder / "workspace")
    span = _span(store, folder, 0, pairs, words)
    found: list[list[float]] = [[], [], []]
    for way in ("false", "true"):
        config = load_config(None, [*SETTINGS, f"seed={seed}", f"heads.contrastive.logq={way}"])
        outcome = _train(store, config, TrainInputs(rows=(span,), history=(), parent=None), way)
        hits, often = _hits(store, config, [span], outcome)
        for part, some in zip(found, (often >= 0, often <= 4, often >= 40), strict=True):
            part.append(float(hits[some].mean()))
        store.delete(outcome.checkpoint.prefix)
    return [number for part in found for number in part]


def _words(random: np.random.Generator, topics: int) -> list[list[str]]:
    """Return three words of each topic: queries have the first, items one of the others."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return [["".join(random.choice(letters, 5)) for _ in range(3)] for _ in range(topics)]


def _span(
    store: DirectoryStore, folder: Path, number: int, pairs: Sequence[tuple[int, int, int]], words: list[list[str]]
) -> RowsRef:
    """Write rows of topic, way to ask and item."""
    count, name = len(pairs), f"2026-0{number + 1}"
    columns = {
        "row_id": [f"{number}-{row}" for row in range(count)],
        "time": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * count, CORE["time"]),
        "query": [f"{OPENINGS[ask]}{words[topic][0]}" for topic, ask, _ in pairs],
        "item": [f"{words[topic][1 + item % 2]} number {item}" for topic, _, item in pairs],
        "item_id": [f"{topic}-{item}" for topic, _, item in pairs],
        "label": pa.array([1.0] * count),
    }
    source = folder / f"rows-{name}"
    source.mkdir(parents=True)
    pq.write_table(pa.table(columns), source / "part-00000.parquet")
    prefix = f"runs/made/validate/rows/{name}"
    commit(store, prefix, source, ROWS_KIND, {"span": name, "version": 1, "rows": count})
    return RowsRef(span=SpanRef(name=name, version=1), prefix=prefix, rows=count)


def _train(store: DirectoryStore, config: Config, inputs: TrainInputs, run_key: str) -> TrainOutcome:
    return train.run(make_job(store, config, inputs, run_key=run_key))


@contextlib.contextmanager
def _only_training_rows(config: Config) -> Iterator[None]:
    """Let training rows alone say what is right, as it would be if held-out pairs counted as unknown."""

    def said(rows: TextKeys) -> Iterator[np.ndarray]:
        for table in TrainingRows(rows.store, rows.refs, config):
            yield keys_of(table, np.ones(table.num_rows, dtype=bool))

    with mock.patch.object(TextKeys, "__iter__", said):
        yield


def _hits(
    store: DirectoryStore, config: Config, spans: Sequence[RowsRef], outcome: TrainOutcome
) -> tuple[np.ndarray, np.ndarray]:
    """Return whether each held-out pair is found, bool (pairs,), and how many training rows its item has."""
    rows = all_rows(store, spans, config)
    sides = split_holdout(rows, HoldoutRule.of(config.evaluate))
    counts = Counter(sides.training[ITEM_ID].to_pylist())
    items, parts = distinct_items(rows), load_parts(store, outcome.checkpoint)
    ids = items[ITEM_ID].to_pylist()
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        settings = embed_settings(config, accelerator, "fp32")
        vectors = embed(parts.model, accelerator, *encode_side(items, "item", parts, config), settings)
        queries = embed(parts.model, accelerator, *encode_side(sides.held, "query", parts, config), settings)
    right: dict[str, set[str]] = {}
    for query, item in zip(rows[QUERY].to_pylist(), rows[ITEM_ID].to_pylist(), strict=True):
        right.setdefault(query, set()).add(item)
    hits, pairs = [], list(zip(sides.held[QUERY].to_pylist(), sides.held[ITEM_ID].to_pylist(), strict=True))
    for scores, (query, own) in zip(queries @ vectors.T, pairs, strict=True):
        wrong = np.array([item not in right[query] for item in ids])
        hits.append(int((scores[wrong] >= scores[ids.index(own)]).sum()) < NEAREST)
    return np.array(hits), np.array([counts[own] for _, own in pairs])


def _print(what: str, names: Sequence[str], found: Sequence[Sequence[float]]) -> None:
    print(f"\n| {what} | {' | '.join(f'seed {seed}' for seed in range(len(found)))} | mean |")
    print("|---|" + "---:|" * (len(found) + 1))
    for name, row in zip(names, np.array(found).T, strict=True):
        print(f"| {name} | {' | '.join(f'{one:.3f}' for one in row)} | {row.mean():.3f} |", flush=True)


if __name__ == "__main__":
    main()
