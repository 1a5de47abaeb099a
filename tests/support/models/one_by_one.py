"""Packing and planning of batches row by row, as their definitions say it: slow, and the measure of the fast ones."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tasks.worker.model.packing import Packing, segments_of


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


def separate(dealt: np.ndarray, keys: Sequence[np.ndarray]) -> None:
    """Like `tasks.worker.training.plan.separate`."""
    batches, strata = dealt.shape
    held = [[Counter(key[batch[batch >= 0]].tolist()) for key in keys] for batch in dealt]

    def keys_of(row: int) -> list[int]:
        return [int(key[row]) for key in keys] if row >= 0 else []

    def fewer(batch: int, own: list[int], other: int, theirs: list[int]) -> int:
        """Return by how much an exchange reduces the pairs of rows with an equal key."""
        found = 0
        for kind, key in enumerate(own):
            here, there = held[batch][kind], held[other][kind]
            if not theirs:
                found += here[key] - 1 - there[key]
            elif theirs[kind] != key:
                found += here[key] - 1 - there[key] + there[theirs[kind]] - 1 - here[theirs[kind]]
        return found

    def move(batch: int, own: list[int], by: int) -> None:
        for kind, key in enumerate(own):
            held[batch][kind][key] += by

    for batch in range(batches):
        for stratum in range(strata):
            row = int(dealt[batch, stratum])
            own = keys_of(row)
            unwanted = sum(held[batch][kind][key] - 1 for kind, key in enumerate(own))
            best, place = 0, batch
            for other in [(batch + step) % batches for step in range(1, batches)] if unwanted else []:
                found = fewer(batch, own, other, keys_of(int(dealt[other, stratum])))
                if found > best:
                    best, place = found, other
                if found >= unwanted:
                    break
            if best:
                theirs = keys_of(int(dealt[place, stratum]))
                move(batch, own, -1)
                move(place, own, 1)
                move(place, theirs, -1)
                move(batch, theirs, 1)
                dealt[batch, stratum], dealt[place, stratum] = dealt[place, stratum], row


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
