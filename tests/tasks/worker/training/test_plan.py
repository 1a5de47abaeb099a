"""The batch plan, of all rows and of groups."""

import itertools
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from configs.load import load_config
from tasks.foundation.errors import ConfigError
from tasks.worker.model.packing import pack
from tasks.worker.training import plan as plans_module
from tasks.worker.training.plan import PADDING, BatchPlan, PlanFolder, assign, split_by_worker
from tests.support.models import one_by_one
from tests.support.workspace.jobs import FEATURES, tiny_config


def review_lengths(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Tokens of queries and items as reviews have them: log-normal, cut at 128 and 64."""
    random = np.random.default_rng(seed)
    query, item = (np.exp(random.normal(mean, 0.7, rows)).astype(np.int64) for mean in (3.3, 2.8))
    return query.clip(3, 128), item.clip(3, 64)


def plan_of(
    tokens: np.ndarray, batch_rows: int = 64, epochs: int = 1, seed: int = 1, keys: list | None = None
) -> BatchPlan:
    return BatchPlan(tokens, keys or [], batch_rows, epochs, seed)


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    """Plans of runs with none up to several blocks of batches, with rows that have keys in common."""
    rows, batch_rows = draw(st.integers(0, 400)), draw(st.sampled_from([1, 2, 4, 12]))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    tokens = random.integers(2, draw(st.integers(3, 190)), rows)
    keys = [random.integers(0, draw(st.integers(1, 400)), rows) for _ in range(3)]
    return BatchPlan(tokens, keys, batch_rows, draw(st.integers(1, 3)), draw(st.integers(0, 2**40)))


def batches_of(plan: BatchPlan, epoch: int = 0) -> list[np.ndarray]:
    """The rows of each batch of an epoch, without padding."""
    per_epoch = len(plan) // plan.epochs
    rows = [plan.rows(number) for number in range(epoch * per_epoch, (epoch + 1) * per_epoch)]
    return [each[each != PADDING] for each in rows]


@settings(max_examples=40)
@given(plans(), st.integers(0, 10**6))
def test_a_batch_depends_on_its_number_alone(plan: BatchPlan, number: int):
    assume(len(plan))
    number %= len(plan)
    in_order = [plan.rows(each).tolist() for each in range(number + 1)][-1]
    np.random.seed(99)  # the plan must not look at any random state but its own
    again = BatchPlan(plan.tokens, plan.keys, plan.batch_rows, plan.epochs, plan.seed)
    assert again.rows(number).tolist() == in_order


@settings(max_examples=40)
@given(plans())
def test_every_row_is_planned_exactly_once_per_epoch(plan: BatchPlan):
    rows = len(plan.tokens)
    assert len(plan) == -(-rows // plan.batch_rows) * plan.epochs
    for epoch in range(plan.epochs):
        assert Counter(np.concatenate([[], *batches_of(plan, epoch)]).astype(int).tolist()) == Counter(range(rows))
    for number in range(len(plan)):
        batch = plan.rows(number)
        assert batch.shape == (plan.batch_rows,)
        assert (np.diff((batch == PADDING).astype(int)) >= 0).all(), "padding is at the end"


def test_missing_rows_are_spread_over_the_batches():
    sizes = [len(batch) for batch in batches_of(plan_of(np.full(16 * 10 - 7, 5), batch_rows=16))]
    assert sum(sizes) == 153
    assert min(sizes) == 15, "no batch has far fewer negatives than the others"


def test_epochs_and_seeds_shuffle_differently():
    tokens = np.full(400, 3)
    plan, other = plan_of(tokens, 8, 2, seed=1), plan_of(tokens, 8, 1, seed=2)
    taken = (batches_of(plan, 0), batches_of(plan, 1), batches_of(other))
    found = [{frozenset(batch.tolist()) for batch in batches} for batches in taken]
    assert len(found[0] & found[1]) + len(found[0] & found[2]) < 5


REVIEWS = np.stack(review_lengths(64 * 200)).sum(axis=0)


@pytest.mark.parametrize(
    ("tokens", "apart"),
    [
        (REVIEWS, 0.02),
        (np.where(np.arange(64 * 200) % 10, 10, 180), 0.1),  # one row more of the long ones, which don't divide evenly
        (np.full(64 * 200, 50), 0.0),
    ],
    ids=["reviews", "few long ones", "all alike"],
)
def test_batches_hold_about_the_same_number_of_tokens(tokens: np.ndarray, apart: float):
    sums = [int(tokens[batch].sum()) for batch in batches_of(plan_of(tokens))]
    assert max(sums) - min(sums) <= apart * np.mean(sums)


def test_packed_batches_of_reviews_are_real_tokens_by_95_percent():
    query, item = review_lengths(64 * 200)
    batches = batches_of(plan_of(query + item))
    needed = [pack(np.concatenate([query[batch], item[batch]]), 128).sequences for batch in batches]
    real = sum(int((query + item)[batch].sum()) for batch in batches)
    assert real / (128 * max(needed) * len(needed)) > 0.95, "every batch has as many sequences as the largest needs"


def returning(plan: BatchPlan) -> float:
    """Of the pairs of rows that share a batch in one epoch, the share that share one in the next, by chance's share."""
    together = []
    for epoch in range(2):
        batch_of = np.empty(len(plan.tokens), dtype=np.int64)
        for number, batch in enumerate(batches_of(plan, epoch)):
            batch_of[batch] = number
        together.append(batch_of)
    pairs = [(one, other) for batch in batches_of(plan) for place, one in enumerate(batch) for other in batch[:place]]
    first, second = np.array(pairs).T
    again = (together[1][first] == together[1][second]).mean()
    return float(again / ((plan.batch_rows - 1) / (len(plan.tokens) - 1)))


def test_companions_return_in_the_next_epoch_about_as_often_as_by_chance():
    assert returning(plan_of(REVIEWS[: 64 * 150], epochs=2)) == pytest.approx(1.0, abs=0.2)


def test_rows_of_like_length_are_no_more_often_together_than_by_chance():
    within = np.mean([REVIEWS[batch].std() for batch in batches_of(plan_of(REVIEWS))])
    assert within > 0.95 * REVIEWS.std(), "sorting by length would leave next to nothing"


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_rows_with_a_key_in_common_share_no_batch_where_that_can_be_had(kind: int):
    random = np.random.default_rng(kind)
    tokens = np.stack(review_lengths(16 * 100)).sum(axis=0)
    keys = [np.arange(len(tokens)) for _ in range(3)]
    keys[kind] = random.integers(0, 300, len(tokens))  # each about five times
    for batch in batches_of(plan_of(tokens, 16, keys=keys)):
        assert len(set(keys[kind][batch].tolist())) == len(batch)


def test_keys_of_several_kinds_are_kept_apart_at_once():
    random = np.random.default_rng(3)
    tokens = np.stack(review_lengths(16 * 100)).sum(axis=0)
    keys = [random.integers(0, 600, len(tokens)) for _ in range(3)]
    for batch in batches_of(plan_of(tokens, 16, keys=keys)):
        assert all(len(set(key[batch].tolist())) == len(batch) for key in keys)


def pairs_with_a_key(counts: np.ndarray) -> int:
    """Pairs of rows that meet, of rows that stand `counts` in each batch."""
    return int((counts * (counts - 1) // 2).sum())


@pytest.mark.parametrize("exponent", [0.8, 1.0])
def test_rows_of_heavy_keys_are_spread_as_evenly_as_possible(exponent: float):
    """Zipf keys: the heaviest have more rows than there are batches, and some must meet."""
    tokens = np.stack(review_lengths(32 * 60)).sum(axis=0)
    weights = 1 / np.arange(1, 1001) ** exponent
    key = np.random.default_rng(5).choice(1000, len(tokens), p=weights / weights.sum())
    found = batches_of(plan_of(tokens, 32, keys=[key]))
    met = sum(pairs_with_a_key(np.bincount(key[batch])) for batch in found)
    even = np.arange(60)[:, None] < np.bincount(key) % 60
    least = pairs_with_a_key(np.bincount(key) // 60 + even)
    assert least <= met <= 1.02 * least


def test_the_order_of_the_rows_says_nothing_about_their_batch():
    """Rows of a log come by time, and heavy keys are dealt apart: batches must still hold rows of all times."""
    tokens = np.stack(review_lengths(64 * 128)).sum(axis=0)
    key = np.random.default_rng(5).zipf(1.5, len(tokens))
    plan = plan_of(tokens, keys=[key])
    rows = np.concatenate(batches_of(plan))
    place = np.arange(len(rows))
    assert abs(np.corrcoef(place, rows)[0, 1]) < 4 / np.sqrt(len(rows))
    assert abs(np.corrcoef(place[1:], np.diff(rows))[0, 1]) < 4 / np.sqrt(len(rows))
    means = np.array([batch.mean() for batch in batches_of(plan)])
    assert means.std() == pytest.approx(len(rows) / np.sqrt(12 * 64), rel=0.25), "as of random draws"


@settings(max_examples=100)
@given(st.integers(1, 5), st.integers(0, 2**32))
def test_a_stratum_has_the_fewest_meetings_and_then_the_most_wishes(rows: int, seed: int):
    random = np.random.default_rng(seed)
    meetings, wish = random.integers(0, 3, (rows, rows)), random.permutation(rows)

    def worth(batches: Sequence[int]) -> tuple[int, int]:
        return sum(meetings[place, batch] for place, batch in enumerate(batches)), -sum(wish == batches)

    found = assign(meetings, wish).tolist()
    assert sorted(found) == list(range(rows))
    assert worth(found) == min(map(worth, itertools.permutations(range(rows))))


@settings(max_examples=40)
@given(plans(), st.sampled_from([1, 2, 4]))
def test_rows_are_dealt_and_shared_out_as_if_each_was_looked_at(plan: BatchPlan, world: int):
    rows = [plan.rows(number) for number in range(len(plan))]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plans_module, "deal", one_by_one.deal)
        again = replace(plan)
        assert [again.rows(number).tolist() for number in range(len(plan))] == [each.tolist() for each in rows]
    for each in rows if plan.batch_rows % world == 0 else []:
        expected = one_by_one.split_by_worker(each, plan.tokens, world)
        assert split_by_worker(each, plan.tokens, world).tolist() == expected.tolist()


@pytest.mark.parametrize("groups", [None, np.arange(16 * 500) % 3])
def test_workers_of_a_machine_read_one_plan_and_make_each_block_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, groups: np.ndarray | None
):
    """Workers run beside each other, and one continues in the middle of an epoch."""
    tokens = np.stack(review_lengths(16 * 500)).sum(axis=0)
    alone = replace(plan_of(tokens, 16, epochs=2, keys=[tokens % 97]), groups=groups)
    expected = [alone.rows(number).tolist() for number in range(len(alone))]
    made: list[tuple[int, int]] = []
    shuffled: list[int] = []
    make, shuffle = BatchPlan._make_block, BatchPlan._shuffle
    monkeypatch.setattr(BatchPlan, "_make_block", lambda plan, *block: (made.append(block), make(plan, *block))[1])
    monkeypatch.setattr(BatchPlan, "_shuffle", lambda plan, epoch: (shuffled.append(epoch), shuffle(plan, epoch))[1])

    def read(worker: int) -> list[list[int]]:
        plan = replace(alone, folder=PlanFolder(tmp_path, worker, 3))
        return [plan.rows(number).tolist() for number in range(100 if worker == 1 else 0, len(plan))]

    with ThreadPoolExecutor(3) as workers:
        found = list(workers.map(read, range(3)))
    assert found == [expected, expected[100:], expected]
    assert sorted(made) == [(epoch, block) for epoch in range(2) for block in range(8)]
    assert sorted(shuffled) == [0, 1]


@settings(max_examples=40)
@given(plans(), st.sampled_from([1, 2, 4]))
def test_workers_share_a_batch_equally(plan: BatchPlan, world: int):
    for number in range(len(plan)):
        rows = plan.rows(number)
        if len(rows) % world:
            continue
        parts = split_by_worker(rows, plan.tokens, world)
        assert parts.shape == (world, len(rows) // world)
        assert Counter(parts.reshape(-1).tolist()) == Counter(rows.tolist())


def test_workers_get_about_as_many_tokens():
    plan = plan_of(REVIEWS, batch_rows=128)
    for number in range(20):
        sums = plan.tokens[split_by_worker(plan.rows(number), plan.tokens, 4)].sum(axis=1)
        assert max(sums) - min(sums) < 0.02 * np.mean(sums)


ROWS, BATCH = 1003, 16
RANDOM = np.random.default_rng(4)
GROUPS = RANDOM.choice([1, 2, 3, 9], ROWS, p=[0.6, 0.3, 0.09, 0.01])
KEY, TOKENS = RANDOM.integers(0, 300, ROWS), RANDOM.integers(4, 60, ROWS)


def plan() -> BatchPlan:
    return BatchPlan(TOKENS, [KEY], BATCH, 2, 7, GROUPS)


def epochs(made: BatchPlan) -> list[list[np.ndarray]]:
    batches = [made.rows(number) for number in range(len(made))]
    real = [rows[rows != PADDING] for rows in batches]
    return [real[: len(real) // 2], real[len(real) // 2 :]]


def test_every_row_is_in_an_epoch_once_and_as_many_batches_as_possible_have_one_group():
    most = sum(count // BATCH for count in np.unique(GROUPS, return_counts=True)[1].tolist())
    for batches in epochs(plan()):
        assert sorted(np.concatenate(batches).tolist()) == list(range(ROWS))
        assert sum(len(set(GROUPS[rows].tolist())) == 1 for rows in batches) >= most


def test_groups_come_in_random_order_and_epochs_differ():
    first, second = epochs(plan())
    order = [int(GROUPS[rows][0]) for rows in first]
    assert sorted(order) != order
    alike = {frozenset(rows.tolist()) for rows in first} & {frozenset(rows.tolist()) for rows in second}
    assert not alike


def test_rows_with_one_key_are_kept_apart_within_a_group():
    for batches in epochs(plan()):
        large = [rows for rows in batches if set(GROUPS[rows].tolist()) in ({1}, {2})]  # with others to exchange with
        assert sum(len(rows) - len(set(KEY[rows].tolist())) for rows in large) <= 2, "at random, more than twenty"


def test_a_column_that_is_no_categorical_feature_is_refused():
    assert tiny_config(*FEATURES, "train.batch_by=locale").train.batch_by == "locale"
    with pytest.raises(ConfigError, match=r"batch_by brand .*gift\)"):
        tiny_config(*FEATURES, "train.batch_by=brand")
    assert load_config().train.batch_by is None
