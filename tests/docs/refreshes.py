"""The table of docs/aws.md: time and price of a refresh by its number of new items. `make docs` writes it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from configs.load import load_config
from configs.prices import price_of
from configs.schema.config import Config
from tasks.contracts.stages import REFRESHING, Stage, instance_of
from tasks.laboratory.encoding_time import Known, Load
from tasks.laboratory.machine_plan import stage_cost, stage_costs
from tasks.laboratory.published import published
from tasks.monitoring.estimates import Past
from tasks.preflight.encoder_size import operations
from tasks.runs.catalogues import on_cpu_queue

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "aws.md"
_TABLE = re.compile(r"(<!-- Prices of refreshes, written by `make docs`[^>]*-->\n\n).*?(?=\n\n)", re.S)

ITEMS = (10, 1_000, 10_000, 100_000)
TOKENS = 64.0  # of an item, as in the page's other tables
BERT_BASE = tuple(
    f"model.scratch.{key}" for key in ("layers=12", "hidden_size=768", "attention_heads=12", "intermediate_size=3072")
)
# docs/benchmarks.md: 1334 GFLOP/s of two cores in bf16, of which Millrace uses 50 %; m7i.2xlarge has four such cores.
CPU_SPEED = 1334e9 * 0.50 / 2 * 4


class Refresh(NamedTuple):
    """Time and dollars of a refresh: validate, infer and release."""

    seconds: float
    dollars: float

    @property
    def cells(self) -> tuple[str, str, str]:
        """Minutes, dollars, and dollars of one each hour of a week."""
        return f"{self.seconds / 60:,.0f}", f"${self.dollars:.2f}", f"${self.dollars * 24 * 7:,.0f}"


def refresh(config: Config, infer_seconds: float) -> Refresh:
    """Return a refresh with the given seconds of machines for infer; other stages as `millrace plan` assumes them."""
    every = stage_costs(Known(Past((), {})), config, REFRESHING, Load())
    others = [one for one in every if one.stage is not Stage.infer]
    price = price_of(instance_of(config, Stage.infer), config.cost)
    assert price is not None
    seconds = [one.seconds or 0.0 for one in others]
    dollars = [one.dollars or 0.0 for one in others]
    assert all((*seconds, *dollars))
    return Refresh(sum(seconds) + infer_seconds, sum(dollars) + price.dollars(infer_seconds))


def on_cpu(items: int) -> Refresh:
    """Return a refresh on `batch.cpu_queue`."""
    config = on_cpu_queue(load_config(ROOT / "configs/trainium.yaml", BERT_BASE))
    size = published().models["bert-base"]
    work = operations(size, items * TOKENS, config.infer.sequence_tokens, training=False)
    return refresh(config, published().fixed["start"].seconds + work / CPU_SPEED)


def on_accelerator(items: int) -> Refresh:
    """Return a refresh on the machines of runs, which compile the embedding first: a refresh has no warmup."""
    config = load_config(ROOT / "configs/trainium.yaml", BERT_BASE)
    infer = stage_cost(Known(Past((), {})), config, Stage.infer, Load(items=items, text_tokens=TOKENS))
    assert infer.seconds is not None
    return refresh(config, infer.seconds + published().fixed["compile"].seconds)


def page() -> str:
    """Return the page with its table."""
    text = PAGE.read_text(encoding="utf-8")
    found = _TABLE.search(text)
    assert found is not None, f"{PAGE} lost the comment before its table"
    lines = [
        "| new items | CPU queue, minutes | each | hourly, a week | trn1.32xlarge, minutes | each | hourly, a week |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [f"| {' | '.join((f'{n:,}', *on_cpu(n).cells, *on_accelerator(n).cells))} |" for n in ITEMS]
    return text[: found.end(1)] + "\n".join(lines) + text[found.end() :]
