"""Memory of the first steps of a training on spans of two sizes, each in a process of its own.

    python -m tests.benchmarks.training_memory [--pairs 1000000 10000000] [--steps 50] [--keep]

The rows are made up and written as validate would write them; the tokenizer is that of the first rows, as in a lineage
that began with a smaller span. Memory is the kernel's high-water mark of the process (VmHWM), which counts files that
are mapped, so it needs Linux. A figure beyond its limit is marked, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.load import load_config
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.jobs import JobSpec, TrainInputs
from tasks.contracts.references import RowsRef, SpanRef
from tasks.data.rows import BATCH_ROWS, CORE, ROWS_KIND
from tests.benchmarks.figures import Sheet, add_keep, measuring

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

SPAN = SpanRef(name="2026-01", version=1)
SETTINGS = [
    "model.scratch={vocab_size: 4000, hidden_size: 32, layers: 1, attention_heads: 2, intermediate_size: 64, "
    "max_tokens: 128}",
    "train.batch_rows=64",
    "train.precision=fp32",
    "features.numeric=[price]",
    "model.interaction.kind=both",
    "model.interaction.deep_widths=[32]",
]
TOKENIZER_ROWS = 20_000
MEMORY_MIB, TOLERANCE = 2048, 1.10


def main() -> int:
    """Measure and print; return 1 if a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, nargs=2, default=[1_000_000, 10_000_000])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--workspace", type=Path, help=argparse.SUPPRESS)  # in the process that is measured
    add_keep(parser)
    arguments = parser.parse_args()
    if arguments.workspace is not None:
        print(json.dumps(train(arguments.workspace, arguments.pairs[0], arguments.steps)))
        return 0
    found = []
    for pairs in arguments.pairs:
        with tempfile.TemporaryDirectory(prefix="millrace-memory-") as name:
            write_span(DirectoryStore(Path(name)), pairs)
            command = [sys.executable, "-m", "tests.benchmarks.training_memory", "--workspace", name]
            command += ["--pairs", str(pairs), str(pairs), "--steps", str(arguments.steps)]
            said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            found.append(json.loads(said.splitlines()[-1]))
    with measuring("train-memory", arguments.keep) as sheet:
        _print(sheet, arguments.pairs, found)
    return int(sheet.missed > 0)


def write_span(store: DirectoryStore, pairs: int, span: SpanRef = SPAN, seed: int = 7) -> RowsRef:
    """Write the validated rows of one span: queries of six words, items of twelve, one item for every ten rows.

    All spans have the same queries and items; the seed says which rows pair them.
    """
    ref = ref_of(pairs, span)
    random, names = np.random.default_rng(seed), np.random.default_rng(7)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = pa.array(sorted({"".join(names.choice(letters, names.integers(3, 9))) for _ in range(5000)}))
    with tempfile.TemporaryDirectory(prefix="millrace-memory-") as name:
        path = Path(name) / "part-00000.parquet"
        writer = None
        for start in range(0, pairs, BATCH_ROWS):
            rows = np.arange(start, min(start + BATCH_ROWS, pairs))
            item = random.integers(0, max(1, pairs // 10), len(rows))
            query = random.integers(0, max(1, pairs // 3), len(rows))
            table = pa.table(
                {
                    "row_id": pa.array(rows).cast(pa.string()),
                    "time": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * len(rows), CORE["time"]),
                    "query": _texts(words, query, 6, 1),
                    "item": _texts(words, item, 12, 2),
                    "item_id": pa.array(item).cast(pa.string()),
                    "label": pa.array(np.ones(len(rows))),
                    "price": pa.array(random.random(len(rows))),
                }
            )
            writer = writer or pq.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.close()
        commit(store, ref.prefix, Path(name), ROWS_KIND, {"span": span.name, "span_version": 1, "rows": pairs})
    return ref


def ref_of(pairs: int, span: SpanRef = SPAN) -> RowsRef:
    """Return the reference of a span that `write_span` has written."""
    return RowsRef(span=span, prefix=f"runs/memory/validate/rows/{span.name}", rows=pairs)


def _texts(words: pa.Array, number: np.ndarray, count: int, seed: int) -> pa.Array:
    """Return a text of `count` words for each number, always the same one."""
    columns = []
    for place in range(count):
        mixed = (number.astype(np.uint64) + np.uint64(seed * 64 + place)) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        columns.append(words.take(pa.array((mixed >> np.uint64(33)) % np.uint64(len(words)))))
    return pc.binary_join_element_wise(*columns, " ")


def train(workspace: Path, pairs: int, steps: int) -> dict[str, float]:
    """Return peak memory with the model alone and after the steps, MiB, and seconds of what was done."""
    from tasks.worker.devices.accelerators import open_accelerator
    from tasks.worker.process.job import Job, PhaseClock, Rank
    from tasks.worker.training.batches import Batches, choose_shape, make_plan
    from tasks.worker.training.known_pairs import open_known
    from tasks.worker.training.loop import TrainStep
    from tasks.worker.training.optimizer import make_optimizer
    from tasks.worker.training.start import build_parts
    from tasks.worker.training.training_rows import (
        first_rows,
        lineage_keys,
        open_pairs,
        read_training_rows,
        replayed_rows,
    )

    config = load_config(None, SETTINGS)
    inputs = TrainInputs(rows=(ref_of(pairs),), history=(), parent=None)
    spec = JobSpec(
        run_key="memory", span=SPAN, attempt=1, submitted_as=1, workspace=str(workspace), workers=1, config=config,
        inputs=inputs,
    )  # fmt: skip
    job = Job(spec, DirectoryStore(workspace), Rank(0, 1, 0), PhaseClock(0.0))
    with open_accelerator("cpu", job.rank, config, "fp32") as accelerator:
        training, replayed = read_training_rows(job, inputs)[0], replayed_rows(job, inputs)
        parts = build_parts(config, first_rows(training, TOKENIZER_ROWS))
        accelerator.to_device(parts.model)
        optimizer = make_optimizer(parts.model, config.train, accelerator)
        step = TrainStep(parts.model, optimizer, accelerator, config, "fp32")
        found = {"model": _peak_mib()}
        began = time.monotonic()
        known = open_known(job, lineage_keys(job, inputs), accelerator.barrier)
        found["known"] = time.monotonic() - began
        began = time.monotonic()
        rows = open_pairs(job, training, replayed, known, parts, accelerator.barrier)
        found["first"] = time.monotonic() - began
        found["tokens"] = _peak_mib()
        began = time.monotonic()
        rows = open_pairs(job, training, replayed, known, parts, accelerator.barrier)
        found["again"] = time.monotonic() - began
        began = time.monotonic()
        plan, shape = make_plan(config, 0, rows), choose_shape(config, 0, rows, 1)
        for number, batch in enumerate(accelerator.feed(Batches(rows, plan, shape, job.rank, range(steps)))):
            step(batch, number)
        found["steps"] = time.monotonic() - began
        found["peak"] = _peak_mib()
    return found


def _peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def _print(sheet: Sheet, pairs: list[int], found: list[dict[str, float]]) -> None:
    (few, many), (small, large) = pairs, found
    sheet.table("", f"{few:,} pairs", f"{many:,} pairs", "ratio")
    good = large["peak"] - large["model"] < MEMORY_MIB and large["peak"] / small["peak"] <= TOLERANCE
    for name, what in (
        ("model", "peak memory with the model, MiB"),
        ("tokens", "with the tokens made, MiB"),
        ("peak", "after the steps, MiB"),
        ("known", "known pairs laid out, s"),
        ("first", "tokens made and rows laid out, s"),
        ("again", "the same with the tokens there, s"),
        ("steps", "plan and steps, s"),
    ):
        sheet.row(what, small[name], large[name], large[name] / small[name], good=good or name != "peak")


if __name__ == "__main__":
    sys.exit(main())
