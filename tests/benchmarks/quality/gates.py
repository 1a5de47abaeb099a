"""How often the first gate of base.yaml is right about real models: their answers to real reviews, judged many times.

    python -m tests.benchmarks.quality.gates path/to/reviews.jsonl.gz

Each model is MiniLM as it is with a layer over its vectors, trained on a fifth of the reviews; it answers all others.
These stand for all queries that there are, so the true difference of two models is known; a judgement sees some of
them, drawn at random. Where the true difference is to be another, the two models' answers to a query change places by
a coin: it is fair for models that are equal, and biased for a loss of one point.

MiniLM's vectors, which take minutes, stay in workspace/gates for a second call.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.stats
import torch

from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Role
from tasks.contracts.references import HoldoutRule
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.holdout import held_out
from tasks.data.ingest import ingest
from tasks.data.rows import ITEM, ITEM_ID, QUERY, distinct_items
from tasks.quality.comparisons import Measured
from tasks.quality.row_results import RowResults
from tasks.quality.verdicts import judge
from tests.benchmarks import reviews
from tests.benchmarks.quality.errors import first_gate
from tests.support.measures.results import row_results

FILE = Path("workspace/gates/vectors.npz")
MAX_TOKENS = 32  # of a text: the models need not be good, but real
HELD_OUT = 0.8
BATCH_PAIRS, SCALE, LEARNING_RATE = 64, 20.0, 1e-3
TOP = 10
SEEDS = 200
QUERIES = (20, 100, 500, 2000)  # that a judgement sees
EQUAL, ONE_POINT_LESS = 0.0, -0.01
CONFIDENCE = 0.95  # of the rates' intervals


class Vectors(NamedTuple):
    """Reviews and the titles to find for them, as MiniLM sees them."""

    queries: np.ndarray  # float32 (rows, 384)
    items: np.ndarray  # float32 (titles, 384)
    own: np.ndarray  # int64 (rows,): the place of the review's own title
    query: np.ndarray  # int64 (rows,): equal for reviews with the same text
    held: np.ndarray  # bool (rows,): answered, and not trained on
    newest: np.ndarray  # bool (rows,): of the newest quarter


class Answered(NamedTuple):
    """The rows that two models answered."""

    champion: np.ndarray  # int64 (rows,): ranks, from 1
    challenger: np.ndarray
    items: np.ndarray  # int64 (rows,)
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
    """Encode what is not encoded yet, train, judge, and print the table as Markdown on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="reviews as JSON lines, plain or gzip")
    found = vectors(parser.parse_args().source)
    before = ~found.held & ~found.newest
    champion = trained(found, before, epochs=4, seed=17)
    ranks = ranks_of(found, champion)
    challengers = {
        "another seed": trained(found, before, epochs=4, seed=18),
        "a quarter later": trained(found, ~found.held & found.newest, epochs=4, seed=17, parent=champion),
        "a quarter of the steps": trained(found, before, epochs=1, seed=17),
        "untrained": trained(found, before, epochs=0, seed=17),
    }
    recall = (ranks <= TOP).mean()
    print(f"{found.held.sum():,} reviews among {len(found.items):,} titles; the champion's recall@10 is {recall:.1%}\n")
    print("| challenger | answered differently | true difference | queries | pass | undecided | fail |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, layer in challengers.items():
        both = pair_of(found, ranks, ranks_of(found, layer))
        for true in (EQUAL, ONE_POINT_LESS, None):
            if abs(true or 0.0) < both.differing:
                for queries in QUERIES:
                    print(line(name, both, true, queries), flush=True)


def vectors(source: Path) -> Vectors:
    """Return the vectors in FILE; if there is none, of the source's rows that have both texts."""
    if FILE.exists():
        with np.load(FILE) as kept:
            return Vectors(**kept)
    from sentence_transformers import SentenceTransformer

    with tempfile.TemporaryDirectory(prefix="millrace-gates-") as folder:
        store = DirectoryStore(Path(folder))
        ingest(store, source, Format.jsonl, "timestamp", SpanKind.quarter, reviews.COLUMNS)
        rows = reviews.read_spans(store)
    corpus = distinct_items(rows)
    place = {item: at for at, item in enumerate(corpus[ITEM_ID].to_pylist())}
    model = SentenceTransformer(str(reviews.pretrained_folder()), device="cpu")
    model.max_seq_length = MAX_TOKENS
    found = Vectors(
        queries=np.asarray(model.encode(rows[QUERY].to_pylist(), batch_size=64, normalize_embeddings=True)),
        items=np.asarray(model.encode(corpus[ITEM].to_pylist(), batch_size=64, normalize_embeddings=True)),
        own=np.array([place[item] for item in rows[ITEM_ID].to_pylist()]),
        query=np.unique(rows[QUERY].to_numpy(zero_copy_only=False).astype(str), return_inverse=True)[1],
        held=held_out(rows, HoldoutRule(group="query_and_item", share=HELD_OUT, measured=HELD_OUT)),
        newest=rows["span"].to_numpy(zero_copy_only=False) == max(rows["span"].to_pylist()),
    )
    FILE.parent.mkdir(parents=True, exist_ok=True)
    unfinished = FILE.with_suffix(".unfinished.npz")
    np.savez(unfinished, **found._asdict())
    unfinished.replace(FILE)
    return found


def trained(
    found: Vectors, rows: np.ndarray, epochs: int, seed: int, parent: torch.Tensor | None = None
) -> torch.Tensor:
    """Return a layer, float32 (384, 384), trained on some rows with the in-batch loss of the contrastive head.

    Args:
        rows: bool (rows,), those to train on.
        parent: the layer to start from; None: one that changes nothing.
    """
    random = np.random.default_rng(seed)
    layer = (torch.eye(found.items.shape[1]) if parent is None else parent.clone()).requires_grad_()
    optimizer = torch.optim.AdamW([layer], lr=LEARNING_RATE)
    for _ in range(epochs):
        order = random.permutation(np.flatnonzero(rows))
        for batch in np.array_split(order, max(1, len(order) // BATCH_PAIRS)):
            query, item = (
                torch.nn.functional.normalize(torch.from_numpy(side) @ layer)
                for side in (found.queries[batch], found.items[found.own[batch]])
            )
            loss = torch.nn.functional.cross_entropy(query @ item.T * SCALE, torch.arange(len(batch)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return layer.detach()


def ranks_of(found: Vectors, layer: torch.Tensor) -> np.ndarray:
    """Return the rank of each held row's own title among all titles, int64 (held rows,), from 1."""
    query, item = (
        torch.nn.functional.normalize(torch.from_numpy(side) @ layer)
        for side in (found.queries[found.held], found.items)
    )
    scores = query @ item.T
    own = scores[torch.arange(len(scores)), torch.from_numpy(found.own[found.held])]
    return (scores > own[:, None]).sum(dim=1).numpy() + 1


def pair_of(found: Vectors, champion: np.ndarray, challenger: np.ndarray) -> Answered:
    """Return the ranks of two models with what they give for each query."""
    _, query = np.unique(found.query[found.held], return_inverse=True)
    rows_of = np.split(np.argsort(query, kind="stable"), np.cumsum(np.bincount(query))[:-1])
    gains = (challenger <= TOP).astype(np.int64) - (champion <= TOP)
    return Answered(
        champion, challenger, found.own[found.held], rows_of, np.array([gains[rows].sum() for rows in rows_of])
    )


def line(name: str, both: Answered, true: float | None, queries: int) -> str:
    """Return one row of the table: the answers of the gate to SEEDS samples of so many queries."""
    gate, found = first_gate(), Counter[str | None]()
    for seed in range(SEEDS):
        rows = drawn(both, true, queries, seed)
        measured = Measured({role: rows.metrics(role) for role in rows.roles}, rows)
        found[judge(measured, [gate])[0].answer] += 1
    difference = f"{both.difference * 100:+.1f}, as it is" if true is None else f"{true * 100:+.0f}"
    cells = (rate(found[each]) for each in ("pass", "undecided", "fail"))
    return f"| {name} | {both.differing:.1%} | {difference} | {queries:,} | {' | '.join(cells)} |"


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
    ranks = {Role.challenger: challenger, Role.champion: champion}
    return row_results(ranks, group=query.tolist(), item=both.items[rows])


def rate(count: int) -> str:
    """Return a share of SEEDS with its exact interval (Clopper and Pearson), in percent."""
    low, high = scipy.stats.binomtest(count, SEEDS).proportion_ci(CONFIDENCE, "exact")
    return f"{count / SEEDS * 100:.1f} ({low * 100:.1f} to {high * 100:.1f})"


if __name__ == "__main__":
    main()
