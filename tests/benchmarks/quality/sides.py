"""How often `millrace bakeoff` and `parity` are right about two sides whose true difference is known.

    python -m tests.benchmarks.quality.sides [--rows 236,2000,20000] [--draws 200]

Nine of ten searches find their item. The sides differ in 2 % of the answers, other ones with each seed, and are equally
often right but for the true difference. A cell has the percentages that are called equal, different, not decided.
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from tasks.contracts.evaluation import Role
from tasks.laboratory.bakeoff_sides import bounds_over_seeds
from tasks.laboratory.equivalence import MARGIN, Finding, equivalence
from tests.support.measures.results import row_results

MARGINS = (0, 1, 3, 20)  # true differences
SEEDS = (1, 3)
RECALL = 0.9
DIFFERING = 0.02  # share of the answers that exactly one side has right


def main() -> None:
    """Print the table as Markdown on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="236,2000,20000")
    parser.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    print("| rows | seeds | " + " | ".join(f"{each * MARGIN:.1%}".replace("%", " %") for each in MARGINS) + " |")
    print("|---:|---:|" + "---:|" * len(MARGINS))
    for rows in map(int, arguments.rows.split(",")):
        for seeds in SEEDS:
            cells = (_cell(findings(rows, margins, seeds, arguments.draws)) for margins in MARGINS)
            print(f"| {rows:,} | {seeds} | {' | '.join(cells)} |", flush=True)


def _cell(found: Counter[Finding]) -> str:
    return " / ".join(f"{100 * found[each] / found.total():.1f}" for each in Finding)


def findings(rows: int, margins: float, seeds: int, draws: int) -> Counter[Finding]:
    """Return the answers about pairs of sides; the other is worse by so many margins."""
    found: Counter[Finding] = Counter()
    lost = margins * MARGIN * RECALL
    for number in range(draws):
        random = np.random.default_rng([rows, int(10 * margins), seeds, number])
        where = random.random((seeds, rows))
        only_first, only_other = (DIFFERING + lost) / 2, (DIFFERING - lost) / 2
        both = random.random((seeds, rows)) < (RECALL - only_first) / (1 - DIFFERING)
        first = np.where(where < DIFFERING, where < only_first, both)
        other = np.where(where < DIFFERING, (where >= only_first) & (where < only_first + only_other), both)
        ranks = {
            role: np.where(each, 1, 11).ravel() for role, each in ((Role.champion, first), (Role.challenger, other))
        }
        answers = row_results(ranks, group=np.tile(np.arange(rows), seeds).tolist())
        a, b = (side.mean(axis=1).tolist() for side in (first, other))
        over_seeds = bounds_over_seeds([after - before for before, after in zip(a, b, strict=True)])
        found[equivalence("recall@10", a, b, answers, over_seeds).finding] += 1
    return found


if __name__ == "__main__":
    main()
