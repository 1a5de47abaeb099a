"""How often `millrace decide` is right about histories whose true gain is known.

    python -m tests.benchmarks.quality.decisions [--draws 1000] [--prior 5]

Each history has some released trainings with a true gain, and perhaps refused ones that gained nothing. Their forward
scores are drawn row by row: one of both releases alone answers a fifth of the rows rightly, as in the demo, whose
scores over 227 rows have a standard error of 3 points. The interval of each score is the one that evaluate records.
"""

from __future__ import annotations

import argparse
from collections import Counter
from unittest.mock import patch

import numpy as np

from configs.load import load_config
from configs.schema.gates import GateConfig
from tasks.contracts.evaluation import Role
from tasks.laboratory import worth
from tasks.planning.decisions import Finding, Worth
from tasks.quality.comparisons import Measured, compare
from tests.support.measures.results import row_results

DIFFERING = 0.2  # share of the rows that exactly one of both releases answers rightly
ROWS = (227, 1400)
GAINS = (0.0, 1.0, 2.0, 5.0)  # points of a training, refused ones included
SCORES = (2, 4, 8)
REFUSED = 0.25  # share of the trainings
VARYING = 1.0  # points by which gains of trainings differ
COLUMNS = tuple(Finding)

# As tasks/judging/rivals.py measures a release.
SCORE = GateConfig(metric="recall@10", baseline="champion", direction="higher", threshold=0.0, confidence=0.975,
                   severity="warning")  # fmt: skip


def main() -> None:
    """Print the table as Markdown on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--prior", type=float, default=worth.PRIOR, help="points, in place of the stated one")
    arguments = parser.parse_args()
    print("| rows | true gain | trainings | " + " | ".join(f"{scores} scores" for scores in SCORES) + " |")
    print("|---:|---:|---|" + "---:|" * len(SCORES))
    with patch.object(worth, "PRIOR", arguments.prior):
        for rows in ROWS:
            for true in GAINS:
                for refused, varying, called in ((0.0, 0.0, "alike"), (REFUSED, 0.0, "a quarter refused"),
                                                 (0.0, VARYING, "unlike by 1 point")):  # fmt: skip
                    cells = [_cell(findings(rows, true, each, refused, varying, arguments.draws)) for each in SCORES]
                    print(f"| {rows:,} | {true:g} | {called} | {' | '.join(cells)} |", flush=True)


def _cell(found: Counter[Finding]) -> str:
    return " / ".join(f"{100 * found[each] / found.total():.1f}" for each in COLUMNS)


def findings(rows: int, true: float, scores: int, refused: float, varying: float, draws: int) -> Counter[Finding]:
    """Return the answers to histories with the same true gain.

    Args:
        true: points that a training gains, on the mean of released and refused ones.
        varying: standard deviation of the gains of released trainings, in points.
    """
    found: Counter[Finding] = Counter()
    least = load_config().decide.least_points
    for number in range(draws):
        random = np.random.default_rng([rows, int(10 * true), scores, int(100 * refused), int(10 * varying), number])
        gains = true / (1 - refused) + varying * random.standard_normal(scores)
        evidence = [scored(place, each, rows, random) for place, each in enumerate(gains, start=2)]
        lost = int(random.negative_binomial(scores, 1 - refused)) if refused else 0
        found[worth.gain_of_training(evidence, lost, scores, 1, least).finding] += 1
    return found


def scored(release: int, true: float, rows: int, random: np.random.Generator) -> Worth:
    """Return the score of a training of one span that truly gained some points, with the interval of evaluate."""
    where = random.random(rows)
    won = (DIFFERING + true / 100) / 2
    new = np.where(where < won, 1, 11)
    before = np.where((where >= won) & (where < DIFFERING), 1, 11)
    both = where >= DIFFERING
    ranks = {Role.challenger: np.where(both, 1, new), Role.champion: np.where(both, 1, before)}
    results = row_results(ranks)
    metrics = {role: results.metrics(role) for role in ranks}
    (found,) = compare(Measured(metrics, results), SCORE)
    assert found.interval is not None
    return Worth(
        release=release, span=f"2026-{release:02d}", spans=1, rows=rows, points=100 * found.judged,
        low=100 * found.interval.low, high=100 * found.interval.high,
    )  # fmt: skip


if __name__ == "__main__":
    main()
