"""Speed and memory compared with sentence-transformers, from one run on a reviews file.

    python -m tests.benchmarks.bench path/to/reviews.jsonl.gz

Both sides train MiniLM-L6 on the same pairs (batch 64, at most 128 tokens, bf16 products, contrastive loss) and encode
the same texts, taking turns step by step, so that a noisy machine is noisy to both. Bare matrix products are timed in
between. docs/benchmarks.md explains the result.
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
from tasks.contracts.references import HoldoutRule
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.holdout import split_holdout
from tasks.data.ingest import ingest
from tasks.data.rows import ITEM, ITEM_ID, QUERY, distinct_items
from tasks.preflight.encoder import pretrained_folder
from tasks.quality.intervals import Term, error_of
from tasks.quality.selection import Answers, measure
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.process.job import Rank
from tests.benchmarks.ingest_memory import peak_memory_mib
from tests.benchmarks.ours import Arithmetic, Millrace
from tests.benchmarks.reviews import COLUMNS, CONFIG_FILE, read_spans
from tests.benchmarks.speed.encoders import Encoder, millrace, peers
from tests.benchmarks.speed.useful_share import TRAINING, BareProduct, encoder_flops
from tests.benchmarks.theirs import FOLDER, MAX_TOKENS, SETTINGS, SentenceTransformers

EPOCHS = 1
# Without the head, and texts as long as sentence-transformers' side takes them.
OVERRIDES = (
    "heads.classification=null",
    f"train.epochs={EPOCHS}",
    f"train.max_tokens.query={MAX_TOKENS}",
    f"train.sequence_tokens={MAX_TOKENS}",
    f"infer.max_tokens={MAX_TOKENS}",
    f"infer.sequence_tokens={MAX_TOKENS}",
    "infer.batch_sequences=32",
)
CONTEST_STEPS = 5
ENCODE_TEXTS = 1500
ENCODE_ROUNDS = 3
CONFIDENCE = 0.95
ALONE = Rank(0, 1, 0)
# Tables of encoding: the arithmetic of Millrace, and what it is compared with.
ARITHMETIC: dict[Arithmetic, tuple[str, ...]] = {"bf16": ("bf16", "int8"), "fp32": ("fp32",)}


def main() -> None:
    """Run everything and print the tables as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path, help="reviews as JSONL, plain or gzip")
    source = parser.parse_args().source
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        ingest(store, source, Format.jsonl, "timestamp", SpanKind.quarter, COLUMNS)
        rows = read_spans(store)
    config = load_config(CONFIG_FILE, OVERRIDES)
    training, held = split_holdout(rows, HoldoutRule.of(config.evaluate))
    queries, items = training[QUERY].to_pylist(), training[ITEM].to_pylist()
    with open_accelerator("cpu", ALONE) as accelerator:
        ours = Millrace(config, accelerator, training)
        encode_in_turns(ours, [*queries, *items][:: max(1, 2 * len(items) // ENCODE_TEXTS)])
        theirs = fastest_of(queries, items)
        train_in_turns(ours, theirs)
        recall_of_both(ours, theirs, held, rows)
    memory(source)


def fastest_of(queries: list[str], items: list[str]) -> SentenceTransformers:
    """sentence-transformers at its best: the fastest of a few settings that a user could choose."""
    print("\n| sentence-transformers, training | pairs/s |\n|---|---:|")
    speeds = {}
    for name in SETTINGS:
        trainer = SentenceTransformers(name, queries, items, seed=1)
        trainer.step()
        seconds = statistics.median(timed(trainer.step) for _ in range(CONTEST_STEPS))
        speeds[name] = trainer.rows / seconds
        print(f"| {name} | {speeds[name]:.1f} |", flush=True)
    best = max(speeds, key=lambda name: speeds[name])
    return SentenceTransformers(best, queries, items, seed=17)


def train_in_turns(ours: Millrace, theirs: SentenceTransformers) -> None:
    """Both train for the same number of epochs, a step each in turn, and bare products with them; medians of steps."""
    ours_rates, their_rates = [], []
    products = {precision: BareProduct(precision) for precision in ("bf16", "fp32")}
    bare: dict[str, list[float]] = {precision: [] for precision in products}
    for number in range(max(ours.steps, theirs.steps_per_epoch * EPOCHS)):
        if number < ours.steps:
            pairs = ours.next_pairs
            ours_rates.append(pairs / timed(ours.step))
        if number < theirs.steps_per_epoch * EPOCHS:
            their_rates.append(theirs.rows / timed(theirs.step))
        for precision, product in products.items():
            bare[precision].append(product.flops / product.seconds())
        print(f"step {number + 1}", end="\r", file=sys.stderr)
    ours_rate, their_rate = statistics.median(ours_rates), statistics.median(their_rates)
    of_a_pair = TRAINING * encoder_flops(ours.parts.encoder_config, ours.lengths) / ours.pairs
    limits = {precision: statistics.median(rates) for precision, rates in bare.items()}
    limit = limits["bf16" if ours.precision == "bf16" else "fp32"]
    print("\n| training | pairs/s | ratio | useful share of the bare rate |\n|---|---:|---:|---:|")
    for name, rate in (
        (f"Millrace ({ours.precision})", ours_rate),
        (f"sentence-transformers (bf16, {theirs.name})", their_rate),
        ("the bare rate", limit / of_a_pair),
    ):
        print(f"| {name} | {rate:.1f} | {rate / their_rate:.2f} | {rate * of_a_pair / limit:.0%} |")
    real = ours.lengths.sum() * EPOCHS / (ours.steps * ours.computed_tokens)
    print(f"\nOf the tokens that Millrace computes in training, {real:.1%} are real.")
    print("\n| bare matrix product | GFLOP/s |\n|---|---:|")
    for precision, rate in limits.items():
        print(f"| {precision} | {rate / 1e9:.0f} |", flush=True)


def encode_in_turns(ours: Millrace, texts: list[str]) -> None:
    """All encode the same texts with the same weights, a round each in turn; medians of rounds."""
    with tempfile.TemporaryDirectory() as scratch:
        others = list(peers(pretrained_folder(FOLDER), Path(scratch)))
        exact = next(peer for peer in others if peer.precision == "fp32").encode(texts)
        flops = encoder_flops(ours.parts.encoder_config, ours.lengths_of(texts))
        for precision, kinds in ARITHMETIC.items():
            sides = [millrace(ours, precision), *(peer for peer in others if peer.precision in kinds)]
            contest(sides, texts, exact, flops, BareProduct(precision))


def contest(sides: list[Encoder], texts: list[str], exact: np.ndarray, flops: float, product: BareProduct) -> None:
    """The rounds and the table of some encoders, of which Millrace is the first.

    Args:
        exact: vectors of the texts by sentence-transformers in fp32, (texts, width).
        flops: of the products of all texts.
    """
    seconds: list[list[float]] = [[] for _ in sides]
    bare = []
    cosines = [float((side.encode(texts) * exact).sum(axis=1).min()) for side in sides]  # also warms up
    for _ in range(ENCODE_ROUNDS):
        for side, taken in zip(sides, seconds, strict=True):
            taken.append(timed(lambda side=side: side.encode(texts)))
            bare.append(product.flops / product.seconds())
    limit = statistics.median(bare)
    print("\n| encoding | texts/s | Millrace / it | useful share of the bare rate | least cosine |")
    print("|---|---:|---:|---:|---:|")
    for side, taken, cosine in zip(sides, seconds, cosines, strict=True):
        ratio = statistics.median(b / a for a, b in zip(seconds[0], taken, strict=True))
        share = flops / statistics.median(taken) / limit
        rate = len(texts) / statistics.median(taken)
        print(f"| {side} | {rate:.0f} | {ratio:.2f} | {share:.0%} | {cosine:.5f} |", flush=True)


def recall_of_both(ours: Millrace, theirs: SentenceTransformers, held: pa.Table, rows: pa.Table) -> None:
    """Holdout recall@10 over all titles, for both after training and for the untrained weights."""
    corpus = distinct_items(rows)
    place = {item: number for number, item in enumerate(corpus[ITEM_ID].to_pylist())}
    target = np.array([place[item] for item in held[ITEM_ID].to_pylist()])
    untrained = SentenceTransformers(theirs.name, [""] * 64, [""] * 64, seed=1)
    print(f"\n| recall@10, {held.num_rows} holdout rows, {corpus.num_rows} titles | |\n|---|---:|")
    sides = {
        "untrained": untrained.encode,
        "Millrace": lambda texts: ours.encode(texts, "fp32"),
        "sentence-transformers": theirs.encode,
    }
    hits = []
    for name, encode in sides.items():
        query, item = (encode(texts.to_pylist()) for texts in (held[QUERY], corpus[ITEM]))
        scores = query @ item.T
        own = scores[np.arange(len(target)), target]
        hits.append(((scores >= own[:, None]).sum(axis=1) <= 10).astype(np.float64))
        print(f"| {name} | {hits[-1].mean():.1%} |", flush=True)
    groups = np.unique(held[QUERY].to_pylist(), return_inverse=True)[1]
    both = Answers("recall@10", groups, target, np.zeros_like(groups), (hits[1], hits[2]))
    ours_mean, theirs_mean = measure(both)
    low, high = error_of(Term(both, (1.0, -1.0))).bounds(ours_mean - theirs_mean, (1 + CONFIDENCE) / 2)
    points = f"{100 * (ours_mean - theirs_mean):+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
    print(f"| Millrace less sentence-transformers, points ({CONFIDENCE:.0%}) | {points} |", flush=True)


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
