"""Deals the rows of a block to its batches: about as many tokens for each, and rows with an equal key apart."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

PADDING = -1
BALANCING_STRATA = 8  # strata that are dealt to balance the batches; the others are dealt at random


def deal(tokens: np.ndarray, keys: Sequence[np.ndarray], batches: int, random: np.random.Generator) -> np.ndarray:
    """Return the places of rows in `tokens`, int64 (batches, strata), PADDING where rows are missing.

    A stratum has as many rows as there are batches, of about equal length, and every batch gets one of them. The strata
    come one after another. A stratum that would add a row to a batch with the same key is dealt anew, so that its rows
    meet as few rows with an equal key as possible. So a key with more rows than batches is spread over all of them.

    Args:
        tokens: int64 (rows,).
        keys: arrays of integers (rows,).
    """
    order = np.argsort(-tokens, kind="stable")
    if batches == 1:
        return order[None]
    strata = -(-len(tokens) // batches)
    missing = strata * batches - len(tokens)
    ranked = np.pad(order, (0, missing), constant_values=PADDING).reshape(strata, batches)
    lengths = np.pad(tokens[order], (0, missing)).reshape(strata, batches)
    numbers, several = _number_shared(keys, len(tokens))
    numbers = np.pad(numbers[:, order], ((0, 0), (0, missing))).reshape(len(keys), strata, batches)
    held = np.zeros((several + 1, batches), dtype=np.min_scalar_type(strata))  # rows with each shared key, by batch
    dealt, totals = np.empty((batches, strata), dtype=np.int64), np.zeros(batches, dtype=np.int64)
    for turn, stratum in enumerate(random.permutation(strata).tolist()):
        batch_of = random.permutation(batches)
        if turn >= strata - BALANCING_STRATA:  # the longest row to the emptiest batch
            batch_of = batch_of[np.argsort(totals[batch_of], kind="stable")]
        own = numbers[:, stratum]
        if held[own, batch_of].any():
            batch_of = assign(held[own].sum(axis=0, dtype=np.int64), batch_of)
        held[own, batch_of] += 1
        held[0] = 0
        dealt[batch_of, stratum] = ranked[stratum]
        totals[batch_of] += lengths[stratum]
    return dealt


def assign(meetings: np.ndarray, wish: np.ndarray) -> np.ndarray:
    """Return a batch for each row, int64 (rows,), each batch once: with the fewest meetings, then the most wishes kept.

    Args:
        meetings: int64 (rows, batches), number of rows with an equal key that a row meets in a batch.
        wish: int64 (rows,), a batch for each row, each batch once.
    """
    costs = meetings * (len(wish) + 1)  # one meeting outweighs all wishes
    costs[np.arange(len(wish)), wish] -= 1
    return linear_sum_assignment(costs)[1]


def _number_shared(keys: Sequence[np.ndarray], rows: int) -> tuple[np.ndarray, int]:
    """Number the keys that several rows have, of all kinds together, from 1.

    Returns:
        The number of each row's keys, int64 (kinds, rows), 0 for a key of one row; and the highest number.
    """
    numbers, found = np.zeros((len(keys), rows), dtype=np.int64), 0
    for kind, key in enumerate(keys):
        _, which, counts = np.unique(key, return_inverse=True, return_counts=True)
        several = counts > 1
        numbers[kind] = np.where(several, found + np.cumsum(several), 0)[which]
        found += int(several.sum())
    return numbers, found
