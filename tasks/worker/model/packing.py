"""Packs texts of any length, so that hardly any padding is computed: in sequences of one length, or concatenated.

Concatenated texts have no mask and are fastest on devices that allow variable shapes. Texts of equal length are
adjacent, so that each group is one dense array for attention and pooling. `embedding_model.py` computes with both, and
`training/plan.py` chooses the texts of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tasks.data.pretrained import Pooling
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import TokenLists

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
    order = np.argsort(-lengths, kind="stable")
    wanted = lengths[order[: np.count_nonzero(lengths)]]
    free = _Free(tokens, sequences)
    shorter, counts = np.unique(-wanted, return_counts=True)
    for length, count in zip((-shorter).tolist(), counts.tolist(), strict=True):
        if length < TOKENS_PER_SEGMENT or not free.place(length, count):
            break
    cut = free.place_singly(wanted[len(free.places) :].tolist())
    place = np.array(free.places, dtype=np.int64)
    taken = wanted[: len(place)].copy()
    taken[len(place) - len(cut) :] = cut
    return _packing(len(lengths), order[: len(place)], place, taken, free.sequences)


class _Free:
    """The sequences by their free tokens: the last one of each list is used first."""

    def __init__(self, tokens: int, sequences: int | None) -> None:
        self.places: list[int] = []  # sequence of each text so far
        self.sequences = 0
        self._tokens, self._limited = tokens, sequences is not None
        self._with_room: list[list[int]] = [[] for _ in range(tokens + 1)]
        self._some = 0  # bit n is set if a sequence has n free tokens
        if sequences:
            self._open(sequences)

    def _open(self, count: int) -> None:
        """Add empty sequences."""
        self._with_room[self._tokens] = list(range(self.sequences + count - 1, self.sequences - 1, -1))
        self._some |= 1 << self._tokens
        self.sequences += count

    def place(self, length: int, count: int) -> bool:
        """Place some texts of equal length; return False if not all fit.

        A sequence with the least sufficient room keeps the least until its room is too short. So it takes as many of
        the texts as it can, and all sequences with the same room take equally many.
        """
        with_room = self._with_room
        while count:
            fitting = self._some >> length
            if not fitting:
                if self._limited:
                    return False
                self._open(-(-count // (self._tokens // length)))
                continue
            room = length + (fitting & -fitting).bit_length() - 1
            stack, each = with_room[room], room // length
            full = min(len(stack), count // each)
            if full:
                chosen = stack[: -full - 1 : -1]
                del stack[-full:]
                self.places += chosen if each == 1 else [place for place in chosen for _ in range(each)]
                count -= full * each
                with_room[room - each * length] += chosen
                self._some |= 1 << (room - each * length)
            if stack and 0 < count < each:
                self.places += [stack[-1]] * count
                with_room[room - count * length].append(stack.pop())
                self._some |= 1 << (room - count * length)
                count = 0
            if not stack:
                self._some &= ~(1 << room)
        return True

    def place_singly(self, lengths: list[int]) -> list[int]:
        """Place texts of descending lengths; return the tokens of each. Texts beyond these have no place.

        Truncates texts that don't fit, and closes sequences with the most texts that they may hold.
        """
        taken: list[int] = []
        if not lengths:
            return taken
        with_room, most = self._with_room, segments_of(self._tokens)
        held = np.bincount(np.array(self.places, dtype=np.int64), minlength=self.sequences).tolist()
        for room, stack in enumerate(with_room[:TOKENS_PER_SEGMENT]):  # others hold fewer texts
            stack[:] = [place for place in stack if held[place] < most]
            self._some &= ~((not stack) << room)
        for wanted in lengths:
            fitting = self._some >> wanted
            if not fitting and not self._limited:
                self._open(1)
                held.append(0)
                room = self._tokens
            elif fitting:
                room = wanted + (fitting & -fitting).bit_length() - 1
            elif self._some > 1:
                room = wanted = self._some.bit_length() - 1
            else:
                break  # not one token is free
            place = with_room[room].pop()
            if not with_room[room]:
                self._some &= ~(1 << room)
            self.places.append(place)
            taken.append(wanted)
            held[place] += 1
            if held[place] < most:
                with_room[room - wanted].append(place)
                self._some |= 1 << (room - wanted)
        return taken


def _packing(texts: int, order: np.ndarray, place: np.ndarray, taken: np.ndarray, sequences: int) -> Packing:
    """Return the packing of some texts, which follow each other in their sequences; the others have no place.

    Args:
        order, place, taken: int64 (placed,): number, sequence and tokens of each text.
    """
    together = np.argsort(place, kind="stable")
    sizes = np.bincount(place, minlength=sequences)
    firsts = np.cumsum(sizes) - sizes
    before = np.cumsum(taken[together]) - taken[together]
    sequence, segment, start, length = (np.zeros(texts, dtype=np.int64) for _ in range(4))
    sequence[order], length[order] = place, taken
    which = place[together]
    segment[order[together]] = np.arange(len(place)) - firsts[which]
    start[order[together]] = before - before[firsts[which]]
    return Packing(sequence, segment, start, length, sequences)


@dataclass(frozen=True)
class UnpaddedTexts:
    """B texts, the longest first, of N tokens in total, including a little padding after the last text.

    `ids` and `positions` int64 (1, N): each token, and its position in its text; `groups` int64 (1, 1, G, 2): the
    number of texts in each group and the tokens per text; `numeric` float32 (B, F); `categorical` int64 (B, C).
    """

    ids: torch.Tensor
    positions: torch.Tensor
    groups: torch.Tensor
    numeric: torch.Tensor
    categorical: torch.Tensor

    @classmethod
    def of(cls, tokens: TokenLists, rows: np.ndarray, lengths: np.ndarray, features: FeatureArrays) -> UnpaddedTexts:
        """Return texts on the host.

        Args:
            rows: int64 (B,), rows of `tokens`, the longest text first.
            lengths: int64 (B,), at least 1: tokens to take from each text.
            features: one row per text.
        """
        count = int(lengths.sum())
        within = np.arange(count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        ids = tokens.ids[np.repeat(tokens.offsets[rows], lengths) + within].astype(np.int64)
        padding = (0, round_length_up(count) - count)
        ids, within = np.pad(ids, padding, constant_values=tokens.pad), np.pad(within, padding)
        longest_first, texts = (each[::-1] for each in np.unique(lengths, return_counts=True))
        groups = np.stack([texts, longest_first], axis=1)
        ids, within, groups = (torch.from_numpy(each) for each in (ids[None], within[None], groups[None, None]))
        return cls(ids, within, groups, torch.from_numpy(features.numeric), torch.from_numpy(features.categorical))

    def to(self, device: torch.device) -> UnpaddedTexts:
        return UnpaddedTexts(**{name: value.to(device) for name, value in vars(self).items()})


def round_length_up(tokens: int) -> int:
    """Round the length of a batch up: by at most an eighth, or to a multiple of 16.

    The CPU's matrix library keeps megabytes for each distinct length; rounding keeps their number small.
    """
    step = max(16, 1 << max(0, tokens.bit_length() - 4))
    return -(-tokens // step) * step


def split_batches(lengths: np.ndarray, tokens: int) -> Iterator[slice]:
    """Yield the texts of each batch: at most `tokens` tokens, but at least one text; `lengths` int64 (texts,)."""
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + tokens, side="right")))
        yield slice(start, stop)
        start = stop


def pool(hidden: torch.Tensor, groups: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return the pooled vector of each text, float32 (B, D), from hidden states of all tokens, float32 (N, D)."""
    sizes: list[tuple[int, int]] = groups.flatten(0, 2).tolist()
    tokens = [texts * length for texts, length in sizes]
    parts = hidden[: sum(tokens)].split(tokens)
    shaped = [part.unflatten(0, size) for part, size in zip(parts, sizes, strict=True)]  # (texts, length, D)
    if pooling == "mean":
        return torch.cat([part.mean(dim=1) for part in shaped])
    return torch.cat([part[:, 0 if pooling == "cls" else -1] for part in shaped])
