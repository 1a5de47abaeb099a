"""Seconds of a training step on XLA's processor runtime compared with eager CPU, in fp32 at the same shapes.

    python -m tests.benchmarks.xla_step [--keep]

MiniLM-L6, batches of 64 made-up texts. Each side is a process of its own with all cores; they take turns step by step,
so that a noisy machine is noisy to both. The first steps, which compile, are listed separately.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import os
import statistics
import time
from multiprocessing.connection import Connection

import torch

from configs.load import load_config
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.process.job import Rank
from tasks.worker.process.threads import bind_threads, keep_freed_memory
from tasks.worker.training.batches import Batch
from tasks.worker.training.loop import TrainStep
from tasks.worker.training.optimizer import make_optimizer
from tasks.worker.training.start import build_parts
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.benchmarks.reviews import CONFIG_FILE
from tests.support.models.texts import packed

SHAPES = (8, 24, 34)  # sequences of a batch
TOKENS = 128
ROUNDS = 6
OVERRIDES = ("train.precision=fp32", "evaluate.slices=[]", "heads.classification=null", "evaluate.gates=[]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    add_keep(parser)
    with measuring("xla-step", parser.parse_args().keep) as sheet:
        compare(sheet)


def compare(sheet: Sheet) -> None:
    """Take steps in turns, and add a row for each shape."""
    sides = {name: _start(name) for name in ("cpu", "xla")}
    sheet.table("shape, tokens", "cpu, s a step", "xla, s a step", "ratio", "first step on xla, s", "loss differs by")
    for sequences in SHAPES:
        first = {name: _step(side, sequences) for name, side in sides.items()}
        for side in sides.values():
            _step(side, sequences)
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        losses: dict[str, float] = {}
        for _ in range(ROUNDS):
            for name, side in sides.items():
                taken, losses[name] = _step(side, sequences)
                seconds[name].append(taken)
        cpu, xla = (statistics.median(seconds[name]) for name in sides)
        differs = abs(losses["cpu"] - losses["xla"]) / losses["cpu"]
        sheet.row(f"{sequences} x {TOKENS}", cpu, xla, xla / cpu, first["xla"][0], f"{differs:.1e}")
    for side in sides.values():
        side.send(None)


def _start(name: str) -> Connection:
    bind_threads(name)  # in the environment that the process begins with, as for a worker
    os.environ["MALLOC_ARENA_MAX"] = "1"  # as in a worker on xla; cpu allocates in its first thread
    ours, theirs = mp.get_context("spawn").Pipe()
    mp.get_context("spawn").Process(target=_serve, args=(name, theirs), daemon=True).start()
    return ours


def _step(side: Connection, sequences: int) -> tuple[float, float]:
    side.send(sequences)
    return side.recv()


def _serve(name: str, asked: Connection) -> None:
    """One side: a step for each shape that is asked for, answered with its seconds and its loss."""
    keep_freed_memory()
    config = load_config(CONFIG_FILE, [f"accelerator={name}", *OVERRIDES])
    with open_accelerator(name, Rank(0, 1, 0), config, "fp32") as accelerator:
        parts = build_parts(config, ())  # the encoder's own tokenizer, and no features
        accelerator.to_device(parts.model)
        optimizer = make_optimizer(parts.model, config.train, accelerator)
        accelerator.settle(parts.model, optimizer)
        step = TrainStep(parts.model, optimizer, accelerator, config, "fp32")
        number = 0
        while (sequences := asked.recv()) is not None:
            batch = _batch(sequences, config.train.batch_rows, number)
            began = time.perf_counter()
            [fed] = accelerator.feed([batch])
            loss = accelerator.fetch(step(fed, number)["loss"]).item()
            asked.send((time.perf_counter() - began, loss))
            number += 1


def _batch(sequences: int, rows: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1000, 20_000, (2 * rows, sequences * TOKENS // (2 * rows)), generator=generator)
    return Batch(
        texts=packed(ids.tolist(), TOKENS, sequences=sequences),
        label_class=torch.full((rows,), -1),
        label_weight=torch.zeros(rows),
        pair=torch.ones(rows),
        excluded=torch.zeros(rows, rows, dtype=torch.bool),
        excluded_queries=torch.zeros(rows, 0, dtype=torch.bool),
        popularity=torch.zeros(0),
        popularity_queries=torch.zeros(0),
        position=torch.arange(rows),
        pairs_in_all=torch.tensor(float(rows)),
        labels_in_all=torch.tensor(0.0),
        labels=torch.zeros(rows, 0),
        head_weight=torch.zeros(rows, 0),
        known_in_all=torch.zeros(0),
    )


if __name__ == "__main__":
    main()
