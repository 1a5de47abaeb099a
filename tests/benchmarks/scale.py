"""A million items and a million rows, released twice: memory of each process, time for each item, a kill, search.

    python -m tests.benchmarks.scale [--items 1000000] [--rows 1000000] [--keep]

Everything goes through the installed command, on the demo's model. Memory is the kernel's own high-water mark of each
process (VmHWM), so it needs Linux. A figure beyond its limit is marked, and the exit code is then 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from configs.load import load_config
from flows.cli.serving.search_worker import searcher
from flows.demo.search_log import write_shop
from infra.prefect_server import client_environment, down, up
from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.stages import Stage
from tasks.runs import releases
from tasks.runs.results import read_result
from tasks.runs.rollback import rollback
from tests.benchmarks.figures import Sheet, add_keep, measuring
from tests.benchmarks.scale_input import ROW_COLUMNS, write_items, write_rows
from tests.benchmarks.watched import Watched

ROOT = Path(__file__).resolve().parents[2]
CONFIG_FILE = ROOT / "configs" / "demo.yaml"
SETTINGS = ["validate.max_text_chars=2000"]  # shards and all else by default: a fault of the defaults must show
# For rows: one epoch of a smaller encoder in large batches, since the arithmetic is not the subject.
QUICK = [
    "model.scratch={vocab_size: 4000, hidden_size: 32, layers: 1, attention_heads: 2, intermediate_size: 64, "
    "max_tokens: 32}",
    "validate.signs.query_of_item.stop=null",  # a made-up query has words of its item
    "train.epochs=1",
    "train.batch_rows=1024",
    "train.evaluate_every_steps=200",
    "train.checkpoint_every=500 steps",
    "evaluate.holdout_share=0.05",
    "infer.batch_sequences=128",
]
ITEM_MAP = "id=sku,text=title"
MEMORY_MIB, TOLERANCE, SEARCH_SECONDS, ROLLBACK_SECONDS = 2048, 1.10, 2.0, 1.0
QUERIES = ("waterproof anorak", "roter Schal aus Wolle", "kettle", "desk lamp 40 cm", "running shoes")


class Refreshed(NamedTuple):
    """A refresh: what it embedded, at which speed, and the peak memory of its processes in MiB."""

    outcome: InferOutcome
    seconds: float
    peaks: dict[str, float]

    @property
    def embedded(self) -> int:
        return self.outcome.vectors - self.outcome.vectors_reused


class Bench:
    """One workspace, and the command over it."""

    def __init__(self, workspace: Path) -> None:
        self.workspace, self.store = workspace, DirectoryStore(workspace)

    def watched(self, *arguments: str) -> Watched:
        return Watched(self.workspace, *arguments)

    def run(self, *arguments: str) -> tuple[Any, float, dict[str, float]]:
        """Output, seconds and peaks of one command. Raises RuntimeError: it failed; with what it said."""
        with self.watched(*arguments, "--json") as command:
            output = command.finish()
        return json.loads(output), command.seconds, command.peaks

    def ingest_rows(self, source: Path) -> float:
        """Peak memory of the command, MiB."""
        form = ("--format", "jsonl", "--time-column", "searched_at", "--span", "month", "--map", ROW_COLUMNS)
        return self.run("ingest", "--source", str(source), *form)[2]["command"]

    def ingest_items(self, source: Path) -> float:
        """Peak memory of the command, MiB."""
        form = ("--format", "jsonl", "--time-column", "updated_at", "--span", "month", "--map", ITEM_MAP)
        return self.run("ingest", "--items", str(source), *form)[2]["command"]

    def train(self, span: str, *settings: str) -> tuple[Any, float, dict[str, float]]:
        """Run all stages over a span; see `run`."""
        return self.run("run", "--config", str(CONFIG_FILE), "--span", span, *_sets([*SETTINGS, *settings]))

    def refresh(self) -> Refreshed:
        output, seconds, peaks = self.run("refresh", "--config", str(CONFIG_FILE), *_sets(SETTINGS))
        result = read_result(self.store, output["release"]["run_key"], Stage.infer)
        assert result is not None
        assert isinstance(result.outcome, InferOutcome)
        return Refreshed(result.outcome, seconds, peaks)

    def notes(self) -> int:
        """Partitions that are done in a refresh that is not."""
        return sum(1 for _ in self.workspace.glob("refreshes/*/infer/shards/*/*/*.json"))


def main() -> int:
    """Measure and print; return 1 if a limit was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    add_keep(parser)
    arguments = parser.parse_args()
    with (
        measuring("scale", arguments.keep) as sheet,
        tempfile.TemporaryDirectory(prefix="millrace-scale-") as name,
    ):
        folder = Path(name)
        os.environ.pop("PREFECT_API_URL", None)
        os.environ.update(client_environment(up(folder / "prefect")))
        try:
            items(sheet, folder, arguments.items)
            rows(sheet, folder, arguments.rows)
        finally:
            down(folder / "prefect")
    return int(sheet.missed > 0)


def _sets(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


# --- items --------------------------------------------------------------------------------------------------------


def items(sheet: Sheet, folder: Path, many: int) -> None:
    """A tenth of the items in one workspace and all of them in another, both on the same release.

    The tenth is embedded before and after the rest: the machine may be busy at one time.
    """
    first = Bench(folder / "first")
    write_shop(folder / "shop.jsonl.gz", spans=2, rows_per_span=2000, seed=7)
    first.ingest_rows(folder / "shop.jsonl.gz")
    first.train("2026-01", "train.epochs=1")
    found = {}
    for count in (many // 10, many):
        bench = _copied(first, folder / f"items-{count}")
        source = write_items(folder / f"items-{count}.jsonl", count)
        ingest = bench.ingest_items(source)
        done, before = _killed(bench, count) if count == many else (0, {})
        refreshed = bench.refresh()
        peaks = [{"ingest": ingest}, before, refreshed.peaks]
        highest = {name: max(each.get(name, 0.0) for each in peaks) for name in [*before, *refreshed.peaks, "ingest"]}
        found[count] = refreshed._replace(peaks=highest)
        if done:
            _print_kill(sheet, done, refreshed)
    again = _copied(first, folder / "again")
    again.ingest_items(folder / f"items-{many // 10}.jsonl")
    _print_items(sheet, found, again.refresh())
    _changed(sheet, folder, bench, many)
    _released_again(sheet, bench)
    _searched(sheet, bench)
    _rolled_back(sheet, bench)


def _copied(first: Bench, workspace: Path) -> Bench:
    shutil.copytree(first.workspace, workspace)
    return Bench(workspace)


def _killed(bench: Bench, many: int) -> tuple[int, dict[str, float]]:
    """Kill a refresh with SIGKILL when about half of its partitions are done; return how many were, and its peaks."""
    with bench.watched("refresh", "--config", str(CONFIG_FILE), *_sets(SETTINGS), "--json") as command:
        while bench.notes() < max(1, many // load_config(CONFIG_FILE, SETTINGS).infer.shard_rows // 2):
            if command.process.poll() is not None:
                raise RuntimeError(f"the refresh ended before it could be killed: {command.finish()}")
            time.sleep(0.2)
        command.process.send_signal(signal.SIGKILL)
        command.process.wait()
    time.sleep(2)  # the worker dies with the command
    return bench.notes(), command.peaks


def _print_kill(sheet: Sheet, done: int, refreshed: Refreshed) -> None:
    sheet.table("killed in the middle", "")
    sheet.row("partitions", refreshed.outcome.catalogue.partitions if refreshed.outcome.catalogue else 0)
    sheet.row("of them done when the command was killed", done)
    made = refreshed.outcome.shards_reused
    sheet.row("of them not made again", made, good=made == done)


def _print_items(sheet: Sheet, found: dict[int, Refreshed], again: Refreshed) -> None:
    (few, small), (many, large) = found.items()
    sheet.table("peak memory, MiB", f"{few:,} items", f"{many:,} items", "ratio")
    for name in large.peaks:
        one, ten = small.peaks[name], large.peaks[name]
        good = ten < MEMORY_MIB and ten / one <= TOLERANCE
        sheet.row(name, one, ten, ten / one, good=good)
    sheet.table("refresh", f"{few:,} items", f"{many:,} items", "ratio")
    before, ten, after = (1e6 / each.outcome.texts_per_second for each in (small, large, again))
    ratio = ten / min(before, after)
    name = "microseconds an item, in infer; the few before and after the many, their least counts"
    sheet.row(name, f"{before:.0f}, {after:.0f}", ten, ratio, good=ratio <= TOLERANCE)
    sheet.row("items embedded", small.embedded, large.embedded, "")
    sheet.row("seconds of the command", small.seconds, f"{large.seconds:.0f} after the kill", "")


def _changed(sheet: Sheet, folder: Path, bench: Bench, many: int) -> None:
    source = write_items(folder / "changed.jsonl", many // 50, changed=True)
    bench.ingest_items(source)
    refreshed = bench.refresh()
    sheet.table("2 % of the items changed", "")
    sheet.row("vectors", refreshed.outcome.vectors)
    sheet.row("of them embedded", refreshed.embedded, good=refreshed.embedded == many // 50)
    sheet.row("seconds of the command", refreshed.seconds)


def _released_again(sheet: Sheet, bench: Bench) -> None:
    """Train the next span: a new model embeds all items, and is compared with the champion among them."""
    before = releases.current(bench.store)
    output, seconds, peaks = bench.train("2026-02")
    release = releases.current(bench.store)
    assert before is not None
    assert release is not None
    sheet.table("the next span", "")
    sheet.row("seconds of the command", seconds)
    sheet.row("state", output["state"], good=output["state"] == "Released" and release.number > before.number)
    sheet.row("vectors of the new model", release.vectors, good=release.vectors >= before.vectors)
    for name, peak in peaks.items():
        sheet.row(f"peak memory of {name}, MiB", peak, good=peak < MEMORY_MIB)


def _searched(sheet: Sheet, bench: Bench) -> None:
    release = releases.current(bench.store)
    assert release is not None
    with searcher(bench.store, release) as worker:
        seconds = [worker.ask(text, 10).seconds for text in QUERIES]
        sheet.table(f"search among {worker.about.vectors:,} vectors", "")
        sheet.row("seconds to start", worker.about.seconds)
        sheet.row("seconds of a query, at most", max(seconds), good=max(seconds) < SEARCH_SECONDS)
    _, _, peaks = bench.run("search", QUERIES[0])
    sheet.row("peak memory of its worker, MiB", peaks["search"], good=peaks["search"] < MEMORY_MIB)


def _rolled_back(sheet: Sheet, bench: Bench) -> None:
    began = time.monotonic()
    rollback(bench.store)
    seconds = time.monotonic() - began
    sheet.table("rollback", "")
    sheet.row("seconds", seconds, good=seconds < ROLLBACK_SECONDS)
    sheet.row("seconds of the command", bench.run("rollback", "--to", "4")[1])


# --- rows ---------------------------------------------------------------------------------------------------------


def rows(sheet: Sheet, folder: Path, many: int) -> None:
    """One span, from ingest to release."""
    bench = Bench(folder / "rows")
    peaks = {"ingest": bench.ingest_rows(write_rows(folder / "rows.jsonl", many))}
    _, seconds, found = bench.run("run", "--config", str(CONFIG_FILE), *_sets([*SETTINGS, *QUICK]))
    sheet.table(f"a span of {many:,} rows, {seconds:.0f} s", "peak memory, MiB")
    for name, peak in (peaks | found).items():
        sheet.row(name, peak, good=peak < MEMORY_MIB)


if __name__ == "__main__":
    sys.exit(main())
