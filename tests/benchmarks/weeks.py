"""The table of docs/aws.md: dollars of week 2 and of week 52 by size, by the arithmetic of `millrace plan`.

    python -m tests.benchmarks.weeks

Seconds come from `stage_costs` without an attempt on record, so from configs/published.yaml; bytes and requests from
pieces that were measured or counted, below. `make docs` writes the tables into the page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from configs.load import load_config
from configs.schema.config import Config
from infra.store.manifest import turns_of
from tasks.contracts.costs import StageCost
from tasks.contracts.stages import Stage
from tasks.laboratory.encoding_time import Known, Load
from tasks.laboratory.host_time import ASKED_BYTES, KNOWN_BYTES, MODELS, PAIR_BYTES, RELEASES, RIGHT_ITEMS
from tasks.laboratory.machine_plan import on_spot, stage_costs
from tasks.monitoring.estimates import Past
from tests.docs.refreshes import BERT_BASE, TOKENS, on_cpu

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "aws.md"
_TABLES = re.compile(r"(<!-- Weeks, written by `make docs`[^>]*-->\n\n).*?(?=\n\n<!-- end of the weeks -->)", re.S)

WEEKS = (2, 52)
ROWS_OF_AN_ITEM = 5  # rows a week, as 50 million about 10 million items
CHANGED_AN_HOUR = 0.001  # share of the items

ROW_BYTES = 200  # a row as ingested, and again as validate cleans it
HELD_BYTES = 33  # pairs, hashes and holdout rows, as a share of each row; measured 2026-11-28
SIGNATURE_BYTES = 130  # near-duplicates: a row of 18 words, measured 2026-11-28
POSITIVE_BYTES = 2 * 8 * RIGHT_ITEMS  # by id and by text, of a row's query
MADE_BYTES = SIGNATURE_BYTES + HELD_BYTES + PAIR_BYTES + 2  # that validate adds to a row
TOKEN_BYTES = 4 * 96  # a row's, int32
ITEM_BYTES = 100  # in the catalogue
VECTOR_BYTES = 4 * 768 + ITEM_BYTES
MODEL_BYTES = 0.44e9  # BERT-base in fp32
CHECKPOINT_BYTES = 3 * MODEL_BYTES  # weights and both moments
KEPT_RELEASES = 3  # by `millrace prune`, once a day
PIECE_BYTES = 8 * 2**20  # part of an upload; a download is one request a file
# Counted on an emulated bucket with none to three earlier spans, 2026-11-28, and by tests.benchmarks.history: for each,
# and for a stage by itself.
REQUESTS_OF_A_SPAN = {Stage.validate: 25, Stage.evaluate: 4}
REQUESTS_OF_A_STAGE = 100
REQUESTS_OF_A_PARTITION, REQUESTS_OF_A_WORKER = 10, 5  # infer's: docs/benchmarks.md
# A refresh's: counted 2026-11-30 with 24 changed partitions of 64, in the third refresh in a row, which merges deltas;
# the first one sends 25 for a change. It also reads some files to check them.
REQUESTS_OF_A_REFRESH, REQUESTS_OF_A_CHANGE = 340, 33
PUTS_OF_A_REFRESH, PUTS_OF_A_CHANGE = 46, 6
# The catalogue's: for each changed partition, and times the changed records. Both weeks of
# tests.benchmarks.speed.deltas fit to these, with 2.5 and with 10 changes in a partition and hour.
BYTES_OF_A_CHANGE, RECORD_TIMES = 2_600, 8
REQUEST_SECONDS = 0.015  # assumed; the requests of a partition come one after another
PUT, GET = 5e-6, 4e-7  # dollars a request; half of all are taken to be PUT or LIST
GB_MONTH, WEEKS_OF_A_MONTH = 0.023, 52 / 12
ALWAYS = (("NAT gateway, orchestrator, logs and images", 8.50 + 7.70 + 1.20),)


SUMS = ("the run", "the week")


class Peer(NamedTuple):
    """A published price of embedding many texts once."""

    who: str  # with its address
    what: str
    date: str
    dollars: float
    texts: float


PEERS = (
    Peer("Artain, dev.to/artain", "multilingual-e5-small, 8 A100 Spot, short messages", "undated", 6.75, 685e6),
    Peer("AWS, aws-neuron-sdk", "BERT-base, 128 tokens, inf2.xlarge at $0.7582", "2025-12-19", 0.7582, 2674 * 3600),
    Peer("[Hugging Face](https://huggingface.co/blog/billion-classifications)",
         "gte-modernbert-base, L4 at $0.80", "2025-02-13", 409, 1e9),
    Peer("[SkyPilot](https://blog.skypilot.co/large-scale-embedding)",
         "gte-Qwen2-7B, 406 Spot GPUs in 12 regions", "undated", 277.07, 30e6),
    Peer("SkyPilot, in one region", "the same, on demand", "undated", 710, 30e6),
)  # fmt: skip


class Size(NamedTuple):
    """A shop, and the settings of its runs."""

    items: int
    settings: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """Rows a week."""
        return self.items * ROWS_OF_AN_ITEM

    def config(self) -> Config:
        return load_config(ROOT / "configs/trainium.yaml", (*BERT_BASE, *self.settings))


FOUR = ("train.workers=128", "infer.workers=128", "train.batch_rows=8192", "train.sequences=6144")
WORKERS = (1, 2, 4, 8)  # machines of validate in a table of its own
WHOLE = Size(10_000_000)  # shown with each stage, the others with the sums alone
SIZES = (Size(100_000), WHOLE, Size(100_000_000, (*FOUR, "infer.shard_rows=131072")))


class Line(NamedTuple):
    """A line of a week. A number is None if the line has no such number."""

    name: str
    machines: str
    seconds: float | None
    read: float | None  # bytes
    written: float | None  # bytes
    requests: float | None
    dollars: float
    spot: float  # dollars, if infer's machines are Spot
    grows: str = ""  # reason, which the page explains below its tables


_GROWS = {
    Stage.validate: "each row is compared with the signatures and the keys of all earlier rows",
    Stage.evaluate: "four requests for the holdout of each earlier span",
}


def week(size: Size, number: int) -> list[Line]:
    """Return the lines of a week, the last one the sum. Graphs are compiled in week 1, and kept."""
    config, earlier = size.config(), size.rows * (number - 1)
    steps = math.ceil(size.rows * (1 - config.evaluate.holdout_share) / config.train.batch_rows)
    assert config.train.sequences is not None
    load = Load(
        rows=(size.rows,), tokens=steps * config.train.sequences * config.train.sequence_tokens, steps=steps,
        items=size.items, text_tokens=TOKENS, earlier=earlier,
    )  # fmt: skip
    lines = [_stage(config, cost, load, size, number) for cost in stage_costs(Known(Past((), {})), config, Stage, load)]
    lines.append(_refreshes(config, size))
    kept = (
        number * size.rows * (2 * ROW_BYTES + MADE_BYTES)
        + KEPT_RELEASES * (size.items * (VECTOR_BYTES + ITEM_BYTES) + size.rows * TOKEN_BYTES + CHECKPOINT_BYTES)
        + size.rows * POSITIVE_BYTES
    )  # fmt: skip
    stored = kept / 1e9 * GB_MONTH / WEEKS_OF_A_MONTH
    lines.append(Line("S3", "", None, None, None, None, stored, stored, "the rows of all weeks are kept"))
    lines += [Line(name, "", None, None, None, None, each, each) for name, each in ALWAYS]
    run, whole = (_sum(some) for some in (lines[: len(Stage)], lines))
    used = " and ".join(dict.fromkeys(line.machines for line in lines[: len(Stage)]))
    lines.insert(len(Stage), run._replace(name=SUMS[0], machines=used))
    return [*lines, whole._replace(name=SUMS[1], seconds=None)]


def _refreshes(config: Config, size: Size) -> Line:
    """Return the line of the hourly refreshes of a week."""
    hours, items, partitions = 24 * 7, size.items * CHANGED_AN_HOUR, _partitions(config, size)
    changed = partitions * (1 - math.exp(-items / partitions))  # expected, of items by chance
    compared = sum(partitions / turns_of(round(size.items * each)) for each in (VECTOR_BYTES, ITEM_BYTES))
    requests = REQUESTS_OF_A_REFRESH + REQUESTS_OF_A_CHANGE * changed + compared
    puts = PUTS_OF_A_REFRESH + PUTS_OF_A_CHANGE * changed
    refresh = on_cpu(round(items))
    seconds = refresh.seconds + REQUESTS_OF_A_CHANGE * changed * REQUEST_SECONDS
    dollars = refresh.dollars * seconds / refresh.seconds + puts * PUT + (requests - puts) * GET
    written = items * (VECTOR_BYTES * 2 + ITEM_BYTES * RECORD_TIMES) + BYTES_OF_A_CHANGE * changed
    return Line(
        f"{hours} refreshes", "1 x m7i.2xlarge", hours * seconds, None, hours * written, hours * requests,
        hours * dollars, hours * dollars,
    )  # fmt: skip


def _partitions(config: Config, size: Size) -> int:
    return int(2 ** math.ceil(math.log2(max(1, size.items / config.infer.shard_rows))))


def _sum(lines: list[Line]) -> Line:
    """Return the sums of seconds, bytes, requests and dollars."""
    seconds, read, written, requests, dollars, spot = (
        sum(value or 0.0 for value in column) for column in list(zip(*lines, strict=True))[2:8]
    )
    return Line("", "", seconds, read, written, requests, dollars, spot)


def _stage(config: Config, cost: StageCost, load: Load, size: Size, number: int) -> Line:
    stage = cost.stage
    assert cost.seconds is not None
    assert cost.phases is not None
    assert cost.price is not None
    seconds = cost.seconds - cost.phases.compiling
    read, written = _bytes(stage, load, size)
    partitions = _partitions(config, size)
    requests = REQUESTS_OF_A_STAGE + REQUESTS_OF_A_SPAN.get(stage, 0) * (number - 1) + written / PIECE_BYTES
    match stage:
        case Stage.infer:
            requests = REQUESTS_OF_A_STAGE + REQUESTS_OF_A_PARTITION * partitions
            requests += REQUESTS_OF_A_WORKER * config.infer.workers + written / PIECE_BYTES
        case Stage.evaluate:
            requests += MODELS * partitions
        case Stage.release:
            requests += RELEASES * partitions
    dollars = cost.price.dollars(seconds * cost.machines) + _of_requests(requests)
    spot = dollars
    kept = cost.phases.model_copy(update={"compiling": 0.0})  # graphs
    if quote := on_spot(config, cost.model_copy(update={"phases": kept})):
        spot = quote.dollars + _of_requests(requests)
    machines = f"{cost.machines} x {cost.instance}"
    return Line(stage.value, machines, seconds, read, written, requests, dollars, spot, _GROWS.get(stage, ""))


def _bytes(stage: Stage, load: Load, size: Size) -> tuple[float, float]:
    """Return the bytes that a stage reads from the bucket and writes to it."""
    vectors = size.items * VECTOR_BYTES
    match stage:
        case Stage.validate:
            kept = size.rows * (ROW_BYTES + MADE_BYTES + POSITIVE_BYTES) + size.items * ITEM_BYTES
            earlier = load.earlier * (SIGNATURE_BYTES + PAIR_BYTES)
            if (workers := size.config().validate_.workers) > 1:
                asked, met = size.rows * ASKED_BYTES, min(load.earlier, size.rows * RIGHT_ITEMS) * PAIR_BYTES
                earlier, kept = earlier + workers * asked + met, kept + asked + met
            return size.rows * ROW_BYTES + earlier + size.items * ITEM_BYTES, kept
        case Stage.train:
            pairs = size.rows * POSITIVE_BYTES
            return size.rows * ROW_BYTES + pairs + CHECKPOINT_BYTES, size.rows * TOKEN_BYTES + CHECKPOINT_BYTES
        case Stage.evaluate:
            return MODELS * (vectors + MODEL_BYTES), 0.0
        case Stage.infer:
            return size.items * ITEM_BYTES + MODEL_BYTES, vectors
        case Stage.release:
            known = RELEASES * size.items * KNOWN_BYTES if size.config().release.workers > 1 else 0
            return RELEASES * vectors + known + CHECKPOINT_BYTES, known + MODEL_BYTES
        case _:
            return CHECKPOINT_BYTES, 0.0


def _of_requests(number: float) -> float:
    return number * (PUT + GET) / 2


def tables() -> str:
    """Return the tables as Markdown: one for each size, then the prices of others."""
    by_workers = map(_by_workers, (Stage.validate, Stage.release))
    return "\n\n".join("\n".join(lines) for lines in (*map(_table, SIZES), *by_workers, _peers()))


def _by_workers(stage: Stage) -> Iterator[str]:
    setting = f"{stage.value}.workers"
    yield f"The stage {stage.value} by `{setting}`, week 2 / week 52, or one number for both:\n"
    yield f"| rows a week | items | | {' | '.join(map(str, WORKERS))} |"
    yield f"|---|---|---|{'---:|' * len(WORKERS)}"
    for size in (WHOLE, SIZES[-1]):
        sizes = [size._replace(settings=(*size.settings, f"{setting}={workers}")) for workers in WORKERS]
        lines = [[_line(week(each, number), stage) for number in WEEKS] for each in sizes]
        for name, cell in (
            ("minutes", lambda line: _number(line.seconds, 60)),
            ("dollars", lambda line: _dollars(line.dollars)),
        ):
            cells = (_pair(cell(one), cell(other)) for one, other in lines)
            yield f"| {size.rows:,} | {size.items:,} | {name} | {' | '.join(cells)} |"


def _line(lines: list[Line], stage: Stage) -> Line:
    return next(line for line in lines if line.name == stage.value)


def _peers() -> Iterator[str]:
    yield "Dollars for a million texts, embedded once:\n"
    yield "| | | date | $ a million |"
    yield "|---|---|---|---:|"
    infer = _line(week(WHOLE, WEEKS[0]), Stage.infer)
    for name, dollars in (("on demand, after evaluate", infer.dollars), ("on Spot, with its boot", infer.spot)):
        what = f"BERT-base, {TOKENS:.0f} tokens, 10 million items, {infer.machines} {name}; plan, unproven"
        yield f"| **Millrace** | {what} | 2026-11-28 | {dollars / WHOLE.items * 1e6:.2g} |"
    for peer in sorted(PEERS, key=lambda each: each.dollars / each.texts):
        price = peer.dollars / peer.texts * 1e6
        yield f"| {peer.who} | {peer.what} | {peer.date} | {price:.2g} |"


def _table(size: Size) -> Iterator[str]:
    first, second = (week(size, number) for number in WEEKS)
    saved = first[-1].dollars - first[-1].spot
    yield (
        f"**{size.items:,} items, {size.rows:,} rows a week**; week 2 / week 52, or one number for both; "
        f"infer on Spot saves {_dollars(saved)}:\n"
    )
    yield "| | machines | minutes | GB read | GB written | requests | dollars |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    lines = list(zip(first, second, strict=True))
    for one, other in lines if size is WHOLE else lines[len(Stage) :]:
        cells = [
            _pair(_number(one.seconds, 60), _number(other.seconds, 60)),
            _pair(_number(one.read, 1e9), _number(other.read, 1e9)),
            _pair(_number(one.written, 1e9), _number(other.written, 1e9)),
            _pair(_number(one.requests, 1), _number(other.requests, 1)),
            _pair(_dollars(one.dollars), _dollars(other.dollars)),
        ]
        if one.name in SUMS:
            cells = [f"**{cell}**" if cell else "" for cell in cells]
        yield f"| {' | '.join((one.name, one.machines, *cells))} |"


def _pair(first: str, second: str) -> str:
    return first if first == second else f"{first} / {second}"


def _number(value: float | None, unit: float) -> str:
    if value is None:
        return ""
    scaled = value / unit
    return f"{scaled:,.0f}" if scaled >= 10 or scaled == 0 else f"{scaled:.1f}"


def _dollars(value: float) -> str:
    return f"${value:,.0f}" if value >= 100 else f"${value:.2f}"


def page() -> str:
    """Return the page with its tables."""
    text = PAGE.read_text(encoding="utf-8")
    found = _TABLES.search(text)
    assert found is not None, f"{PAGE} lost the comment before its tables"
    return text[: found.end(1)] + tables() + text[found.end() :]


if __name__ == "__main__":
    print(tables())
