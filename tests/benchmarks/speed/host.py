"""Pairs per second of the host alone: the plan and the batches of a training, without a model, on one core.

    python -m tests.benchmarks.speed.host [--pairs 262144] [--batch 1024] [--rounds 5]

Pairs are made up: 42 tokens each in the mean, log-normal as in reviews; an item has ten rows, a query three. They are
read from files, as training reads them. In turns with it, the same batches are made row by row, by
`tests/support/models/one_by_one.py`, and read batch by batch. Seconds are the processor's, so that other work on the
machine does not count. Prints a table as Markdown; the exit code is 1 below the limit.
"""

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from configs.load import load_config
from tasks.worker.model.features import FeatureTable
from tasks.worker.process.job import Rank
from tasks.worker.training import batches, plan
from tasks.worker.training.known_pairs import ROW_KEYS, find_known_positives
from tasks.worker.training.pair_arrays import Pairs, open_pair_files, row_type, write_facts
from tasks.worker.training.token_cache import ITEM_IDS, QUERY_IDS, ROWS
from tests.support.models import one_by_one

LIMIT = 100_000  # pairs per second
ALONE = Rank(0, 1, 0)
VOCABULARY = 30_000
LOG_TOKENS = {"query": 2.53, "item": 3.16}  # means of the logarithms, with which a pair has 42 tokens
SETTINGS = (
    "model.scratch={vocab_size: 4000, hidden_size: 32, layers: 1, attention_heads: 2, intermediate_size: 64, "
    "max_tokens: 128}",
)


def main() -> int:
    """Measure and print; return 1 below the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, default in (("pairs", 2**18), ("batch", 1024), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="millrace-host-") as name:
        pairs = write_pairs(Path(name), arguments.pairs)
    sides = {"at once": contextlib.nullcontext, "row by row": row_by_row}
    made: dict[str, Iterator[float]] = {}
    for name, way in sides.items():
        with way():
            made[name] = seconds_of_blocks(pairs, arguments.batch)
            next(made[name])  # the plan of the epoch
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _, (name, way) in itertools.product(range(arguments.rounds), sides.items()):
        with way():
            taken[name].append(next(made[name]))
    rates = {name: plan.BLOCK_BATCHES * arguments.batch / statistics.median(each) for name, each in taken.items()}
    tokens = np.asarray(pairs.tokens).mean()
    print(f"\n| batches of {arguments.batch:,} pairs, {tokens:.0f} tokens a pair | pairs/s on one core | ratio |")
    print("|---|---:|---:|")
    for name, rate in rates.items():
        print(f"| {name} | {rate:,.0f} | {rate / rates['row by row']:.1f} |")
    print(f"\nThe limit is {LIMIT:,} pairs/s.")
    return int(rates["at once"] < LIMIT)


@contextlib.contextmanager
def row_by_row() -> Iterator[None]:
    """Make batches by the definitions inside the block."""
    with (
        mock.patch.object(batches, "pack", one_by_one.pack),
        mock.patch.object(batches, "split_by_worker", one_by_one.split_by_worker),
        mock.patch.object(plan, "separate", one_by_one.separate),
        mock.patch.object(batches, "READ_ROWS", 1),
    ):
        yield


def seconds_of_blocks(pairs: Pairs, batch_rows: int) -> Iterator[float]:
    """Yield the CPU seconds of each block of batches, its plan included."""
    config = load_config(None, [*SETTINGS, f"train.batch_rows={batch_rows}", "train.epochs=1000"])
    batch_plan, shape = batches.make_plan(config, 0, pairs), batches.choose_shape(config, 0, pairs, 1)
    made = iter(batches.Batches(pairs, batch_plan, shape, ALONE, range(len(batch_plan))))
    while True:
        began = time.process_time()
        for _ in range(plan.BLOCK_BATCHES):
            next(made)
        yield time.process_time() - began


def write_pairs(folder: Path, rows: int) -> Pairs:
    """Write made-up rows into files of a folder, and open them."""
    random = np.random.default_rng(0)
    features = FeatureTable(numeric={}, categorical={}, query=(), rows={})
    numbers = {
        "query": random.integers(0, max(1, rows // 3), rows),
        "item": random.integers(0, max(1, rows // 10), rows),
    }
    records = np.zeros(rows + 1, dtype=row_type(features, 0))
    own = records[:-1]
    for side, name in (("query", QUERY_IDS), ("item", ITEM_IDS)):
        lengths = np.exp(random.normal(LOG_TOKENS[side], 0.6, rows)).astype(np.int64).clip(3, 128)[numbers[side]]
        records[f"{side}_begin"][1:] = np.cumsum(lengths)
        random.integers(5, VOCABULARY, int(lengths.sum()), dtype=np.int32).tofile(folder / name)
        own["tokens"] += lengths
    for key, side in (("query_key", "query"), ("item_key", "item"), ("text_key", "item")):
        own[key] = random.integers(0, 2**62, rows)[numbers[side]]
    own["pair"], own["weight"], own["label_class"] = 1, 1, -1
    records.tofile(folder / ROWS)
    write_facts(folder, rows, np.ones(2, dtype=np.float32), {}, 1.0)
    keys = np.zeros(rows, dtype=ROW_KEYS)
    for name in ("query_key", "item_key", "text_key"):
        keys[name] = own[name]
    keys["pair"] = True
    return open_pair_files(folder, find_known_positives([keys], rows), features, 0)


if __name__ == "__main__":
    sys.exit(main())
