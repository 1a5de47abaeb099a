from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.schema.training import Ladder, Shape
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import TokenLists
from tasks.worker.process.job import Rank
from tasks.worker.training.batches import PADDING, Batch, PlannedBatch, make_batch, plan_batches
from tasks.worker.training.pair_arrays import Pairs, Positives

LADDER = Ladder(query=(4, 8, 12), item=(4, 6))
SHORT, MIDDLE = Shape(query=4, item=4), Shape(query=8, item=6)
ALONE = Rank(0, 1, 0)


@st.composite
def plans(draw: st.DrawFn) -> dict[str, object]:
    """Arguments of plan_batches, in every mixture of lengths that the ladder can meet."""
    rows = draw(st.integers(0, 60))
    lengths = st.lists(st.integers(2, 15), min_size=rows, max_size=rows)
    return {
        "query_lengths": np.array(draw(lengths), dtype=np.int64),
        "item_lengths": np.array(draw(lengths), dtype=np.int64),
        "ladder": Ladder(query=LADDER.query[: draw(st.integers(1, 3))], item=LADDER.item[: draw(st.integers(1, 2))]),
        "batch_rows": draw(st.sampled_from([2, 4, 8, 12])),
        "epochs": draw(st.integers(1, 3)),
        "seed": draw(st.integers(0, 2**40)),
    }


def make_pairs(
    rows: int,
    keys: list[int] | None = None,
    seed: int = 0,
    texts_of: list[int] | None = None,
    queries: list[int] | None = None,
    pair: list[float] | None = None,
) -> Pairs:
    random = np.random.default_rng(seed)
    item_key, text_key, query_key = (
        np.array(range(rows) if each is None else each) for each in (keys, texts_of, queries)
    )
    belongs = np.array(pair, dtype=np.float32) if pair else (random.random(rows) < 0.7).astype(np.float32)

    def texts() -> TokenLists:
        offsets = np.concatenate([[0], np.cumsum(random.integers(2, 9, rows))])
        return TokenLists(random.integers(5, 50, offsets[-1]).astype(np.int32), offsets, 0)

    def features() -> FeatureArrays:
        return FeatureArrays(random.normal(size=(rows, 2)).astype(np.float32), random.integers(0, 3, (rows, 1)))

    return Pairs(
        query=texts(),
        item=texts(),
        query_features=features(),
        item_features=features(),
        item_key=item_key,
        text_key=text_key,
        query_key=query_key,
        positives=(Positives.of(query_key, item_key, belongs), Positives.of(query_key, text_key, belongs)),
        pair=belongs,
        label_class=random.integers(-1, 2, rows),
    )


@settings(deadline=None)
@given(plans())
def test_the_plan_is_a_pure_function(arguments: dict):
    first = plan_batches(**arguments)
    np.random.seed(99)  # the plan must not look at any random state but its own
    second = plan_batches(**arguments)
    assert [(one.shape, one.rows.tolist()) for one in first] == [(one.shape, one.rows.tolist()) for one in second]


@settings(deadline=None)
@given(plans())
def test_every_row_is_planned_exactly_once_per_epoch(arguments: dict):
    rows, epochs = len(arguments["query_lengths"]), arguments["epochs"]
    plan = plan_batches(**arguments)
    per_epoch = -(-rows // arguments["batch_rows"])
    assert len(plan) == per_epoch * epochs
    for epoch in range(epochs):
        batches = plan[epoch * per_epoch : (epoch + 1) * per_epoch]
        seen = Counter(int(row) for batch in batches for row in batch.rows if row != PADDING)
        assert seen == Counter(range(rows))


@settings(deadline=None)
@given(plans())
def test_every_batch_has_the_smallest_shape_that_holds_its_rows(arguments: dict):
    ladder = arguments["ladder"]
    for batch in plan_batches(**arguments):
        assert batch.shape in ladder.shapes
        real = batch.rows[batch.rows != PADDING]
        for side in ("query", "item"):
            longest, rungs = arguments[f"{side}_lengths"][real].max(), getattr(ladder, side)
            fitting = [rung for rung in rungs if rung >= longest] or [rungs[-1]]  # the last rung cuts
            assert getattr(batch.shape, side) == fitting[0], "the smallest that fits all rows"


@settings(deadline=None)
@given(plans())
def test_at_most_one_batch_of_an_epoch_is_padded(arguments: dict):
    rows, size = len(arguments["query_lengths"]), arguments["batch_rows"]
    plan = plan_batches(**arguments)
    for epoch in range(arguments["epochs"]):
        per_epoch = len(plan) // arguments["epochs"]
        batches = plan[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert all(len(batch.rows) == size for batch in batches)
        missing = [int((batch.rows == PADDING).sum()) for batch in batches]
        assert [count for count in missing if count] == ([-rows % size] if rows % size else [])


def test_epochs_and_seeds_shuffle_differently():
    lengths = np.full(40, 3)
    plan = plan_batches(lengths, lengths, LADDER, 8, 2, seed=1)
    other = plan_batches(lengths, lengths, LADDER, 8, 2, seed=2)
    orders = [np.concatenate([batch.rows for batch in part]).tolist() for part in (plan[:5], plan[5:], other[:5])]
    assert len({tuple(order) for order in orders}) == 3


def test_short_and_long_batches_are_mixed():
    lengths = np.array([3] * 64 + [8] * 64)
    plan = plan_batches(lengths, lengths.clip(max=6), LADDER, 8, 1, seed=1)
    sizes = [batch.shape.query for batch in plan]
    assert sorted(sizes) != sizes
    assert Counter(sizes) == {4: 8, 8: 8}


def test_rows_of_similar_length_are_batched_together():
    random = np.random.default_rng(0)
    queries, items = random.integers(2, 13, 400), random.integers(2, 7, 400)
    sorted_plan = plan_batches(queries, items, LADDER, 8, 1, seed=1)
    tokens = sum(batch.shape.query + batch.shape.item for batch in sorted_plan)
    fewest = sum(rung_of(length, LADDER.query) for length in queries) + sum(
        rung_of(length, LADDER.item) for length in items
    )
    assert 8 * tokens < 1.1 * fewest, "a plan of rows in any order takes a third more"


def rung_of(length: int, rungs: tuple[int, ...]) -> int:
    return next(rung for rung in rungs if rung >= length)


def test_epochs_group_rows_differently():
    random = np.random.default_rng(0)
    queries, items = random.integers(2, 13, 400), random.integers(2, 7, 400)
    plan = plan_batches(queries, items, LADDER, 8, 2, seed=1)
    groups = [{frozenset(batch.rows.tolist()) for batch in half} for half in (plan[:50], plan[50:])]
    assert len(groups[0] & groups[1]) < 5


def joined(parts: list[Batch]) -> dict[str, torch.Tensor]:
    """The parts of several workers as one batch."""
    whole = {}
    for name in ("label_class", "pair", "excluded", "position"):
        whole[name] = torch.cat([getattr(part, name) for part in parts])
    for side in ("query", "item"):
        for name in ("ids", "numeric", "categorical"):
            whole[f"{side}.{name}"] = torch.cat([getattr(getattr(part, side), name) for part in parts])
    return whole


@settings(deadline=None, max_examples=40)
@given(st.sampled_from([1, 2, 4]), st.integers(1, 16), st.integers(0, 99), st.integers(1, 5))
def test_the_parts_of_all_workers_are_the_batch_of_one(world: int, real: int, seed: int, items: int):
    keys, texts, queries = np.random.default_rng(seed).integers(0, items, (3, 20)).tolist()
    pairs = make_pairs(20, keys, seed, texts, queries)
    rows = np.full(16, PADDING)
    rows[:real] = np.random.default_rng(seed).permutation(20)[:real]
    planned = PlannedBatch(MIDDLE, rows)
    alone = make_batch(pairs, planned, ALONE)
    parts = [make_batch(pairs, planned, Rank(index, world, index)) for index in range(world)]
    whole, together = joined([alone]), joined(parts)
    assert all(torch.equal(whole[name], together[name]) for name in whole)
    for part in parts:
        assert part.query.ids.shape == (16 // world, 8)
        assert part.item.ids.shape == (16 // world, 6)
        assert torch.equal(part.pairs_in_all, alone.pairs_in_all)
        assert torch.equal(part.labels_in_all, alone.labels_in_all)


def test_a_repeated_item_is_no_negative_of_itself():
    batch = make_batch(make_pairs(4, keys=[7, 8, 7, 9]), PlannedBatch(SHORT, np.arange(4)), ALONE)
    expected = torch.zeros(4, 4, dtype=torch.bool)
    expected[0, 2] = expected[2, 0] = True
    assert torch.equal(batch.excluded, expected)


def excluded(pairs: Pairs) -> set[tuple[int, int]]:
    """The rows whose items are no negatives of other rows' queries, in a batch of all rows."""
    batch = make_batch(pairs, PlannedBatch(SHORT, np.arange(len(pairs))), ALONE)
    return {(query, item) for query, item in zip(*np.nonzero(batch.excluded.numpy()), strict=True)}


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


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_positives_are_those_of_all_rows_and_not_only_of_the_batch(queries: int, items: int, seed: int):
    random = np.random.default_rng(seed)
    query, key = random.integers(0, queries, 30), random.integers(0, items, 30)
    pair = (random.random(30) < 0.6).astype(np.float32)
    known = {(one, other) for one, other, belongs in zip(query, key, pair, strict=True) if belongs}
    alone = {one for one in range(queries) if len({other for each, other in known if each == one}) < 2}
    batch = random.permutation(30)[:8]
    found = Positives.of(query, key, pair).among(query[batch], key[batch])
    expected = [[(one, other) in known and one not in alone for other in key[batch]] for one in query[batch]]
    assert found.tolist() == expected


def test_padding_counts_for_nothing_and_is_no_negative():
    pairs = make_pairs(3)
    # the padding's row number, -1, must not pick up the last row's class, pair or features
    pairs.pair[:], pairs.label_class[:] = 1.0, 1
    batch = make_batch(pairs, PlannedBatch(MIDDLE, np.array([2, 0, PADDING, PADDING])), ALONE)
    assert batch.pair.tolist() == [1, 1, 0, 0]
    assert batch.label_class.tolist() == [1, 1, -1, -1]
    assert (float(batch.pairs_in_all), float(batch.labels_in_all)) == (2.0, 2.0)
    assert batch.excluded[:2, 2:].all()
    assert not batch.query.ids[2:].any()
    assert not batch.item.numeric[2:].any()
    assert not batch.item.categorical[2:].any()


@pytest.mark.parametrize("world", [1, 2])
def test_a_row_is_never_excluded_from_its_own_softmax(world: int):
    pairs = make_pairs(4, keys=[1, 1, 1, 1])
    planned = PlannedBatch(SHORT, np.array([0, 1, 2, PADDING]))
    for index in range(world):
        batch = make_batch(pairs, planned, Rank(index, world, index))
        assert not batch.excluded[torch.arange(len(batch.position)), batch.position].any()


def test_all_of_a_batch_moves_to_a_device():
    batch = make_batch(make_pairs(4), PlannedBatch(SHORT, np.arange(4)), ALONE).to(torch.device("meta"))
    assert batch.excluded.device.type == batch.query.ids.device.type == batch.labels_in_all.device.type == "meta"
