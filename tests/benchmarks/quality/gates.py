"""How often the first gate of base.yaml is right about real models: their answers to real reviews, drawn many times.

    python -m tests.benchmarks.quality.gates path/to/reviews.jsonl.gz

It trains MiniLM on a fifth of the reviews and asks the trained models about all others. These queries stand for all
queries that there are, so the true difference of two models is known. A judgement sees some of them, drawn at
random. Models come from the pipeline's own stages; what is done stays in workspace/gates, and a second call goes on.
After a change of code, delete it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tasks.measures.row_results import RowResults
from tests.benchmarks.quality.training import DataSet, review_data, train_over

WORKSPACE = Path("workspace/gates")
SPANS = ("2022-Q4", "2023-Q1")  # the first is trained with all before it
# Four fifths of the rows are asked. Texts are cut short: the models need not be good, but real.
SETTINGS = ("evaluate.holdout_share=0.8", "train.max_tokens={query: 32, item: 16}", "train.sequence_tokens=64",
            "infer.max_tokens=32", "infer.sequence_tokens=64")  # fmt: skip
LINEAGES: dict[str, tuple[str, ...]] = {
    "first": ("seed=17",),
    "second": ("seed=18",),
    "short": ("seed=17", "train.epochs=1", "train.learning_rate=1e-5"),
}


def main() -> None:
    """Train what is missing, judge, and print the table as Markdown on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="reviews as JSON lines, plain or gzip")
    asked = parser.parse_args()
    data = review_data(asked.source)
    for name, spans in (("first", 1), ("second", 1), ("short", 1), ("first", 2)):
        answered(data, name, spans)


def answered(data: DataSet, name: str, spans: int) -> RowResults:
    """Return the answers of a lineage after so many spans, trained if it is not there yet."""
    folder = WORKSPACE / name
    folder.mkdir(parents=True, exist_ok=True)
    return train_over(data._replace(spans=SPANS[:spans]), folder, (*SETTINGS, *LINEAGES[name])).results


if __name__ == "__main__":
    main()
