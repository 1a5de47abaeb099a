"""Texts per second of infer's host alone: read, tokenise, pack and write, with an encoder that computes nothing.

    python -m tests.benchmarks.speed.infer_host [--items 65536] [--tokens 30] [--keep]

On one core, in seconds of the processor, so that other work on the machine does not count. The first rate is of vectors
of 32 numbers, the second one of the 384 of a small encoder, which Parquet has to compress.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import torch

from tasks.contracts.jobs import InferInputs
from tasks.data.rows import ITEM, ITEM_ID
from tasks.worker.model import embed
from tasks.worker.model.tokens import tokenize
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.support.workspace.jobs import (
    change_rows,
    infer_alone,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
)

LIMIT = 30_000  # texts a second
WIDTHS = (32, 384)
MOST = 65_536  # texts of a batch


def main() -> int:
    """Measure and print; return 1 below the limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, default=65_536)
    parser.add_argument("--tokens", type=int, default=30)
    add_keep(parser)
    asked = parser.parse_args()
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    torch.set_num_threads(1)
    with measuring("infer-host", asked.keep) as sheet:
        sheet.table("numbers of a vector", "tokens a text", "texts/s on one core")
        for width in WIDTHS:
            measure(sheet, width, asked.items, asked.tokens)
    return int(sheet.missed > 0)


def measure(sheet: Sheet, width: int, items: int, tokens: int) -> None:
    """Add the rate at this width, over a catalogue with this number of items."""
    config = tiny_config(
        f"model.scratch={{vocab_size: 400, hidden_size: {width}, layers: 1, attention_heads: 2, intermediate_size: 64, "
        "max_tokens: 128}",
        "infer.shard_rows=8192", "infer.sequence_tokens=128", "infer.max_tokens=128",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="millrace-host-") as name:
        store, rows = make_workspace(Path(name), rows=130, distinct=100)
        model = model_of(train_model(store, config, rows))
        chance = random.Random(1)

        def many(table: pa.Table) -> pa.Table:
            words = sorted({word for text in table[ITEM].to_pylist() for word in text.split()})
            texts = [" ".join(chance.choices(words, k=tokens - 2)) for _ in range(items)]
            repeated = table.take([number % table.num_rows for number in range(items)])
            for column, values in ((ITEM, texts), (ITEM_ID, [f"item-{number}" for number in range(items)])):
                repeated = repeated.set_column(repeated.column_names.index(column), column, pa.array(values))
            return repeated

        catalogue = make_catalogue(store, config, change_rows(store, rows, "2026-03", many, Path(name) / "rows"))
        counted = list[int]()

        def counting(*args: Any, **kwargs: Any) -> Any:
            found = tokenize(*args, **kwargs)
            counted.append(int(found.lengths.sum()))
            return found

        def nothing(model: Any, _: Any) -> torch.Tensor:
            return torch.eye(1, model.width).expand(MOST, -1)

        job = make_job(store, config, InferInputs(catalogue=catalogue, model=model))
        with mock.patch.object(embed, "_encode", nothing), mock.patch("tasks.worker.infer.tokenize", counting):
            began = time.process_time()
            made = infer_alone(job)
            seconds = time.process_time() - began
    rate = made.vectors / seconds
    sheet.row(width, sum(counted) / made.vectors, rate, good=rate >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
