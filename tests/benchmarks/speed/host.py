"""Pairs per second of the host alone: the plan and the batches of a training, without a model, on one core.

    python -m tests.benchmarks.speed.host [--pairs 262144] [--batches 256 512 1024 2048 8192] [--rounds 3] [--keep]

Pairs are made up: 42 tokens each in the mean, log-normal as in reviews; an item has ten rows in the mean, a query
three. Items and queries are drawn uniformly, and as a log has them: the frequency of the n-th is 1 / n^z (Zipf). Rows
are read from files, as training reads them. Batches of 1,024 pairs of a uniform log are also made row by row, in turns,
by `tests/support/models/one_by_one.py`, and read batch by batch. Seconds are the processor's, so that other work on the
machine does not count. A rate below the limit is marked, and the exit code is then 1.
"""

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import torch

from configs.load import load_config
from configs.schema.config import Config
from tasks.worker.model.features import FeatureTable
from tasks.worker.process.job import Rank
from tasks.worker.training import batches, plan
from tasks.worker.training.known_pairs import find_known_positives
from tasks.worker.training.pair_arrays import Pairs, open_pair_files, row_type, write_facts
from tasks.worker.training.row_keys import ROW_KEYS
from tasks.worker.training.tokenised import ITEM_IDS, QUERY_IDS, ROWS
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.support.models import one_by_one

LIMIT = 100_000  # pairs per second
EXPONENTS = (0.0, 0.8, 1.0)
COMPARED = 1024  # pairs of a batch that is made row by row too
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
    parser.add_argument("--pairs", type=int, default=2**18)
    parser.add_argument("--batches", type=int, nargs="+", default=[256, 512, 1024, 2048, 8192])
    parser.add_argument("--rounds", type=int, default=3)
    add_keep(parser)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    torch.set_num_threads(1)
    with measuring("host", arguments.keep) as sheet:
        sheet.table("log", "pairs a batch", "plan alone, pairs/s on one core", "batches, pairs/s on one core")
        for exponent in EXPONENTS:
            with made_up(arguments.pairs, exponent) as pairs:
                for batch in arguments.batches:
                    plans = rate(batch, itertools.islice(seconds_of_plans(pairs, batch), arguments.rounds))
                    whole = rate(batch, itertools.islice(seconds_of_blocks(pairs, batch), 1, arguments.rounds + 1))
                    log = f"Zipf {exponent}" if exponent else "uniform"
                    sheet.row(log, batch, plans, whole, good=plans >= LIMIT)
        with made_up(arguments.pairs, 0.0) as pairs:
            compare(sheet, pairs, arguments.rounds)
    return int(sheet.missed > 0)


def compare(sheet: Sheet, pairs: Pairs, rounds: int) -> None:
    """Add the rate of batches, beside that of the definitions, measured in turns."""
    sides = {"at once": contextlib.nullcontext, "row by row": row_by_row}
    made: dict[str, Iterator[float]] = {}
    for name, way in sides.items():
        with way():
            made[name] = seconds_of_blocks(pairs, COMPARED)
            next(made[name])  # the plan of the epoch
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _, (name, way) in itertools.product(range(rounds), sides.items()):
        with way():
            taken[name].append(next(made[name]))
    rates = {name: rate(COMPARED, each) for name, each in taken.items()}
    tokens = np.asarray(pairs.tokens).mean()
    sheet.table(f"batches of {COMPARED:,} pairs, {tokens:.0f} tokens a pair", "pairs/s on one core", "ratio")
    for name, each in rates.items():
        sheet.row(name, each, each / rates["row by row"], good=each >= LIMIT or name != "at once")


def rate(batch_rows: int, seconds: Iterable[float]) -> float:
    """Return the pairs per second of blocks of batches, by the median block."""
    return plan.BLOCK_BATCHES * batch_rows / statistics.median(seconds)


@contextlib.contextmanager
def row_by_row() -> Iterator[None]:
    """Make batches by the definitions inside the block."""
    with (
        mock.patch.object(batches, "pack", one_by_one.pack),
        mock.patch.object(batches, "split_by_worker", one_by_one.split_by_worker),
        mock.patch.object(plan, "deal", one_by_one.deal),
        mock.patch.object(batches, "READ_ROWS", 1),
    ):
        yield


def seconds_of_blocks(pairs: Pairs, batch_rows: int) -> Iterator[float]:
    """Yield the CPU seconds of each block of batches, its plan included."""
    config = config_of(batch_rows)
    batch_plan, shape = batches.make_plan(config, 0, pairs), batches.choose_shape(config, 0, pairs, 1)
    made = iter(batches.Batches(pairs, batch_plan, shape, ALONE, range(len(batch_plan))))
    while True:
        began = time.process_time()
        for _ in range(plan.BLOCK_BATCHES):
            next(made)
        yield time.process_time() - began


def seconds_of_plans(pairs: Pairs, batch_rows: int) -> Iterator[float]:
    """Yield the CPU seconds of the plan of each block of batches."""
    made = batches.make_plan(config_of(batch_rows), 0, pairs)
    for first in range(0, len(made), plan.BLOCK_BATCHES):
        began = time.process_time()
        for number in range(first, first + plan.BLOCK_BATCHES):
            made.rows(number)
        yield time.process_time() - began


def config_of(batch_rows: int) -> Config:
    return load_config(None, [*SETTINGS, f"train.batch_rows={batch_rows}", "train.epochs=1000"])


@contextlib.contextmanager
def made_up(rows: int, exponent: float) -> Iterator[Pairs]:
    """Yield made-up pairs, in files until the end of the block."""
    with tempfile.TemporaryDirectory(prefix="millrace-host-") as name:
        yield write_pairs(Path(name), rows, exponent)


def draw(random: np.random.Generator, rows: int, count: int, exponent: float) -> np.ndarray:
    """Return `rows` numbers below `count`, int64 (rows,); number n has the weight 1 / (n + 1) ** exponent."""
    weights = np.cumsum(1 / np.arange(1, max(1, count) + 1) ** exponent)
    return np.searchsorted(weights, random.random(rows) * weights[-1])


def write_pairs(folder: Path, rows: int, exponent: float) -> Pairs:
    """Write made-up rows into files of a folder, and open them."""
    random = np.random.default_rng(0)
    features = FeatureTable(numeric={}, categorical={}, query=(), rows={})
    numbers = {"query": draw(random, rows, rows // 3, exponent), "item": draw(random, rows, rows // 10, exponent)}
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
