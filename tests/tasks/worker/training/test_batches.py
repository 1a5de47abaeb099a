import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.schema.config import Config
from tasks.foundation.errors import ConfigError
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.packing import pack, segments_of
from tasks.worker.model.tokens import TokenLists
from tasks.worker.process.job import Rank
from tasks.worker.training import batches
from tasks.worker.training.batches import Batch, Batches, BatchShape, choose_shape, make_batch, make_plan
from tasks.worker.training.known_pairs import KnownPositives, Positives
from tasks.worker.training.pair_arrays import Pairs
from tasks.worker.training.plan import PADDING, split_by_worker
from tests.support.workspace.jobs import tiny_config

ALONE = Rank(0, 1, 0)


def make_pairs(
    rows: int,
    keys: list[int] | None = None,
    seed: int = 0,
    texts_of: list[int] | None = None,
    queries: list[int] | None = None,
    pair: list[float] | None = None,
    longest: int = 8,
) -> Pairs:
    """Rows with texts of 2 to `longest` tokens, all of them about different items unless said otherwise."""
    random = np.random.default_rng(seed)
    item_key, text_key, query_key = (
        np.array(range(rows) if each is None else each) for each in (keys, texts_of, queries)
    )
    belongs = np.array(pair, dtype=np.float32) if pair else (random.random(rows) < 0.7).astype(np.float32)
    right = belongs > 0

    def texts() -> TokenLists:
        offsets = np.concatenate([[0], np.cumsum(random.integers(2, longest + 1, rows))])
        return TokenLists(random.integers(5, 50, offsets[-1]).astype(np.int32), offsets, 0)

    def features() -> FeatureArrays:
        return FeatureArrays(random.normal(size=(rows, 2)).astype(np.float32), random.integers(0, 3, (rows, 1)))

    query, item = texts(), texts()
    return Pairs(
        query=query,
        item=item,
        query_features=features(),
        item_features=features(),
        tokens=query.lengths + item.lengths,
        item_key=item_key,
        text_key=text_key,
        query_key=query_key,
        known=KnownPositives(*(Positives.of(query_key[right], key[right]) for key in (item_key, text_key))),
        pair=belongs,
        label_class=random.integers(-1, 2, rows),
        class_weight=random.uniform(1, 2, 2).astype(np.float32),
        labels=random.choice([0.0, 1.0, 2.0, np.nan], (rows, 2)).astype(np.float32),
        balance={"multiclass": np.array([0.5, 2.0, 3.0], dtype=np.float32), "regression": np.zeros(0, np.float32)},
        weight=random.integers(1, 5, rows).astype(np.float32),
        mean_weight=2.0,
        entity=np.zeros(rows, dtype=np.int32),
        own_rows=rows,
    )


def order_of(pairs: Pairs, rows: np.ndarray, world: int = 1) -> np.ndarray:
    """The rows as the workers have them, (world, rows / world)."""
    return split_by_worker(rows, pairs.query.lengths + pairs.item.lengths, world)


def batch_of(pairs: Pairs, rows: np.ndarray, rank: Rank = ALONE, sequences: int | None = None) -> Batch:
    """A batch of given rows, with room for all their texts unless `sequences` are given."""
    part = len(rows) // rank.world
    shape = BatchShape(part, sequences or part, 16)
    return make_batch(pairs, rows, pairs.query.lengths + pairs.item.lengths, shape, rank)


def texts_of(batch: Batch) -> list[list[int]]:
    """The ids of each text of a batch, read where the batch says that it stands; padding has none."""
    sequences, tokens = batch.texts.ids.shape
    numbers = torch.arange(sequences)[:, None] * segments_of(tokens) + batch.texts.segments
    numbers[batch.texts.segments < 0] = -1
    return [batch.texts.ids[numbers == place].tolist() for place in batch.texts.place.tolist()]


def text(tokens: TokenLists, row: int) -> list[int]:
    return tokens.ids[tokens.offsets[row] : tokens.offsets[row + 1]].tolist()


def test_a_row_counts_its_weight_over_the_mean_for_pairs_classes_and_labels():
    rows = np.array([3, 8, 0, 11, PADDING, PADDING])
    pairs = make_pairs(12)
    batch = batch_of(pairs, rows)
    for place, row in enumerate(order_of(pairs, rows)[0].tolist()):
        weight = pairs.weight[row] / 2 if row != PADDING else 0.0
        known = ~np.isnan(pairs.labels[row])
        balanced = [pairs.balance["multiclass"][int(pairs.labels[row, 0])] if known[0] else 0.0, 1.0]
        label = pairs.label_class[row]
        assert batch.pair[place] == weight * pairs.pair[row]
        assert batch.label_weight[place] == (weight * pairs.class_weight[label] if label >= 0 else 0)
        assert batch.head_weight[place].tolist() == [weight * balanced[head] * known[head] for head in (0, 1)]
    real = rows[rows >= 0]
    assert batch.known_in_all.tolist() == (~np.isnan(pairs.labels[real])).sum(axis=0).tolist()
    assert batch.pairs_in_all == pairs.pair[real].sum(), "of which the weights are 1 in the mean of the run"
    assert batch.labels.isfinite().all()


def test_a_batch_has_the_queries_and_then_the_items_of_its_rows():
    pairs, rows = make_pairs(12), np.array([3, 8, 0, 11])
    batch, [order] = batch_of(pairs, rows), order_of(pairs, rows)
    assert texts_of(batch) == [text(side, row) for side in (pairs.query, pairs.item) for row in order]
    sides = (pairs.query_features, pairs.item_features)
    assert (batch.texts.numeric.numpy() == np.concatenate([side.numeric[order] for side in sides])).all()
    assert (batch.texts.categorical.numpy() == np.concatenate([side.categorical[order] for side in sides])).all()


def described(pairs: Pairs, rows: np.ndarray, world: int) -> dict[int, tuple[Any, ...]]:
    """What each row has in the parts of all workers: its texts, class and weight, its own item, what is excluded."""
    found: dict[int, tuple[Any, ...]] = {}
    order = order_of(pairs, rows, world)
    whole = order.reshape(-1)
    for index in range(world):
        batch = batch_of(pairs, rows, Rank(index, world, index))
        assert batch.texts.ids.shape == (len(rows) // world, 16)
        texts = texts_of(batch)
        for place, row in enumerate(order[index].tolist()):
            excluded = frozenset(whole[batch.excluded[place].numpy()].tolist())
            own = (texts[place], texts[place + len(order[index])]) if row != PADDING else ()
            totals = (float(batch.pairs_in_all), float(batch.labels_in_all), *batch.known_in_all.tolist())
            labels = (*batch.labels[place].tolist(), *batch.head_weight[place].tolist())
            item = int(whole[batch.position[place]])
            counts = (batch.label_class[place].item(), batch.pair[place].item(), labels)
            found[row] = (own, counts, item, excluded, totals)
    return found


@settings(max_examples=40)
@given(st.sampled_from([2, 4]), st.integers(1, 16), st.integers(0, 99), st.integers(1, 5))
def test_the_parts_of_all_workers_are_the_batch_of_one(world: int, real: int, seed: int, items: int):
    keys, texts, queries = np.random.default_rng(seed).integers(0, items, (3, 20)).tolist()
    pairs = make_pairs(20, keys, seed, texts, queries)
    rows = np.full(16, PADDING)
    rows[:real] = np.random.default_rng(seed).permutation(20)[:real]
    alone = described(pairs, rows, 1)
    assert set(alone) == set(rows.tolist())
    assert described(pairs, rows, world) == alone


@pytest.mark.parametrize("world", [1, 2, 4])
def test_a_run_that_goes_on_with_any_number_of_workers_takes_the_same_batches_in_the_same_order(world: int):
    pairs, config = make_pairs(80), tiny_config()
    plan, shape = make_plan(config, 0, pairs), BatchShape(16 // world, 16 // world, 32)
    ranks = [Rank(index, world, index) for index in range(world)]
    found = (Batches(pairs, plan, shape, rank, range(2, len(plan))) for rank in ranks)
    for number, parts in enumerate(zip(*found, strict=True), start=2):
        queries = [text for batch in parts for text in texts_of(batch)[: 16 // world]]
        assert sorted(queries) == sorted(text(pairs.query, row) for row in plan.rows(number).tolist())


def excluded(pairs: Pairs) -> set[tuple[int, int]]:
    """The rows whose items are no negatives of other rows' queries, in a batch of all rows."""
    found = described(pairs, np.arange(len(pairs)), 1)
    return {(row, other) for row, (*_, others, _) in found.items() for other in others}


def test_a_repeated_item_is_no_negative_of_itself():
    assert excluded(make_pairs(4, keys=[7, 8, 7, 9])) == {(0, 2), (2, 0)}


def test_the_same_text_under_another_id_is_no_negative():
    assert excluded(make_pairs(4, texts_of=[5, 6, 5, 7])) == {(0, 2), (2, 0)}


def test_other_positives_of_a_query_are_no_negatives_of_it():
    # rows 0 and 1 have one query; row 2 is about the item of row 1
    pairs = make_pairs(4, keys=[0, 1, 1, 3], queries=[0, 0, 1, 2], pair=[1.0] * 4)
    assert excluded(pairs) == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 1)}


def test_a_positive_under_another_id_is_known_by_its_text():
    pairs = make_pairs(4, texts_of=[0, 1, 1, 3], queries=[0, 0, 1, 2], pair=[1.0] * 4)
    assert excluded(pairs) == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 1)}


def test_an_item_that_does_not_belong_to_the_query_stays_a_negative():
    assert excluded(make_pairs(3, queries=[0, 0, 0], pair=[1.0, 1.0, 0.0])) == {(0, 1), (1, 0), (2, 0), (2, 1)}


def test_padding_counts_for_nothing_and_is_no_negative():
    pairs = make_pairs(3)
    # the padding's row number, -1, must not pick up the last row's class, pair or features
    pairs.pair[:], pairs.label_class[:], pairs.weight[:] = 1.0, 1, 2.0
    batch = batch_of(pairs, np.array([2, 0, PADDING, PADDING]))
    assert batch.pair.tolist() == [1, 1, 0, 0]
    assert batch.label_class.tolist() == [1, 1, -1, -1]
    assert (float(batch.pairs_in_all), float(batch.labels_in_all)) == (2.0, 2.0)
    assert batch.excluded[:2, 2:].all()
    real = pairs.query.lengths[[0, 2]].sum() + pairs.item.lengths[[0, 2]].sum()
    assert (batch.texts.segments >= 0).sum() == real
    padding = [2, 3, 6, 7]
    assert not batch.texts.numeric[padding].any()
    assert not batch.texts.categorical[padding].any()


@pytest.mark.parametrize("world", [1, 2])
def test_a_row_is_never_excluded_from_its_own_softmax(world: int):
    pairs = make_pairs(4, keys=[1, 1, 1, 1])
    for index in range(world):
        batch = batch_of(pairs, np.array([0, 1, 2, PADDING]), Rank(index, world, index))
        assert not batch.excluded[torch.arange(len(batch.position)), batch.position].any()


def test_all_of_a_batch_moves_to_a_device():
    batch = batch_of(make_pairs(4), np.arange(4)).to(torch.device("meta"))
    assert batch.excluded.device.type == batch.texts.ids.device.type == batch.labels_in_all.device.type == "meta"


# --- the shape of all batches, and what becomes of texts that find no room ---------------------------------------


def shape_of(pairs: Pairs, *overrides: str, world: int = 1) -> BatchShape:
    return choose_shape(tiny_config(*overrides), 0, pairs, world)


def take(pairs: Pairs, config: Config, shape: BatchShape, rank: Rank = ALONE) -> tuple[Batches, list[Batch]]:
    """All batches of a run, and what they counted."""
    plan = make_plan(config, 0, pairs)
    made = Batches(pairs, plan, shape, rank, range(len(plan)))
    return made, list(made)


@pytest.mark.parametrize("world", [1, 2])
def test_without_a_number_every_text_of_the_first_rows_has_room(world: int):
    pairs, config = make_pairs(500, longest=16), tiny_config()
    shape = choose_shape(config, 0, pairs, world)
    real = 0
    for index in range(world):
        counted, made = take(pairs, config, shape, Rank(index, world, index))
        assert {tuple(batch.texts.ids.shape) for batch in made} == {(shape.sequences, 32)}
        assert counted.cut_tokens == 0
        assert counted.computed_tokens == len(made) * shape.sequences * 32
        real += counted.real_tokens
    assert real == pairs.query.lengths.sum() + pairs.item.lengths.sum()


@pytest.mark.parametrize(("sampled", "own"), [(200, 300), (1000, 200)], ids=["many rows", "others are replayed"])
def test_warmup_finds_the_shape_of_training_by_the_first_rows(monkeypatch: pytest.MonkeyPatch, sampled: int, own: int):
    monkeypatch.setattr(batches, "SAMPLED_ROWS", sampled)
    pairs = dataclasses.replace(make_pairs(300, longest=16), own_rows=own)
    query, item = (TokenLists(side.ids, side.offsets[:201], 0) for side in (pairs.query, pairs.item))
    first = dataclasses.replace(make_pairs(200), query=query, item=item, tokens=pairs.tokens[:200])
    assert shape_of(first) == shape_of(pairs)


def test_the_sequences_of_a_large_batch_are_one_of_few_numbers():
    pairs = make_pairs(1200, longest=16)
    needed = pack(np.concatenate([pairs.query.lengths, pairs.item.lengths]), 32).sequences
    sequences = shape_of(pairs, "train.batch_rows=1200").sequences
    assert needed <= sequences <= needed * 65 / 64
    assert sequences % 8 == 0, "spans whose texts are about as long share compiled graphs"


def test_given_sequences_are_shared_by_the_workers():
    pairs = make_pairs(100, longest=16)
    assert shape_of(pairs, "train.sequences=40", world=2) == BatchShape(8, 20, 32)


def test_far_too_few_sequences_are_refused_with_enough():
    pairs = make_pairs(400, longest=16)
    needed = shape_of(pairs).sequences
    with pytest.raises(ConfigError, match=rf"train\.sequences 4: .*{needed},"):
        shape_of(pairs, "train.sequences=4")
    assert shape_of(pairs, f"train.sequences={needed}").sequences == needed


def test_a_text_without_room_loses_its_last_tokens_and_is_counted():
    pairs = make_pairs(8)
    total = int(pairs.query.lengths.sum() + pairs.item.lengths.sum())
    config = tiny_config("train.batch_rows=8")
    counted, [batch] = take(pairs, config, BatchShape(8, 2, 32))
    assert counted.real_tokens == 64 < total
    assert counted.cut_tokens == total - 64
    assert counted.computed_tokens == 64
    assert (batch.texts.segments >= 0).all()


def test_two_runs_shuffle_differently():
    pairs, config = make_pairs(80), tiny_config()
    plans = [make_plan(config, first_step, pairs) for first_step in (0, 8, 0)]
    orders = [[plan.rows(number).tolist() for number in range(len(plan))] for plan in plans]
    assert orders[0] == orders[2] != orders[1]
