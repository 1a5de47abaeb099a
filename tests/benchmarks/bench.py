"""Speed and memory compared with sentence-transformers, from one run on a reviews file.

    python -m tests.benchmarks.bench path/to/reviews.jsonl.gz

Both sides train MiniLM-L6 on the same pairs (batch 64, at most 128 tokens, bf16 products, contrastive loss) and encode
the same texts, taking turns step by step, so that a noisy machine is noisy to both. docs/benchmarks.md explains
the result.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from configs.load import load_config
from infra.store.factory import open_store
from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.spans import SpanKind
from tasks.data.holdout import split_holdout
from tasks.data.ingest import ingest
from tasks.data.rows import ITEM, ITEM_ID, QUERY, distinct_items
from tasks.data.sources import Format
from tasks.worker.accelerators import open_accelerator
from tasks.worker.process.job import Rank
from tests.benchmarks.ingest_memory import peak_memory_mib
from tests.benchmarks.ours import Millrace
from tests.benchmarks.reviews import COLUMNS, CONFIG_FILE, read_spans
from tests.benchmarks.theirs import SETTINGS, SentenceTransformers

EPOCHS = 1
CONTEST_STEPS = 5
ENCODE_TEXTS = 1500
ENCODE_ROUNDS = 3
ALONE = Rank(0, 1, 0)


def main() -> None:
    """Run everything and print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path, help="reviews as JSONL, plain or gzip")
    source = parser.parse_args().source
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        ingest(store, source, Format.jsonl, "timestamp", SpanKind.quarter, COLUMNS)
        rows = read_spans(store)
    config = load_config(CONFIG_FILE, ["heads.classification=null"])
    training, held = split_holdout(rows, HoldoutRule.of(config.evaluate))
    queries, items = training[QUERY].to_pylist(), training[ITEM].to_pylist()
    with open_accelerator("cpu", ALONE) as accelerator:
        ours = Millrace(config, accelerator, training, EPOCHS)
        theirs = fastest_of(queries, items)
        train_in_turns(ours, theirs)
        encode_in_turns(ours, theirs, [*queries, *items][:: max(1, 2 * len(items) // ENCODE_TEXTS)])
        recall_of_both(ours, theirs, held, rows)
    memory(source)


def fastest_of(queries: list[str], items: list[str]) -> SentenceTransformers:
    """sentence-transformers at its best: the fastest of a few settings that a user could choose."""
    print("| sentence-transformers, training | pairs/s |\n|---|---:|")
    speeds = {}
    for name in SETTINGS:
        trainer = SentenceTransformers(name, queries, items, seed=1)
        trainer.step()
        seconds = [timed(trainer.step) for _ in range(CONTEST_STEPS)]
        speeds[name] = trainer.rows * CONTEST_STEPS / sum(seconds)
        print(f"| {name} | {speeds[name]:.1f} |", flush=True)
    best = max(speeds, key=lambda name: speeds[name])
    return SentenceTransformers(best, queries, items, seed=17)


def train_in_turns(ours: Millrace, theirs: SentenceTransformers) -> None:
    """Both train for the same number of epochs, a step each in turn."""
    ours_seconds, their_seconds = 0.0, 0.0
    for number in range(max(ours.steps, theirs.steps_per_epoch * EPOCHS)):
        if number < ours.steps:
            ours_seconds += timed(ours.step)
        if number < theirs.steps_per_epoch * EPOCHS:
            their_seconds += timed(theirs.step)
        print(f"step {number + 1}", end="\r", file=sys.stderr)
    our_speed = ours.pairs * EPOCHS / ours_seconds
    their_speed = theirs.steps_per_epoch * EPOCHS * theirs.rows / their_seconds
    print("\n| training | pairs/s | ratio |\n|---|---:|---:|")
    print(f"| Millrace ({ours.precision}) | {our_speed:.1f} | {our_speed / their_speed:.2f} |")
    print(f"| sentence-transformers ({theirs.name}) | {their_speed:.1f} | 1.00 |", flush=True)


def encode_in_turns(ours: Millrace, theirs: SentenceTransformers, texts: list[str]) -> None:
    """Both encode the same texts, a round each in turn, in bf16 and in fp32; medians."""
    print("\n| encoding | texts/s | ratio |\n|---|---:|---:|")
    for precision in ("bf16", "fp32"):
        our_seconds, their_seconds = [], []
        for _ in range(ENCODE_ROUNDS):
            our_seconds.append(timed(lambda p=precision: ours.encode(texts, p)))
            their_seconds.append(timed(lambda p=precision: theirs.encode(texts, p)))
        ratios = [b / a for a, b in zip(our_seconds, their_seconds, strict=True)]
        ours_rate, theirs_rate = (len(texts) / statistics.median(s) for s in (our_seconds, their_seconds))
        print(f"| Millrace ({precision}) | {ours_rate:.0f} | {statistics.median(ratios):.2f} |")
        print(f"| sentence-transformers ({precision}) | {theirs_rate:.0f} | 1.00 |", flush=True)


def recall_of_both(ours: Millrace, theirs: SentenceTransformers, held: pa.Table, rows: pa.Table) -> None:
    """Holdout recall@10 over all titles, for both after training and for the untrained weights."""
    corpus = distinct_items(rows)
    place = {item: number for number, item in enumerate(corpus[ITEM_ID].to_pylist())}
    target = np.array([place[item] for item in held[ITEM_ID].to_pylist()])
    untrained = SentenceTransformers(theirs.name, [""] * 64, [""] * 64, seed=1)
    print(f"\n| recall@10, {held.num_rows} holdout rows, {corpus.num_rows} titles | |\n|---|---:|")
    for name, model in (("untrained", untrained), ("Millrace", ours), ("sentence-transformers", theirs)):
        query, item = (model.encode(texts.to_pylist(), "fp32") for texts in (held[QUERY], corpus[ITEM]))
        scores = query @ item.T
        own = scores[np.arange(len(target)), target]
        print(f"| {name} | {((scores >= own[:, None]).sum(axis=1) <= 10).mean():.1%} |", flush=True)


def memory(source: Path) -> None:
    """Peak memory of ingest over one and over a hundred copies of the file."""
    one, hundred = peak_memory_mib(source, copies=1), peak_memory_mib(source, copies=100)
    print("\n| ingest | peak memory, MiB |\n|---|---:|")
    print(f"| 1 copy | {one:.0f} |\n| 100 copies | {hundred:.0f} ({hundred / one:.2f} times) |")


def timed(work: Callable[[], object]) -> float:
    """Seconds that `work()` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
