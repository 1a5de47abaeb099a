"""The contrastive loss with all its options, compared with sums over single pairs by the rules in words."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from configs.schema.training import ContrastiveHead, HeadsConfig
from tasks.worker.devices.accelerators import Accelerator, open_accelerator
from tasks.worker.model.embedding_model import LearntScale, Texts
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import TokenLists
from tasks.worker.process.job import Rank
from tasks.worker.training.batches import BatchShape, make_batch
from tasks.worker.training.known_pairs import KnownPositives, Positives
from tasks.worker.training.losses import batch_losses
from tasks.worker.training.pair_arrays import HardNegatives, Pairs
from tasks.worker.training.plan import PADDING
from tests.support.processes.ranks import run_ranks

ROWS, ITEMS, WIDTH, EXTRA = 24, 30, 6, 3
SHAPE = BatchShape(pairs=12, sequences=20, tokens=16, extra=EXTRA, both_ways=True)
WHOLE = np.array([3, 0, 17, 8, 21, 5, 11, 2, PADDING, 14, 9, PADDING])
HEAD = ContrastiveHead(weight=1.0, scale=4.0, positives_only=False, symmetric=True, temperature="learnt")
HEADS = HeadsConfig(contrastive=HEAD, classification=None)


def popularity_of(key: np.ndarray) -> np.ndarray:
    _, which, counts = np.unique(key, return_inverse=True, return_counts=True)
    return counts[which] * len(counts) / len(key)


def made_up() -> tuple[Pairs, HardNegatives]:
    """Rows that share items, texts and queries; every text is one token, its number."""
    random = np.random.default_rng(11)
    item, text, query = (random.integers(0, many, ROWS) for many in (18, 17, 6))
    belongs = (random.random(ROWS) < 0.8).astype(np.float32)

    def numbered(first: int, count: int) -> TokenLists:
        return TokenLists(np.arange(first, first + count, dtype=np.int32), np.arange(count + 1), 0)

    def none(count: int) -> FeatureArrays:
        return FeatureArrays(np.zeros((count, 0), dtype=np.float32), np.zeros((count, 0), dtype=np.int64))

    pairs = Pairs(
        query=numbered(1, ROWS),
        item=numbered(1 + ROWS, ROWS),
        query_features=none(ROWS),
        item_features=none(ROWS),
        tokens=np.full(ROWS, 2),
        item_key=item,
        text_key=text,
        query_key=query,
        known=KnownPositives(*(Positives.of(query[belongs > 0], key[belongs > 0]) for key in (item, text))),
        pair=belongs,
        label_class=np.full(ROWS, -1),
        class_weight=np.ones(2, dtype=np.float32),
        labels=np.zeros((ROWS, 0), dtype=np.float32),
        balance={},
        weight=np.ones(ROWS, dtype=np.float32),
        mean_weight=1.0,
        entity=np.zeros(ROWS, dtype=np.int32),
        own_rows=ROWS,
        popularity=(np.log(popularity_of(item)).astype(np.float32), np.log(popularity_of(query)).astype(np.float32)),
    )
    negatives = HardNegatives(
        of_row=random.integers(-1, ITEMS, (ROWS, EXTRA)).astype(np.int32),
        tokens=numbered(1 + 2 * ROWS, ITEMS),
        features=none(ITEMS),
        item_key=random.integers(-1, 18, ITEMS),
        text_key=random.integers(-1, 17, ITEMS),
    )
    return pairs, negatives


class Table(torch.nn.Module):
    """In place of a model: the vector of a text is a row of a table."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.rows = torch.nn.Embedding(1 + 2 * ROWS + ITEMS, WIDTH)
        self.scale = LearntScale(HEAD.scale)

    def pool(self, texts: Texts) -> torch.Tensor:
        return texts.ids[:, :4].flatten()  # each text is one token, and a sequence has room for four

    def vectors(self, pooled: torch.Tensor, texts: Texts) -> torch.Tensor:
        first = torch.nn.functional.pad(pooled, (0, 1)).index_select(0, texts.place)
        return torch.nn.functional.normalize(self.rows(first), dim=1)

    def scale_or(self, fixed: float) -> torch.Tensor:
        return self.scale()


def table() -> Any:
    """The made-up model, for functions that want the real one."""
    return Table()


def vector(model: Table, text: int) -> np.ndarray:
    row = model.rows.weight[text].detach().numpy().astype(np.float64)
    return row / np.linalg.norm(row)


def by_the_rules() -> float:
    """The loss of the batch, pair by pair."""
    pairs, negatives = made_up()
    often = [popularity_of(key) for key in (pairs.item_key, pairs.query_key)]
    model = Table()
    rows = [row for row in WHOLE.tolist() if row != PADDING]
    answers = {
        (pairs.query_key[row], kind, key[row])
        for row in range(ROWS)
        if pairs.pair[row]
        for kind, key in (("id", pairs.item_key), ("text", pairs.text_key))
    }

    def right(query: int, item: int) -> bool:
        """Whether the item of a row is an answer to the query of another."""
        same = pairs.item_key[query] == pairs.item_key[item] or pairs.text_key[query] == pairs.text_key[item]
        asked = pairs.query_key[query]
        known = (asked, "id", pairs.item_key[item]) in answers or (asked, "text", pairs.text_key[item]) in answers
        return same or known

    extra = {number for row in rows for number in negatives.of_row[row].tolist() if number >= 0}
    in_batch = [(set(key[rows].tolist()), mined) for key, mined in (
        (pairs.item_key, negatives.item_key), (pairs.text_key, negatives.text_key)
    )]  # fmt: skip
    extra = {number for number in extra if not any(mined[number] in keys for keys, mined in in_batch)}
    answering = [number for number in extra if any(key == negatives.item_key[number] for _, _, key in answers)]
    assert len(extra) > len(answering) > 2
    total, counted = 0.0, [row for row in rows if pairs.pair[row]]
    assert len(counted) < len(rows)
    for row in counted:
        query, item = vector(model, 1 + row), vector(model, 1 + ROWS + row)
        others = [
            (vector(model, 1 + ROWS + other), often[0][other])
            for other in rows
            if other != row and not right(row, other)
        ]
        asked = pairs.query_key[row]
        others += [
            (vector(model, 1 + 2 * ROWS + number), 1.0)
            for number in extra
            if (asked, "id", negatives.item_key[number]) not in answers
            and (asked, "text", negatives.text_key[number]) not in answers
        ]
        queries = [
            (vector(model, 1 + other), often[1][other]) for other in counted if other != row and not right(other, row)
        ]
        own = 4.0 * query @ item
        for one, against in ((query, others), (item, queries)):
            wrong = sum(math.exp(4.0 * one @ other) / times for other, times in against)
            total += math.log(math.exp(own) + wrong) - own
    return float(total / 2 / len(counted))


def part_of(rank: Rank, accelerator: Accelerator) -> tuple[float, dict[str, np.ndarray]]:
    """This worker's loss, and the gradients of all workers."""
    pairs, negatives = made_up()
    model, tokens = table(), pairs.query.lengths + pairs.item.lengths
    shape = dataclasses.replace(SHAPE, pairs=SHAPE.pairs // rank.world)
    batch = make_batch(pairs, WHOLE, tokens, shape, rank, negatives)
    loss = batch_losses(model, batch, HEADS, accelerator)["loss"]
    loss.backward()
    accelerator.reduce_gradients(torch.optim.SGD(model.parameters()))
    return loss.item(), {name: one.grad.numpy() for name, one in model.named_parameters() if one.grad is not None}


def run_rank(rank: Rank) -> tuple[float, dict[str, np.ndarray]]:
    with open_accelerator("cpu", rank) as accelerator:
        return part_of(rank, accelerator)


def test_the_loss_is_that_of_the_rules():
    assert run_rank(Rank(0, 1, 0))[0] == pytest.approx(by_the_rules(), rel=1e-5)


def test_two_workers_have_the_loss_and_gradients_of_one():
    first, second = run_ranks(2, run_rank)
    alone, gradients = run_rank(Rank(0, 1, 0))
    assert first[0] != second[0], "each worker has a part of its own"
    assert first[0] + second[0] == pytest.approx(alone, rel=1e-5)
    assert gradients["scale.logit"] != 0
    for name, value in gradients.items():
        np.testing.assert_allclose(first[1][name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_room_for_negatives_without_any_changes_nothing():
    pairs, _ = made_up()
    tokens = pairs.query.lengths + pairs.item.lengths
    losses = []
    for extra in (0, EXTRA):
        shape = dataclasses.replace(SHAPE, extra=extra)
        batch = make_batch(pairs, WHOLE, tokens, shape, Rank(0, 1, 0))
        with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
            losses.append(batch_losses(table(), batch, HEADS, accelerator)["loss"].item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)
