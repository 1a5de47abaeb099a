"""How often a verdict is true, at any size of a catalogue and whichever of two models is the challenger.

    python -m tests.benchmarks.quality.verdicts [--items 20000,200000,1000000] [--draws 200]

Two invented models differ by noise in their vectors of items, as much as gives them a share of equal neighbours. Their
vectors lie in a workspace as two releases have them, and are ranked by the code of evaluate. A search of all items at
once, made here, is the truth. Samples of the queries are judged by the first gate of base.yaml; the two models' answers
to a query change places by a coin, which is fair for equal models and biased for a loss.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.gates import GateConfig
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.evaluation import Role
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.references import CatalogueRef, CheckpointRef, ModelRef
from tasks.data.rows import CONTENT, ITEM_ID, TEXT, VECTOR, VECTORS_KIND, part_name
from tasks.quality.comparisons import Measured
from tasks.quality.row_results import RowResults
from tasks.quality.verdicts import judge
from tasks.worker.catalogue.reuse import EarlierVectors
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.evaluation.measure import EQUAL, ModelVectors, WholeRanks, rank_in_whole
from tasks.worker.model.relevant import RelevantTexts, hash_texts
from tasks.worker.process.job import Job, Rank
from tests.benchmarks.quality import errors
from tests.benchmarks.quality import gates as real_models
from tests.benchmarks.quality.gates import Answered, drawn
from tests.support.workspace.jobs import make_job, tiny_config

WIDTH = 32
QUERIES = 4000  # that there are; their true difference is known
SEEN = 2000  # by a judgement
PARTITION_ITEMS = 32_768
RECALL = 0.8  # of the first model alone, about
OVERLAPS = (0.6, 0.75, 0.85, 0.95)  # shares of the ten nearest that both models have
EQUAL_MODELS, THREE_POINTS_LESS = 0.0, -0.03
TOP = 10


class Models(NamedTuple):
    """Unit vectors of two models, float32: `items` (items, WIDTH) and `queries` (QUERIES, WIDTH) each; `own` int64."""

    items: tuple[np.ndarray, np.ndarray]
    queries: tuple[np.ndarray, np.ndarray]
    own: np.ndarray


def main() -> None:
    """Print both tables as Markdown on standard output; that of errors takes about ten minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", default="20000,200000,1000000")
    parser.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    real_models.SEEDS = arguments.draws
    print("| items | overlap | ranks unlike the truth | seconds | challenger | pass | undecided | fail |")
    print("|---:|---:|---:|---:|---|---:|---:|---:|")
    for items in map(int, arguments.items.split(",")):
        for overlap in OVERLAPS:
            for line in lines(items, overlap, arguments.draws):
                print(line, flush=True)
    for line in errors.table():
        print(line, flush=True)


def lines(items: int, overlap: float, draws: int) -> Iterator[str]:
    """Yield a row of the table for equal models, and for one that is worse, in both roles."""
    models = invented(items, overlap)
    with tempfile.TemporaryDirectory(prefix="millrace-verdicts-") as folder:
        store = DirectoryStore(Path(folder))
        for number, vectors in enumerate(models.items):
            release(store, f"m{number}", vectors)
        began = time.monotonic()
        found = ranked(store, models, items, (0, 1))
        seconds = time.monotonic() - began
        exchanged = ranked(store, models, items, (1, 0))
    duel, mirrored = found.shared["m1"], exchanged.shared["m0"]
    assert (duel.challenger == mirrored.other).all(), "exchanging the models exchanges their ranks"
    assert (duel.other == mirrored.challenger).all()
    true = [true_ranks(models, model) for model in (0, 1)]
    unlike = int((duel.challenger != true[0]).sum() + (duel.other != true[1]).sum())
    for name, difference in (("equal", EQUAL_MODELS), ("3 points worse", THREE_POINTS_LESS)):
        both = answered(duel.other, duel.challenger, models.own)
        if abs(difference) > both.differing:
            continue
        plain, turned = judged(both, difference, draws)
        start = f"| {items:,} | {neighbours(models):.2f} | {unlike} of {2 * QUERIES:,} | {seconds:.1f} |"
        cells = (real_models.rate(plain[each]) for each in ("pass", "undecided", "fail"))
        yield f"{start} {name} | {' | '.join(cells)} |"
        if difference:
            cells = (real_models.rate(turned[each]) for each in ("pass", "undecided", "fail"))
            yield f"{start} 3 points better, roles exchanged | {' | '.join(cells)} |"


def invented(items: int, overlap: float) -> Models:
    """Return two models of a catalogue, with noise that gives the overlap, and queries that find about RECALL."""
    random = np.random.default_rng([items, int(overlap * 100)])
    base = unit(random.standard_normal((items, WIDTH), dtype=np.float32))
    own = random.integers(items, size=QUERIES)
    asked = random.standard_normal((QUERIES, WIDTH), dtype=np.float32)
    noise = [random.standard_normal((items, WIDTH), dtype=np.float32) for _ in range(2)]

    def at(query_noise: float, model_noise: float) -> Models:
        queries = unit(base[own] + query_noise * asked)
        sides = tuple(unit(base + model_noise * each) for each in noise)
        return Models((sides[0], sides[1]), (queries, queries), own)

    model_noise = bisected(lambda value: neighbours(at(0.05, value)), overlap, 0.0, 0.5)
    query_noise = bisected(lambda value: recall(at(value, model_noise)), RECALL, 0.0, 0.6)
    return at(query_noise, model_noise)


def bisected(falling: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Return about where a falling function has the wanted value."""
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > wanted else (low, middle)
    return (low + high) / 2


def unit(vectors: np.ndarray) -> np.ndarray:
    """Return rows of unit length."""
    found: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return found


def neighbours(models: Models) -> float:
    """Return the share of the ten nearest items of some queries that both models have."""
    some = slice(0, 100)
    nearest = [
        np.argpartition(-(queries[some] @ items.T), TOP, axis=1)[:, :TOP]
        for queries, items in zip(models.queries, models.items, strict=True)
    ]
    return float(np.mean([len(set(one) & set(two)) / TOP for one, two in zip(*nearest, strict=True)]))


def recall(models: Models) -> float:
    """Return the first model's recall@10 over some queries."""
    return float((true_ranks(models, 0, 200) <= TOP).mean())


def true_ranks(models: Models, model: int, most: int = QUERIES) -> np.ndarray:
    """Return the rank of each query's own item among all items, int64 (queries,), by one product for some queries."""
    items, queries, own = models.items[model], models.queries[model][:most], models.own[:most]
    limits = np.einsum("qw,qw->q", queries, items[own])
    step = max(1, 2**26 // len(items))
    found = [
        (queries[at : at + step] @ items.T >= limits[at : at + step, None] - EQUAL).sum(axis=1)
        for at in range(0, len(queries), step)
    ]
    return np.concatenate(found)


def release(store: DirectoryStore, version: str, vectors: np.ndarray) -> None:
    """Write vectors as a release has them; every item's text is its id."""
    partitions = -(-len(vectors) // PARTITION_ITEMS)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(partitions):
            rows = range(number, len(vectors), partitions)
            ids = pa.array([f"item {row}" for row in rows])
            flat = pa.array(vectors[number::partitions].reshape(-1))
            columns = {ITEM_ID: ids, TEXT: ids, VECTOR: pa.FixedSizeListArray.from_arrays(flat, WIDTH), CONTENT: ids}
            pq.write_table(pa.table(columns), Path(folder) / part_name(number))
        catalogue = CatalogueRef(prefix="", items=len(vectors), partitions=partitions, sha256="").model_dump()
        facts = {"model_version": version, "width": WIDTH, "max_tokens": 1, "type": "fp32", "catalogue": catalogue}
        commit(store, f"vectors/{version}/k", Path(folder), VECTORS_KIND, facts)


def ranked(store: DirectoryStore, models: Models, items: int, order: tuple[int, int]) -> WholeRanks:
    """Return the ranks of evaluate, by two releases; the first of the order is the challenger."""
    catalogue = CatalogueRef(prefix="", items=items, partitions=-(-items // PARTITION_ITEMS), sha256="")
    sides = [
        ModelVectors(
            models.queries[model],
            models.items[model][models.own],
            EarlierVectors(store, f"vectors/m{model}/k", f"m{model}"),
        )
        for model in order
    ]
    own = hash_texts([f"item {row}" for row in models.own])
    right = RelevantTexts.of(np.arange(QUERIES), own, (np.zeros(0, np.int64), np.zeros(0, np.uint64)))
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator, patch("tasks.worker.evaluation.measure.report"):
        job = bench_job(store, catalogue)
        return rank_in_whole(job, accelerator, sides[0], {f"m{order[1]}": sides[1]}, catalogue.partitions, right)


def bench_job(store: DirectoryStore, catalogue: CatalogueRef) -> Job:
    """Return a job of evaluate over a catalogue, whose models are given as vectors."""
    model = ModelRef(version="", checkpoint=CheckpointRef(prefix="", step=0, sha256=""))
    inputs = EvaluateInputs(rows=(), catalogue=catalogue, challenger=model, champion=None)
    return make_job(store, tiny_config(), inputs)


def answered(champion: np.ndarray, challenger: np.ndarray, items: np.ndarray) -> Answered:
    """Return two models' ranks of single queries."""
    gains = (challenger <= TOP).astype(np.int64) - (champion <= TOP)
    return Answered(champion, challenger, items, list(np.arange(len(gains))[:, None]), gains)


def judged(both: Answered, true: float, draws: int) -> tuple[Counter[str | None], Counter[str | None]]:
    """Return how often the first gate of base.yaml gave each answer, and how often with the roles exchanged."""
    gate = errors.first_gate()
    found, exchanged = Counter[str | None](), Counter[str | None]()
    for seed in range(draws):
        rows = drawn(both, true, SEEN, seed)
        ranks = rows.ranks
        turned = dataclasses.replace(
            rows, ranks={Role.challenger: ranks[Role.champion], Role.champion: ranks[Role.challenger]}
        )
        one, other = answer(rows, gate), answer(turned, gate)
        assert one[1] == -other[1], "the difference changes its sign alone"
        found[one[0]] += 1
        exchanged[other[0]] += 1
    return found, exchanged


def answer(rows: RowResults, gate: GateConfig) -> tuple[str | None, float]:
    """Return a gate's answer, and the difference that it judged."""
    (verdict,) = judge(Measured({role: rows.metrics(role) for role in rows.roles}, rows), [gate])
    return verdict.answer, verdict.difference or 0.0


if __name__ == "__main__":
    main()
