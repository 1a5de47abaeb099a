"""The table of docs/results.md: eight quarters of product reviews, trained one after the other from MiniLM's weights.

    python -m tests.benchmarks.reviews path/to/reviews.jsonl.gz

Each row also has the recall of the untrained weights on the same holdout rows; the last line has that of the released
folder over all rows, measured with sentence-transformers alone.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from configs.load import load_config
from flows.cli.running import RunOutput, run
from flows.cli.terminal.options import RunOptions
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.evaluation import refusals
from tasks.contracts.references import HoldoutRule
from tasks.contracts.spans import SpanKind, first_day
from tasks.data.files.formats import Format
from tasks.data.holdout import held_out
from tasks.data.ingest import ingest
from tasks.data.rows import ITEM, ITEM_ID, QUERY, ROW_ID, distinct_items
from tasks.data.span_versions import list_spans
from tasks.runs import releases

ROOT = Path(__file__).resolve().parents[2]
CONFIG_FILE = ROOT / "configs" / "reviews.yaml"
COLUMNS = {"id": "review_id", "query": "text", "item": "product_title", "label": "rating"}
QUARTERS = [f"{year}-Q{quarter}" for year in (2021, 2022) for quarter in (1, 2, 3, 4)]


def main() -> None:
    """Run, and print the table as Markdown on standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("source", type=Path, help="reviews as JSONL, plain or gzip")
    parser.add_argument("--workspace", default="workspace/reviews")
    arguments = parser.parse_args()
    store = open_store(arguments.workspace)
    ingest(store, arguments.source, Format.jsonl, "timestamp", SpanKind.quarter, COLUMNS)
    rows = read_spans(store)
    rule = HoldoutRule.of(load_config(CONFIG_FILE).evaluate)
    untrained = Retrieval(pretrained_folder(), rows, rule)
    print("| span | rows trained | holdout rows | untrained | champion | challenger | result |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for quarter in QUARTERS:
        print(f"span {quarter}", file=sys.stderr)
        output = run(RunOptions(store, CONFIG_FILE), quarter)
        assert isinstance(output, RunOutput)
        print(line(store, quarter, output, untrained.recall_up_to(quarter)), flush=True)
    released = releases.current(store)
    assert released is not None
    trained = Retrieval(store.local(released.model_prefix), rows, rule)
    print(
        f"\nAll {len(trained.targets)} holdout rows of all spans against all {len(trained.corpus)} titles, recall@10: "
        f"untrained {untrained.recall():.1%}, release {released.number} ({released.span.name}) {trained.recall():.1%}"
    )


def read_spans(store: Store) -> pa.Table:
    """Row id, texts and span of every ingested row that has both texts."""
    import pyarrow.parquet as pq

    tables = []
    for span in list_spans(store):
        table = pa.concat_tables(
            pq.read_table(path, columns=[ROW_ID, QUERY, ITEM, ITEM_ID])
            for path in sorted(store.local(span.prefix).glob("part-*.parquet"))
        )
        tables.append(table.append_column("span", pa.array([span.name] * table.num_rows)))
    rows = pa.concat_tables(tables)
    whole = [bool(query and item) for query, item in zip(rows[QUERY].to_pylist(), rows[ITEM].to_pylist(), strict=True)]
    return rows.filter(pa.array(whole))


class Retrieval:
    """Ranks of the holdout's own titles under a sentence-transformers folder, with sentence-transformers alone."""

    def __init__(self, folder: Path, rows: pa.Table, rule: HoldoutRule) -> None:
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(folder), device="cpu")
        model.max_seq_length = load_config(CONFIG_FILE).infer.max_tokens
        held = rows.filter(pa.array(held_out(rows, rule)))
        corpus = distinct_items(rows)
        self.corpus: np.ndarray = model.encode(corpus[ITEM].to_pylist(), batch_size=64, normalize_embeddings=True)
        self.queries: np.ndarray = model.encode(held[QUERY].to_pylist(), batch_size=64, normalize_embeddings=True)
        place = {item: number for number, item in enumerate(corpus[ITEM_ID].to_pylist())}
        self.targets = np.array([place[item] for item in held[ITEM_ID].to_pylist()])
        self.query_days = np.array([first_day(span).toordinal() for span in held["span"].to_pylist()])
        days = [first_day(span).toordinal() for span in rows["span"].to_pylist()]
        first_seen: dict[str, int] = {}
        for item, day in zip(rows[ITEM_ID].to_pylist(), days, strict=True):
            first_seen[item] = min(day, first_seen.get(item, day))
        self.item_days = np.array([first_seen[item] for item in corpus[ITEM_ID].to_pylist()])

    def recall(self, last_day: int | None = None) -> float:
        """Recall@10 over the holdout rows up to a day (all: None), among the titles seen up to then."""
        last = self.query_days.max() if last_day is None else last_day
        rows, items = self.query_days <= last, self.item_days <= last
        scores = np.where(items[None, :], self.queries[rows] @ self.corpus.T, -np.inf)
        own = scores[np.arange(len(scores)), self.targets[rows]]
        return float(((scores >= own[:, None]).sum(axis=1) <= 10).mean())

    def recall_up_to(self, span: str) -> float:
        """Recall@10 as the run over `span` measures it."""
        return self.recall(first_day(span).toordinal())


def line(store: Store, span: str, output: RunOutput, untrained: float) -> str:
    """One row of the table."""
    from tasks.contracts.outcomes import EvaluateOutcome, TrainOutcome
    from tasks.contracts.stages import Stage
    from tasks.runs.results import read_result

    report = output.report
    assert report is not None
    trained = read_result(store, report.run_key, Stage.train)
    evaluated = read_result(store, report.run_key, Stage.evaluate)
    assert trained is not None
    assert evaluated is not None
    assert isinstance(trained.outcome, TrainOutcome)
    assert isinstance(evaluated.outcome, EvaluateOutcome)
    champion = f"{report.champion['recall@10']:.1%}" if report.champion else "-"
    result = (
        f"release {report.release}"
        if report.state == "Released"
        else f"rejected: {' '.join(refusals(report.verdicts))}"
    )
    return (
        f"| {span} | {trained.outcome.rows_trained} | {evaluated.outcome.holdout_rows} | {untrained:.1%} "
        f"| {champion} | {evaluated.outcome.challenger['recall@10']:.1%} | {result} |"
    )


def pretrained_folder() -> Path:
    """The weights that the runs start from."""
    from tasks.preflight.encoder import pretrained_folder as find

    pretrained = load_config(CONFIG_FILE).model.pretrained
    assert pretrained is not None
    return find(pretrained)


if __name__ == "__main__":
    main()
