"""Catches batches that come in another order or with other bits, lost errors, and threads that stay behind."""

import itertools
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tasks.worker.devices.ahead import AHEAD, FlatBatch, make_ahead, one_behind
from tasks.worker.model.embed import EmbedBatch
from tasks.worker.model.embedding_model import Texts


def a_batch() -> EmbedBatch:
    random = torch.Generator().manual_seed(1)
    ids, segments, positions = (torch.randint(0, 99, (3, 7), generator=random) for _ in range(3))
    texts = Texts(ids, segments, positions, torch.arange(5), torch.rand(5, 3), torch.zeros(5, 0, dtype=torch.int64))
    return EmbedBatch(np.arange(4), texts)


def test_one_copy_moves_all_tensors_with_their_bits():
    batch = a_batch()
    moved = FlatBatch.of(batch, pinned=False).to(torch.device("cpu"))
    assert moved.rows is batch.rows
    for name, tensor in vars(batch.texts).items():
        found = getattr(moved.texts, name)
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(found, tensor)


def test_scalars_and_masks_share_a_buffer_with_numbers():
    mask = torch.tensor([[True, False, True]])
    texts = Texts(torch.tensor(3.5), mask, torch.arange(3), torch.zeros(0, 2), torch.ones(1), mask.T.contiguous())
    moved = FlatBatch.of(EmbedBatch(np.arange(1), texts), pinned=False).to(torch.device("cpu"))
    assert [each.tolist() for each in vars(moved.texts).values()] == [each.tolist() for each in vars(texts).values()]


def test_batches_come_in_order_and_few_are_made_ahead():
    made: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(50):
            made.append(number)
            yield number

    for number, taken in enumerate(make_ahead(numbers(), lambda each: each + 1)):
        assert taken == number + 1
        assert len(made) <= number + 1 + AHEAD + 2, "one waits to be put, one is being made"
    assert len(made) == 50


def test_an_error_comes_after_the_batches_before_it():
    def failing() -> Iterator[int]:
        yield 1
        raise IndexError("a row beyond the end")

    ahead = make_ahead(failing(), lambda number: number)
    assert next(ahead) == 1
    with pytest.raises(IndexError, match="beyond"):
        next(ahead)


def test_a_result_is_waited_for_once_the_next_work_was_started():
    seen: list[str] = []

    def started() -> Iterator[tuple[int, Callable[[], int]]]:
        for number in range(3):
            seen.append(f"start {number}")
            yield number, lambda number=number: seen.append(f"wait {number}") or number * 10

    assert list(one_behind(started())) == [(0, 0), (1, 10), (2, 20)]
    assert seen == ["start 0", "start 1", "wait 0", "start 2", "wait 1", "wait 2"]


def test_no_thread_stays_after_the_loop_was_left():
    before = threading.active_count()
    ahead = make_ahead(itertools.count(1), lambda number: number)
    assert next(ahead) == 1
    ahead.close()
    assert threading.active_count() == before
