"""Peak memory of training steps on a processor against the plan: losses over large batches, and sums over workers.

    python -m tests.benchmarks.step_memory [--only NAME ...]

Texts are a few words long and the encoder is small, so that the logits of the contrastive loss are the largest part;
two workers train a wide encoder on few texts, so that the gradients are. Each case takes two steps in processes of
its own. Memory is the kernel's high-water mark (VmHWM), so it needs Linux. Prints a table as Markdown; the exit code
is 1 if a plan is off by more than 5 %.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from configs.load import load_config
from infra.store.directory import DirectoryStore
from tasks.preflight.memory import TrainMemory

LIMIT, STEPS = 0.05, 2
SMALL = (
    "model.scratch={vocab_size: 2000, hidden_size: 64, layers: 1, attention_heads: 2, intermediate_size: 64, "
    "max_tokens: 128}"
)
WIDE = (
    "model.scratch={vocab_size: 2000, hidden_size: 1024, layers: 6, attention_heads: 8, intermediate_size: 4096, "
    "max_tokens: 128}"
)
COMMON = (
    "train.precision=fp32",
    "train.compute=batch",
    "train.sequence_tokens=64",
    "train.max_tokens={query: 32, item: 32}",
)
NEGATIVES = "heads.contrastive.negatives={per_query: 1}"


class Case(NamedTuple):
    """Settings over COMMON."""

    encoder: str
    rows: int
    settings: tuple[str, ...] = ()
    workers: int = 1

    @property
    def overrides(self) -> list[str]:
        return [self.encoder, *COMMON, f"train.batch_rows={self.rows}", f"train.workers={self.workers}", *self.settings]


CASES = {
    "256 pairs": Case(SMALL, 256),
    "4,096 pairs": Case(SMALL, 4096),
    "8,192 pairs": Case(SMALL, 8192),
    "4,096 pairs, a negative, symmetric": Case(SMALL, 4096, (NEGATIVES, "heads.contrastive.symmetric=true")),
    "4,096 pairs, widths 16 and 32": Case(SMALL, 4096, ("heads.contrastive.matryoshka=[16, 32]",)),
    "8,192 pairs in 4 chunks": Case(SMALL, 8192, ("train.gradcache_chunks=4",)),
    "wide encoder": Case(WIDE, 16),
    "wide encoder, two workers": Case(WIDE, 16, workers=2),
}


def main() -> int:
    """Measure and print; return 1 if a plan is off."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)  # in a process that is measured
    arguments = parser.parse_args()
    if arguments.case is not None:
        train(CASES[arguments.case])
        return 0
    missed = False
    print("| case | logits, MiB | exchange, MiB | planned, MiB | actual, MiB | error |\n|---|---:|---:|---:|---:|---:|")
    for name in arguments.only:
        actual, tokens_a_row = measured(name)
        memory = planned(CASES[name], tokens_a_row)
        error = memory.total_gib * 1024 / actual - 1
        missed |= abs(error) > LIMIT
        parts = (memory.logits_gib, memory.exchange_gib, memory.total_gib)
        print(
            f"| {name} |",
            " | ".join(f"{gib * 1024:,.0f}" for gib in parts),
            f"| {actual:,.0f} | {error:+.1%} |",
            flush=True,
        )
    return int(missed)


def measured(name: str) -> tuple[float, float]:
    """Return the peak of the worker that needs most, in MiB, and the tokens of a row."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workers = CASES[name].workers
    command = [sys.executable, "-m", "tests.benchmarks.step_memory", "--case", name]
    place = {"WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": str(workers), "MASTER_ADDR": "127.0.0.1"}
    place |= {"MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            command, env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE,
        )
        for rank in range(workers)
    ]  # fmt: skip
    found = [each.communicate()[0].split()[-2:] for each in started]
    return max(float(peak) for peak, _ in found), float(found[0][1])


def planned(case: Case, tokens_a_row: float) -> TrainMemory:
    """Return the plan's memory of a worker."""
    from tasks.planning.next_run import plan_run
    from tasks.preflight.memory import train_memory
    from tests.support.fakes.fake_runner import ingest

    with tempfile.TemporaryDirectory() as folder:
        store = DirectoryStore(Path(folder))
        ingest(store, "2026-01")
        found = train_memory(store, plan_run(store, load_config(None, case.overrides)), tokens_a_row)
    assert found is not None
    return found


def train(case: Case) -> None:
    """Take steps as one worker; print the peak in MiB, and the tokens of a row, with padding."""
    import pyarrow as pa

    from tasks.worker.devices.accelerators import open_accelerator
    from tasks.worker.process.job import Rank
    from tasks.worker.training.batches import Batches, choose_shape, make_plan
    from tasks.worker.training.loop import TrainStep
    from tasks.worker.training.optimizer import make_optimizer
    from tasks.worker.training.start import build_parts
    from tasks.worker.training.training_rows import make_pairs

    config, rank, numbers = load_config(None, case.overrides), Rank.from_environment(), range(STEPS * case.rows)
    table = pa.table({
        "row_id": [str(number) for number in numbers], "time": pa.array([0] * len(numbers), pa.int64()),
        "query": [f"find {number % 997}" for number in numbers],
        "item": [f"thing {number % 991}" for number in numbers],
        "item_id": [str(number) for number in numbers], "label": [1.0] * len(numbers),
    })  # fmt: skip
    with open_accelerator("cpu", rank, config, "fp32") as accelerator:
        parts = build_parts(config, [table.slice(0, 2000)])
        accelerator.to_device(parts.model)
        parts.model.train()
        step = TrainStep(
            parts.model, make_optimizer(parts.model, config.train, accelerator), accelerator, config, "fp32"
        )
        pairs = make_pairs([table], parts, config)
        plan = make_plan(config, 0, pairs)
        shape = choose_shape(config, 0, pairs, rank.world, mined=True)
        for number, batch in enumerate(accelerator.feed(Batches(pairs, plan, shape, rank, range(STEPS)))):
            step(batch, number)
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    print(peak, shape.sequences * shape.tokens * rank.world / case.rows)


if __name__ == "__main__":
    sys.exit(main())
