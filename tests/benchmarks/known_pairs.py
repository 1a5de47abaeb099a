"""CPU seconds until a training knows the pairs of its lineage, by the keys that validate wrote and by the texts.

    python -m tests.benchmarks.known_pairs [--rows 100000] [--spans 2 5 10] [--keep]

Spans of equal size are made up, all with the same queries and items; the last one is trained. Each number of spans is
measured by keys and by texts in one process, so that the ratio does not depend on other work.
"""

import argparse
import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from configs.load import load_config
from infra.store.directory import DirectoryStore
from tasks.contracts.references import RowsRef, SpanRef
from tasks.worker.process.cores import Cores
from tasks.worker.training.known_pairs import KnownPositives, LineageKeys
from tasks.worker.training.replay import ReplayedRows
from tasks.worker.training.row_keys import write_span_keys
from tests.benchmarks.figures import add_keep, measuring
from tests.benchmarks.training_memory import write_span

CONFIG = load_config()
HEADS = CONFIG.heads


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--spans", type=int, nargs="+", default=[2, 5, 10])
    add_keep(parser)
    arguments = parser.parse_args()
    with (
        measuring("known-pairs", arguments.keep) as sheet,
        tempfile.TemporaryDirectory(prefix="millrace-known-") as name,
    ):
        store, scratch = DirectoryStore(Path(name) / "workspace"), Path(name) / "scratch"
        refs, with_keys = [], []
        for number in range(max(arguments.spans)):
            span = SpanRef(name=f"2026-01-{number + 1:02d}", version=1)
            refs.append(write_span(store, arguments.rows, span, number))
        seconds = _seconds(lambda: with_keys.extend(_written(store, ref, scratch) for ref in refs))
        rows = arguments.rows * len(refs)
        size = sum(sum(store.sizes(ref.row_keys or "").values()) for ref in with_keys)
        sheet.table("to write the keys", "µs a row", "bytes a row")
        sheet.row(f"{rows:,} rows", seconds / rows * 1e6, size / rows)
        sheet.table("spans", "rows", "by texts, CPU s", "by keys, CPU s", "ratio")
        for many in arguments.spans:
            sides = refs[:many], with_keys[:many]
            texts, keys = (_seconds(functools.partial(_known, store, side, scratch)) for side in sides)
            sheet.row(many, many * arguments.rows, texts, keys, texts / keys)


def _written(store: DirectoryStore, ref: RowsRef, scratch: Path) -> RowsRef:
    prefix = f"runs/memory/validate/keys/{ref.span.name}"
    return write_span_keys(store, ref, HEADS, prefix, scratch / ref.span.name, Cores(()))


def _known(store: DirectoryStore, refs: Sequence[RowsRef], scratch: Path) -> None:
    *earlier, own = refs
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        LineageKeys(
            store, (own,), earlier, None, HEADS, ReplayedRows.of(store, CONFIG, (own,), earlier, None)
        ).write_known(Path(name), lambda: None)
        KnownPositives.open(Path(name))


def _seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    main()
