"""Over whole runs no pair that is known to be right is ever a negative; every negative of every batch is looked at.

The scene: each query has five right items, in two spans, some of them held out; items have twins of the same text,
some are renamed to the text of another one, and the golden set has right items that no row has.
"""

import io
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import read_manifest
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import MinedRelease, RowsRef
from tasks.data.rows import normal_text
from tasks.worker import train
from tasks.worker.process.job import Rank
from tasks.worker.training import batches
from tasks.worker.training.batches import Batch, BatchShape
from tasks.worker.training.pair_arrays import HardNegatives, Pairs
from tasks.worker.training.plan import split_by_worker
from tasks.worker.training.row_keys import id_keys, text_keys
from tasks.worker.training.training_rows import TrainingRows
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import (
    CLASSIFIER,
    change_rows,
    infer_vectors,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
)

QUERIES, ITEMS, RIGHT = 24, 60, 5
PLAIN = (CLASSIFIER, "heads.contrastive.positives_only=true", "heads.contrastive.symmetric=true", "train.epochs=2")
ALL = (
    *PLAIN,
    "heads.contrastive.negatives={per_query: 4, max_share: 1.0}",
    "train.replay=0.4",
    "train.gradcache_chunks=2",
)


class Scene(NamedTuple):
    """A workspace with two spans and a golden set, and the release of a model that was trained on the first."""

    store: DirectoryStore
    first: RowsRef
    second: RowsRef
    golden: str
    release: MinedRelease

    @property
    def inputs(self) -> TrainInputs:
        parent = self.release.model.checkpoint
        return TrainInputs(
            rows=(self.second,), history=(self.first,), parent=parent, mined=self.release, golden=self.golden
        )


def item_text(item: int, span: int) -> str:
    """Three in ten items have the text of the one before; in the second span a tenth has that of the one after."""
    if item % 10 in (2, 5, 8):
        item -= 1
    if span and item % 10 == 3:
        item += 1
    return f"thing {item} of the shop"


def spans() -> list[list[tuple[str, str, str, float]]]:
    """Query, item, item id and label of the rows of each span; a label of 1 says that they are no pair."""
    random = np.random.default_rng(9)
    rows: list[list[tuple[str, str, str, float]]] = [[], []]
    for query in range(QUERIES):
        right = random.permutation(ITEMS)[:RIGHT]
        for span, some in enumerate((right[:3], right[1:])):
            for item in some.tolist():
                asked = f"I want number {query}"
                rows[span].append((asked.upper() if span else asked, item_text(item, span), f"i{item}", 5.0))
            for item in random.integers(0, ITEMS, 2).tolist():
                rows[span].append((f"I want number {query}", item_text(item, span), f"i{item}", 1.0))
    return rows


def golden_rows() -> list[tuple[str, str, str]]:
    return [(f"i want NUMBER {query}", item_text(query, 0), f"i{query}") for query in range(QUERIES)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("scene")
    rows = spans()
    store, base = make_workspace(folder, rows=max(map(len, rows)))

    def span(number: int) -> RowsRef:
        def change(table: pa.Table) -> pa.Table:
            table = table.slice(0, len(rows[number]))
            for name, values in zip(
                ("query", "item", "item_id", "label"), zip(*rows[number], strict=True), strict=True
            ):
                table = table.set_column(table.column_names.index(name), name, pa.array(values))
            ids = pa.array([f"{number}-{row}" for row in range(table.num_rows)])
            return table.set_column(table.column_names.index("row_id"), "row_id", ids)

        return change_rows(store, base, f"2026-0{number + 2}", change, folder)

    first, second = span(0), span(1)
    out = io.BytesIO()
    columns = zip(("query", "item", "item_id"), zip(*golden_rows(), strict=True), strict=True)
    pq.write_table(pa.table({"row_id": [f"g{row}" for row in range(QUERIES)], **dict(columns)}), out)
    store.write("golden/k.parquet", out.getvalue())
    config = tiny_config(*PLAIN)
    model = model_of(train_model(store, config, first, run_key="released"))
    vectors = infer_vectors(store, config, first, model).prefix
    release = MinedRelease(
        number=1,
        model=model,
        vectors=vectors,
        vectors_sha256=read_manifest(store, vectors).sha256,
        catalogue=make_catalogue(store, config, first),
    )
    return Scene(store, first, second, "golden/k.parquet", release)


def right_ones(scene: Scene) -> set[tuple[int, int]]:
    """Keys of each query with those of the ids and texts that are right for it, by the rules in words."""
    rows = [(query, text, item, label >= 4) for span in spans() for query, text, item, label in span]
    rows += [(*row, True) for row in golden_rows()]
    answers: dict[str, set[str]] = {}
    texts: dict[str, set[str]] = {}
    for query, text, item, pair in rows:
        texts.setdefault(item, set()).add(normal_text(text))
        if pair:
            answers.setdefault(normal_text(query), set()).add(item)
    found = set()
    for query, items in answers.items():
        named = set.union(*(texts[item] for item in items))
        keys = [*id_keys(pa.chunked_array([sorted(items)])), *text_keys(pa.chunked_array([sorted(named)]))]
        found |= {(int(text_keys(pa.chunked_array([[query]]))[0]), int(key)) for key in keys}
    return found


def negatives_of(
    pairs: Pairs, whole: np.ndarray, tokens: np.ndarray, rank: Rank, mined: HardNegatives | None, batch: Batch
) -> tuple[set[tuple[int, int, int]], int]:
    """Keys of query, id and text of all that are negatives in this worker's part, and how many are mined items."""
    order = split_by_worker(whole, tokens, rank.world)
    rows, whole = order[rank.index], order.reshape(-1)
    item, text = pairs.item_key[whole], pairs.text_key[whole]
    if mined is not None:
        numbers = np.where(whole[:, None] >= 0, mined.of_row[whole], -1).reshape(-1)
        item, text = np.append(item, mined.item_key[numbers]), np.append(text, mined.text_key[numbers])
    wrong = ~batch.excluded.numpy()[:, : len(item)] & (batch.pair.numpy()[:, None] > 0)
    wrong[np.arange(len(rows)), batch.position.numpy()] = False
    row, column = np.nonzero(wrong)
    found = set(zip(pairs.query_key[rows[row]].tolist(), item[column].tolist(), text[column].tolist(), strict=True))
    of_mined = int((column >= len(whole)).sum())
    other = ~batch.excluded_queries.numpy() & (batch.pair.numpy()[:, None] > 0)
    other[np.arange(len(rows)), batch.position.numpy()] = False
    row, column = np.nonzero(other)
    keys = (pairs.query_key[whole[column]], pairs.item_key[rows[row]], pairs.text_key[rows[row]])
    return found | set(zip(*(key.tolist() for key in keys), strict=True)), of_mined


def train_and_record(
    rank: Rank, folder: str, inputs: TrainInputs, settings: tuple[str, ...]
) -> tuple[set[tuple[int, int, int]], int, int]:
    """Train, and return all negatives of this worker's batches, how many were mined items, and the steps."""
    store = DirectoryStore(Path(folder))
    seen: list[tuple[set[tuple[int, int, int]], int]] = []
    make_batch = batches.make_batch

    def noted(pairs: Pairs, whole: np.ndarray, tokens: np.ndarray, shape: BatchShape, *others: Any) -> Batch:
        batch = make_batch(pairs, whole, tokens, shape, *others)
        seen.append(negatives_of(pairs, whole, tokens, rank, others[1], batch))
        return batch

    batches.make_batch = noted
    try:
        config = tiny_config(*settings, f"train.workers={rank.world}")
        outcome = train.run(make_job(store, config, inputs, rank=rank))
    finally:
        batches.make_batch = make_batch
    assert len(seen) == outcome.last_step - outcome.first_step
    return set.union(*(found for found, _ in seen)), sum(mined for _, mined in seen), outcome.rows_replayed


@pytest.mark.parametrize("settings", [PLAIN, ALL], ids=["plain", "mined, replayed, in chunks"])
@pytest.mark.parametrize("world", [1, 2])
def test_no_known_pair_is_ever_a_negative(scene: Scene, tmp_path: Path, world: int, settings: tuple[str, ...]):
    shutil.copytree(scene.store.path(""), tmp_path / "workspace")
    arguments = (str(tmp_path / "workspace"), scene.inputs, settings)
    if world == 1:
        found = [train_and_record(Rank(0, 1, 0), *arguments)]
    else:
        found = run_ranks(world, train_and_record, *arguments)
    negatives = set.union(*(each for each, _, _ in found))
    right = right_ones(scene)
    broken = [each for each in negatives if (each[0], each[1]) in right or (each[0], each[2]) in right]
    assert not broken
    assert len(negatives) > QUERIES * ITEMS / 5
    if settings is ALL:
        assert min(mined for _, mined, _ in found) > 100
        assert found[0][2] > 0, "rows are replayed"


def test_the_scene_has_right_items_that_no_training_row_tells(scene: Scene):
    config = tiny_config(*PLAIN)
    told = set()
    for table in TrainingRows(scene.store, (scene.second,), config):
        pairs = table.filter(pa.array([label >= 4 for label in table["label"].to_pylist()]))
        queries = text_keys(pairs["query"]).tolist()
        for keys in (id_keys(pairs["item_id"]), text_keys(pairs["item"])):
            told |= set(zip(queries, keys.tolist(), strict=True))
    assert len(right_ones(scene) - told) > len(told) / 2
