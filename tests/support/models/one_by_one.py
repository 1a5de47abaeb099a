"""Packing and planning of batches row by row, as their definitions say it: slow, and the measure of the fast ones."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tasks.worker.model.packing import Packing, segments_of
from tasks.worker.training.plan import BALANCING_STRATA, PADDING, assign


def pack(lengths: np.ndarray, tokens: int, sequences: int | None = None) -> Packing:
    """Like `tasks.worker.model.packing.pack`."""
    room_for = segments_of(tokens)
    sequence, segment, start, length = (np.zeros(len(lengths), dtype=np.int64) for _ in range(4))
    # with_room[n] holds the sequences with n free tokens; bit n of `some` is set if one exists.
    with_room: list[list[int]] = [[] for _ in range(tokens + 1)]
    used, filled = [0] * (sequences or 0), [0] * (sequences or 0)
    some = 0
    if sequences:
        with_room[tokens], some = list(range(sequences - 1, -1, -1)), 1 << tokens
    for text in np.argsort(-lengths, kind="stable").tolist():
        wanted = int(lengths[text])
        if not wanted:
            break
        fitting = some >> wanted
        if fitting:
            room = wanted + (fitting & -fitting).bit_length() - 1
        elif sequences is None:
            with_room[tokens].append(len(used))
            used.append(0)
            filled.append(0)
            some |= 1 << tokens
            room = tokens
        elif some > 1:
            room = wanted = some.bit_length() - 1
        else:
            continue  # not one token is free
        place = with_room[room].pop()
        if not with_room[room]:
            some &= ~(1 << room)
        sequence[text], segment[text], start[text], length[text] = place, filled[place], used[place], wanted
        used[place] += wanted
        filled[place] += 1
        if filled[place] < room_for:
            with_room[room - wanted].append(place)
            some |= 1 << (room - wanted)
    return Packing(sequence, segment, start, length, len(used))


def deal(tokens: np.ndarray, keys: Sequence[np.ndarray], batches: int, random: np.random.Generator) -> np.ndarray:
    """Like `tasks.worker.training.plan.deal`."""
    order = sorted(range(len(tokens)), key=lambda row: -tokens[row])
    strata = [order[start : start + batches] for start in range(0, len(order), batches)]
    if batches == 1:
        return np.array([order], dtype=np.int64)
    held, totals = [[Counter[int]() for _ in keys] for _ in range(batches)], [0] * batches
    dealt = np.full((batches, len(strata)), PADDING)
    for turn, stratum in enumerate(random.permutation(len(strata)).tolist()):
        rows = strata[stratum] + [PADDING] * (batches - len(strata[stratum]))
        batch_of = random.permutation(batches).tolist()
        if turn >= len(strata) - BALANCING_STRATA:
            batch_of.sort(key=lambda batch: totals[batch])
        meetings = np.zeros((batches, batches), dtype=np.int64)
        for place, row in enumerate(rows):
            for batch in range(batches) if row != PADDING else []:
                meetings[place, batch] = sum(held[batch][kind][int(key[row])] for kind, key in enumerate(keys))
        if sum(meetings[place, batch] for place, batch in enumerate(batch_of)):
            batch_of = assign(meetings, np.array(batch_of)).tolist()
        for row, batch in zip(rows, batch_of, strict=True):
            dealt[batch, stratum] = row
            if row != PADDING:
                totals[batch] += int(tokens[row])
                for kind, key in enumerate(keys):
                    held[batch][kind][int(key[row])] += 1
    return dealt


def split_by_worker(rows: np.ndarray, tokens: np.ndarray, world: int) -> np.ndarray:
    """Like `tasks.worker.training.plan.split_by_worker`."""
    lengths = np.where(rows >= 0, tokens[rows], -1)
    ranked = np.argsort(-lengths, kind="stable").reshape(-1, world)
    totals, parts = np.zeros(world, dtype=np.int64), np.empty((world, len(ranked)), dtype=np.int64)
    for turn, some in enumerate(ranked):
        workers = np.argsort(totals, kind="stable")
        parts[workers, turn] = rows[some]
        totals[workers] += lengths[some]
    return parts
