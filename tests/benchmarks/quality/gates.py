"""How often the first gate of base.yaml is right about real models: their answers to real reviews, judged many times.

    python -m tests.benchmarks.quality.gates path/to/reviews.jsonl.gz

MiniLM is trained on a fifth of the reviews, and the models answer all others. These stand for all queries that there
are, so the true difference of two models is known; a judgement sees some of them, drawn at random. Where the true
difference is to be another, the two models' answers to a query change places by a coin: it is fair for models that are
equal, and biased for a loss of one point.

The models come from the pipeline's own stages. They stay in workspace/gates, and a second call goes on from there;
after a change of code, delete it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import scipy.stats

from configs.load import load_config
from tasks.contracts.evaluation import Role
from tasks.gates.comparisons import Measured
from tasks.gates.verdicts import judge
from tasks.measures.row_results import RowResults
from tests.benchmarks.quality.training import DataSet, review_data, train_over
from tests.support.fakes.gates import judge_numbers
from tests.support.measures.row_results import row_results

WORKSPACE = Path("workspace/gates")
SPANS = ("2022-Q4", "2023-Q1")  # the first is trained with all before it
# Four fifths of the rows are asked. Texts are cut short: the models need not be good, but real.
SETTINGS = ("evaluate.holdout_share=0.8", "train.max_tokens={query: 32, item: 16}", "train.sequence_tokens=64",
            "infer.max_tokens=32", "infer.sequence_tokens=64")  # fmt: skip
LINEAGES: dict[str, tuple[str, ...]] = {
    "first": ("seed=17",),
    "other seed": ("seed=18",),
    "short": ("seed=17", "train.epochs=1", "train.learning_rate=1e-5"),
}
TOP = 10
SEEDS = 200
QUERIES = (500, 2000)  # that a judgement sees
EQUAL, ONE_POINT_LESS = 0.0, -0.01
CONFIDENCE = 0.95  # of the rates' intervals


class Answered(NamedTuple):
    """The rows that two models answered, ordered by query: those of one query stand together."""

    champion: np.ndarray  # int32 (rows,): ranks, from 1
    challenger: np.ndarray
    rows_of: list[np.ndarray]  # of each query, the places of its rows
    gains: np.ndarray  # int64 (queries,): by how many of a query's rows the challenger finds more

    @property
    def difference(self) -> float:
        """Of recall@10, challenger less champion, over all rows."""
        return float(self.gains.sum() / len(self.champion))

    @property
    def differing(self) -> float:
        """The largest difference that there is if every query's better answer is one model's."""
        return float(np.abs(self.gains).sum() / len(self.champion))


def main() -> None:
    """Train what is missing, judge, and print the table as Markdown on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="reviews as JSON lines, plain or gzip")
    data = review_data(parser.parse_args().source)
    first, other, short = (answers_of(data, name, SPANS[:1]) for name in LINEAGES)
    later = answers_of(data, "first", SPANS)
    challengers = {
        "another seed": pair_of(first, Role.challenger, other),
        "a quarter later": pair_of(later, Role.champion, later),
        "trained less": pair_of(first, Role.challenger, short),
    }
    print("| challenger | rows | answered differently | true difference | queries | pass | undecided | fail |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, both in challengers.items():
        for true in (EQUAL, ONE_POINT_LESS, None):
            if abs(true or 0.0) < both.differing:
                for queries in QUERIES:
                    print(line(name, both, true, queries), flush=True)


def answers_of(data: DataSet, lineage: str, spans: tuple[str, ...]) -> RowResults:
    """Return the answers of a lineage's models after these spans, which are trained unless they are."""
    folder = WORKSPACE / lineage.replace(" ", "-")
    folder.mkdir(parents=True, exist_ok=True)
    return train_over(data._replace(spans=spans), folder, (*SETTINGS, *LINEAGES[lineage])).results


def pair_of(of_champion: RowResults, champion: Role, of_challenger: RowResults) -> Answered:
    """Return the answers of two models; the second one is the challenger of its evaluation.

    Raises:
        ValueError: they answered other rows.
    """
    orders = [np.argsort(results.row_id) for results in (of_champion, of_challenger)]
    ids = [results.row_id[order] for results, order in zip((of_champion, of_challenger), orders, strict=True)]
    if not np.array_equal(*ids):
        raise ValueError(f"the models answered other rows; delete {WORKSPACE} and start again")
    asked = np.flatnonzero(of_champion.pair[orders[0]])
    before, after = (
        results.ranks[role][order][asked]
        for results, role, order in zip((of_champion, of_challenger), (champion, Role.challenger), orders, strict=True)
    )
    _, query = np.unique(of_champion.query_key[orders[0]][asked], return_inverse=True)
    rows_of = np.split(np.argsort(query, kind="stable"), np.cumsum(np.bincount(query))[:-1])
    gains = (after <= TOP).astype(np.int64) - (before <= TOP)
    return Answered(before, after, rows_of, np.array([gains[rows].sum() for rows in rows_of]))


def line(name: str, both: Answered, true: float | None, queries: int) -> str:
    """Return one row of the table: the answers of the gate to SEEDS samples of so many queries."""
    gate, found = load_config().evaluate.gates[0], Counter[str | None]()
    with patch("tasks.gates.verdicts.judge_numbers", judge_numbers):
        for seed in range(SEEDS):
            rows = drawn(both, true, queries, seed)
            measured = Measured({role: rows.metrics(role) for role in rows.roles}, rows, seed=(seed,))
            found[judge(measured, [gate])[0].answer] += 1
    difference = f"{both.difference * 100:+.1f}, as it is" if true is None else f"{true * 100:+.0f}"
    cells = (rate(found[each]) for each in ("pass", "undecided", "fail"))
    return (
        f"| {name} | {len(both.champion):,} | {both.differing:.1%} | {difference} | {queries:,} | {' | '.join(cells)} |"
    )


def drawn(both: Answered, true: float | None, queries: int, seed: int) -> RowResults:
    """Return the answers to a sample of the queries, with replacement: one that is drawn twice counts as two.

    Args:
        true: the difference in recall@10 over all samples; None: what it is over all rows.
        seed: with the number of queries, of the sample and of the coin.
    """
    random = np.random.default_rng([queries, seed])
    picks = random.integers(len(both.rows_of), size=queries)
    rows = np.concatenate([both.rows_of[pick] for pick in picks])
    query = np.repeat(np.arange(queries), [len(both.rows_of[pick]) for pick in picks])
    champion, challenger = both.champion[rows], both.challenger[rows]
    if true is not None:
        better = random.random(queries) < 0.5 + true / both.differing / 2  # the challenger gets the better answers
        swapped = (better != (both.gains[picks] > 0))[query]
        champion, challenger = np.where(swapped, challenger, champion), np.where(swapped, champion, challenger)
    return row_results({Role.challenger: challenger, Role.champion: champion}, query_key=query.tolist())


def rate(count: int) -> str:
    """Return a share of SEEDS with its exact interval (Clopper and Pearson), in percent."""
    low, high = scipy.stats.binomtest(count, SEEDS).proportion_ci(CONFIDENCE, "exact")
    return f"{count / SEEDS * 100:.1f} ({low * 100:.1f} to {high * 100:.1f})"


if __name__ == "__main__":
    main()
