"""Pack texts of any length into sequences of one length, so that hardly any padding is computed.

`embedding_model.py` computes with packed texts, and `training/plan.py` chooses the texts of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOKENS_PER_SEGMENT = 4  # a sequence of N tokens holds at most N / 4 texts; hardly any text is shorter than 4 tokens


def segments_of(tokens: int) -> int:
    """Return the maximum number of texts in a sequence of `tokens`."""
    return max(1, tokens // TOKENS_PER_SEGMENT)


@dataclass(frozen=True)
class Packing:
    """The places of texts: int64 arrays (texts,), in the order of the texts.

    `sequence` from 0; `segment` from 0 within the sequence; `start`, the text's first token in the sequence; `length`
    in tokens, 0 for a text without a place.
    """

    sequence: np.ndarray
    segment: np.ndarray
    start: np.ndarray
    length: np.ndarray
    sequences: int

    def part(self, first: int, count: int) -> tuple[np.ndarray, Packing]:
        """Return the texts in `count` sequences from `first`, int64, and their places in these sequences."""
        inside = (self.sequence >= first) & (self.sequence < first + count)
        texts = np.flatnonzero(inside)
        return texts, Packing(
            self.sequence[texts] - first, self.segment[texts], self.start[texts], self.length[texts], count
        )

    def tokens(self, ids: np.ndarray, starts: np.ndarray, tokens: int, pad: int) -> tuple[np.ndarray, ...]:
        """Return token ids, segments and positions, each int64 (sequences, tokens); segment -1 is padding.

        Args:
            ids: int32 (total,), the concatenated tokens of many texts.
            starts: int64 (texts,), the first token of each packed text in `ids`.
            tokens: length of a sequence.
        """
        out, segments, positions = (np.full(self.sequences * tokens, value, dtype=np.int64) for value in (pad, -1, 0))
        within = np.arange(int(self.length.sum())) - np.repeat(np.cumsum(self.length) - self.length, self.length)
        at = np.repeat(self.sequence * tokens + self.start, self.length) + within
        out[at] = ids[np.repeat(starts, self.length) + within]
        segments[at] = np.repeat(self.segment, self.length)
        positions[at] = within
        return tuple(each.reshape(self.sequences, tokens) for each in (out, segments, positions))


def pack(lengths: np.ndarray, tokens: int, sequences: int | None = None) -> Packing:
    """Place texts, the longest first, each into the sequence with the least sufficient room (best-fit decreasing).

    Args:
        lengths: int64 (texts,), at most `tokens`.
        tokens: length of a sequence.
        sequences: number of sequences; a text that fits into none is truncated. None: as many as needed.
    """
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
