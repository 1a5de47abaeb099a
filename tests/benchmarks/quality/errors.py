"""How often a gate's answer is wrong where the truth is known: few rows, head items, rows of users.

    python -m tests.benchmarks.quality.errors

Both errors are stated to be at most 5 %. Each cell has a thousand samples, so 6.5 % is told from 5 %. A sample is
judged by the first gate of base.yaml, with the metric and the threshold of the cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from configs.load import load_config
from configs.schema.gates import GateConfig
from tasks.contracts.evaluation import Role
from tasks.quality.comparisons import Measured
from tasks.quality.row_results import RowResults
from tasks.quality.verdicts import judge
from tests.support.measures.results import row_results

ROWS = (20, 40, 60, 100, 200, 500, 2000)
SAMPLES = 1000
THRESHOLD = -0.005
EFFECT = 0.08  # standard deviation of an item's own difference, in hits
MISS = 99


class Truth(NamedTuple):
    """Two models whose true difference is known, and the gate that judges samples of their rows."""

    name: str
    metric: str
    threshold: float
    draw: Callable[[np.random.Generator, int], RowResults]


def main() -> None:
    """Print the table as Markdown on standard output."""
    for line in table():
        print(line, flush=True)


def table() -> Iterator[str]:
    """Yield the lines of the table: each cell has the share that passed and the share that failed, in percent."""
    yield f"\n| truth | metric | threshold | {' | '.join(f'{rows:,}' for rows in ROWS)} |"
    yield f"|---|---|---:|{'---:|' * len(ROWS)}"
    for truth in truths():
        cells = (rates(truth, rows) for rows in ROWS)
        shown = (f"{100 * found['pass']:.1f} / {100 * found['fail']:.1f}" for found in cells)
        yield f"| {truth.name} | {truth.metric} | {truth.threshold:g} | {' | '.join(shown)} |"


def truths() -> Iterator[Truth]:
    """Yield the rows of the table."""
    for differ in (0.03, 0.07):
        equal, limit, worse = (independent(differ, true) for true in (0.0, THRESHOLD, -0.03))
        yield Truth(f"equal, {differ:.0%} differ", "recall@10", 0.0, equal)
        yield Truth(f"at the threshold, {differ:.0%} differ", "recall@10", THRESHOLD, limit)
        yield Truth(f"3 points worse, {differ:.0%} differ", "recall@10", THRESHOLD, worse)
        yield Truth(f"equal, {differ:.0%} differ", "recall@10", THRESHOLD, equal)
    yield Truth("at the threshold, 0.5 % differ", "recall@10", THRESHOLD, independent(-THRESHOLD, THRESHOLD))
    for metric in ("recall@10", "mrr@10", "ndcg@10"):
        for power in (0.0, 0.8, 1.0):
            called = f"Zipf {power:g}" if power else "uniform"
            yield Truth(f"equal, items {called}", metric, 0.0, of_items(power))
    for rows in (10, 20):
        yield Truth(f"equal, users of {rows} rows", "recall@10", 0.0, of_users(rows))


def rates(truth: Truth, rows: int, samples: int = SAMPLES) -> dict[str, float]:
    """Return the shares of the samples that passed and that failed."""
    gate = first_gate().model_copy(update={"metric": truth.metric, "threshold": truth.threshold})
    found = Counter(
        answer(truth.draw(np.random.default_rng([rows, seed]), rows), gate) for seed in range(samples)
    )  # fmt: skip
    return {each: found[each] / samples for each in ("pass", "fail")}


def first_gate() -> GateConfig:
    """Return the first gate of base.yaml, over all queries as one part."""
    return load_config().evaluate.gates[0].model_copy(update={"queries": "all"})


def answer(rows: RowResults, gate: GateConfig) -> str | None:
    """Return a gate's answer."""
    (verdict,) = judge(Measured({role: rows.metrics(role) for role in rows.roles}, rows), [gate])
    return verdict.answer


def independent(differ: float, true: float) -> Callable[[np.random.Generator, int], RowResults]:
    """Draw rows of different queries and items, of which a share differs.

    Args:
        true: the difference in recall@10, challenger less champion.
    """
    won, lost = (differ + true) / 2, (differ - true) / 2

    @cache
    def rows_of(rows: int, more: int, less: int) -> RowResults:
        challenger, champion = np.ones((2, rows), dtype=np.int64)
        champion[:more], challenger[more : more + less] = MISS, MISS
        return row_results({Role.challenger: challenger, Role.champion: champion})

    def draw(random: np.random.Generator, rows: int) -> RowResults:
        more, less, _ = random.multinomial(rows, [won, lost, 1 - won - lost])
        return rows_of(rows, int(more), int(less))

    return draw


def of_items(power: float) -> Callable[[np.random.Generator, int], RowResults]:
    """Draw rows of different queries about as many items as there are rows, the commonest ones by Zipf's law.

    Each item is found better by one of two equal models. A row differs only where the models do.
    """

    def draw(random: np.random.Generator, rows: int) -> RowResults:
        shares = 1 / np.arange(1, rows + 1) ** power
        item = random.choice(rows, size=rows, p=shares / shares.sum())
        found = np.clip(0.85 + 0.1 * random.standard_normal(rows), 0.05, 0.99)
        effect = EFFECT * random.standard_normal(rows)
        hard = random.random(rows)
        ranks = [rank(np.clip(found + sign * effect, 0.0, 1.0)[item], hard) for sign in (1, -1)]
        return row_results({Role.challenger: ranks[0], Role.champion: ranks[1]}, item=item)

    return draw


def rank(found: np.ndarray, hard: np.ndarray) -> np.ndarray:
    """Return ranks, 1 to 10 for queries easier than the item is found: lower, the easier; else MISS."""
    return np.where(hard < found, 1 + np.floor(10 * hard / np.maximum(found, 1e-9)).astype(np.int64), MISS)


def of_users(rows_of_each: int) -> Callable[[np.random.Generator, int], RowResults]:
    """Draw users with so many rows each; as many find more by one model as by the other."""

    def draw(random: np.random.Generator, rows: int) -> RowResults:
        shape = (rows // rows_of_each, rows_of_each)
        liked = np.clip(0.5 + 0.3 * random.standard_normal((shape[0], 1)), 0.02, 0.98)
        taste = 0.2 * random.standard_normal((shape[0], 1))
        hits = [random.random(shape) < np.clip(liked + sign * taste, 0, 1) for sign in (1, -1)]
        ranks = [np.where(each.reshape(-1), 1, MISS) for each in hits]
        group = np.repeat(np.arange(shape[0]), rows_of_each)
        return row_results({Role.challenger: ranks[0], Role.champion: ranks[1]}, group=group.tolist())

    return draw


if __name__ == "__main__":
    main()
