"""How well an old lineage still learns: a shift in its data, and what its learning rate has come to by then.

    python -m tests.benchmarks.quality.plasticity [--seeds 3] [--spans 52] [--shift 40] [--only NAME,...]

A lineage over invented spans, of which each stands for some three weekly runs: `decay_steps` is a third of a span's
steps, so that 52 spans wear its rate down as three years do. At the shift, half of the items are asked for in words
that no span had before. Each variant of the schedule is measured by MRR@10 on queries that no span has: how well the
new words find their items after some spans, and what is lost of the words of before. `fresh` is a lineage that begins
with the same pretrained model at the shift. A training that is done is not done again: its answers are in
workspace/plasticity, one file each. After a change of code, delete them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch

from configs.load import config_hash, load_config
from configs.schema.config import Config
from configs.schema.training import TrainConfig, learning_rate
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import CheckpointRef
from tasks.data.rows import distinct_items
from tasks.foundation.records import Record
from tasks.worker import train
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.export.export import export_model
from tasks.worker.model.embed import embed_settings
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import load_parts
from tasks.worker.training.holdout import judge, make_holdout
from tasks.worker.training.optimizer import set_rates
from tests.benchmarks.quality.shifted_spans import GROUPS, Shop
from tests.support.workspace.jobs import commit_rows, make_job

RESULTS = Path("workspace/plasticity")
METRIC = "mrr@10"
RECOVERED = 0.9  # of the MRR of the half without new words
SHOWN = (1, 2, 4, 8, 12)  # spans after the shift
PRETRAINING_ROWS = 6400
PRETRAINING = ("lineage=before", "train.learning_rate=2e-3", "train.decay_steps=1000", "train.epochs=5")
SETTINGS = (
    "model.scratch={vocab_size: 600, hidden_size: 32, layers: 1, attention_heads: 2, intermediate_size: 64, "
    "max_tokens: 64}",
    "train.max_tokens={query: 32, item: 32}",
    "train.sequence_tokens=32",
    "train.batch_rows=64",
    "train.learning_rate=1e-3",
    "train.warmup_steps=10",
    "train.decay_steps=3",
    "train.precision=fp32",
    "train.log_every_steps=1000",
    "train.evaluate_every_steps=1000",
    "train.checkpoint_every=1000 steps",
    "infer.precision=fp32",
    "infer.max_tokens=32",
    "infer.sequence_tokens=32",
    "evaluate.holdout_share=0.0001",
    "heads.classification=null",
    "heads.contrastive.positives_only=false",
)


class Variant(NamedTuple):
    """Settings over those of all; `rewarmed`: each run warms up and decays as if it were the lineage's first."""

    settings: tuple[str, ...] = ()
    rewarmed: bool = False
    at_the_shift: bool = False  # the lineage begins there


FRESH = "fresh"
VARIANTS = {
    "no floor": Variant(("train.learning_rate_floor=0",)),
    "floor 0.1": Variant(("train.learning_rate_floor=0.1",)),
    "floor 0.2": Variant(("train.learning_rate_floor=0.2",)),
    "floor 0.3": Variant(("train.learning_rate_floor=0.3",)),
    "floor 0.5": Variant(("train.learning_rate_floor=0.5",)),
    "warmed up again by each run": Variant(("train.learning_rate_floor=0",), rewarmed=True),
    FRESH: Variant(("train.learning_rate_floor=0",), at_the_shift=True),
}


class Answers(Record):
    """One lineage after each of `spans`: the rate of the last step as a part of the peak, and MRR@10 by group."""

    of: str  # the configuration and the plan
    spans: tuple[int, ...]
    rates: tuple[float, ...]
    mrr: dict[str, tuple[float, ...]]

    def at(self, group: str, span: int) -> float:
        return self.mrr[group][self.spans.index(span)]


class Plan(NamedTuple):
    """The lineage's length, its shift, and rows of a span."""

    spans: int
    shift: int
    rows: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing, and print a table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="lineages of each variant")
    parser.add_argument("--spans", type=int, default=52)
    parser.add_argument("--shift", type=int, default=40, help="the first span with the new words")
    parser.add_argument("--rows", type=int, default=640, help="of a span")
    parser.add_argument("--only", type=lambda text: tuple(text.split(",")), default=tuple(VARIANTS))
    parser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)  # for models this small a second thread only costs
    plan = Plan(asked.spans, asked.shift, asked.rows)
    heads = [f"new words after {number}" for number in SHOWN if plan.shift + number <= plan.spans]
    columns = ["rate at the shift", *heads, f"spans to {RECOVERED:.0%}", "old words", "the rest"]
    print(f"| schedule | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}", flush=True)
    for name in asked.only:
        found = [_once(name, seed, plan, asked.results) for seed in range(asked.seeds)]
        print(f"| {name} | {' | '.join(_cells(found, plan, len(heads)))} |", flush=True)
    return 0


def _cells(found: Sequence[Answers], plan: Plan, shown: int) -> list[str]:
    """Return the means over the seeds, MRR in percent; `old` and `rest` before the shift and at the lineage's end."""
    older, last = found[0].spans[0] < plan.shift, found[0].spans[-1]

    def mean(group: str, span: int) -> str:
        return f"{100 * np.mean([each.at(group, span) for each in found]):.1f}"

    rate = np.mean([each.rates[each.spans.index(plan.shift)] for each in found])
    cells = [f"{100 * rate:.0f} %"]
    cells += [mean("new", plan.shift + number - 1) for number in SHOWN[:shown]]
    waits = [_spans_to_recover(each, plan) for each in found]
    cells.append(", ".join("never" if wait is None else str(wait) for wait in waits))
    for group in ("old", "rest"):
        cells.append(f"{mean(group, plan.shift - 1)} to {mean(group, last)}" if older else mean(group, last))
    return cells


def _spans_to_recover(answers: Answers, plan: Plan) -> int | None:
    """Return after how many spans the items with new words are found nearly as well as the others; None: never."""
    after = [span for span in answers.spans if span >= plan.shift]
    found = [span for span in after if answers.at("new", span) >= RECOVERED * answers.at("rest", span)]
    return found[0] - plan.shift + 1 if found else None


def _once(name: str, seed: int, plan: Plan, results: Path) -> Answers:
    """Return the answers of one lineage, from its file if it is there and of the same configuration and plan."""
    file = results / f"{name.replace(' ', '-')}-{seed}.json"
    config = load_config(None, [*SETTINGS, *VARIANTS[name].settings, f"seed={seed}"])
    wanted = f"{config_hash(config)} {plan}"
    if file.exists() and (known := Answers.model_validate_json(file.read_bytes())).of == wanted:
        return known
    print(f"{name}, seed {seed}", file=sys.stderr, flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="millrace-plasticity-") as scratch,
        Path(os.devnull).open("w") as nowhere,
        redirect_stdout(nowhere),
    ):
        answers = _lineage(Path(scratch), VARIANTS[name], config, seed, plan).model_copy(update={"of": wanted})
    results.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(answers.to_json())
    unfinished.replace(file)
    return answers


def _lineage(folder: Path, variant: Variant, plain: Config, seed: int, plan: Plan) -> Answers:
    """Train a lineage in a new workspace, and measure it after each span that the table may need."""
    shop, store = Shop(seed), DirectoryStore(folder / "workspace")
    pretrained = _pretrained(shop, store, plain, folder)
    measured, groups = shop.measured()
    config = load_config(
        None, [*SETTINGS, *variant.settings, f"seed={seed}", "model.scratch=null", f"model.pretrained={pretrained}"]
    )
    parent, spans, rates, mrr = None, [], [], {group: [] for group in GROUPS}
    for span in range(plan.spans):
        rows = commit_rows(store, f"span-{span:03d}", shop.span(plan.rows, span >= plan.shift), folder)
        if variant.at_the_shift and span < plan.shift:
            continue
        with patch("tasks.worker.training.loop.set_rates", _set_rewarmed) if variant.rewarmed else nullcontext():
            outcome = train.run(
                make_job(store, config, TrainInputs(rows=(rows,), history=(), parent=parent), str(span))
            )
        parent = outcome.checkpoint
        if span < plan.shift - 1 and span % 4:
            continue
        spans.append(span)
        own = outcome.last_step - 1 - (outcome.first_step if variant.rewarmed else 0)
        rates.append(learning_rate(own, config.train) / config.train.learning_rate)
        for group, value in _mrr(store, parent, config, shop.catalogue(), measured, groups).items():
            mrr[group].append(value)
    return Answers(of="", spans=tuple(spans), rates=tuple(rates), mrr={g: tuple(v) for g, v in mrr.items()})


def _set_rewarmed(optimizer: torch.optim.AdamW, step: int, steps: range, config: TrainConfig) -> None:
    """Set the rates as if the run were its lineage's first."""
    set_rates(optimizer, step - steps.start, range(len(steps)), config)


def _pretrained(shop: Shop, store: DirectoryStore, config: Config, folder: Path) -> Path:
    """Write a folder with a model that knows the old words, as a lineage finds its encoder."""
    rows = commit_rows(store, "before", shop.span(PRETRAINING_ROWS, shifted=False), folder)
    config = load_config(None, [*SETTINGS, *PRETRAINING, f"seed={config.seed}"])
    outcome = train.run(make_job(store, config, TrainInputs(rows=(rows,), history=(), parent=None), "before"))
    written = folder / "pretrained"
    written.mkdir()
    export_model(load_parts(store, outcome.checkpoint), config, outcome.model_version, written)
    return written


def _mrr(
    store: DirectoryStore, checkpoint: CheckpointRef, config: Config, items: pa.Table, rows: pa.Table, of: Sequence[str]
) -> dict[str, float]:
    """Return the MRR@10 of each group's queries among all items."""
    parts = load_parts(store, checkpoint)
    holdout = make_holdout(rows, distinct_items(items), parts, config)
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        judged = judge(parts, holdout, accelerator, embed_settings(config, accelerator, "fp32"))
    return {group: judged.metrics(holdout, np.array(of) == group)[METRIC] for group in GROUPS}


if __name__ == "__main__":
    sys.exit(main())
