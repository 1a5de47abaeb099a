import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.worker.model.packing import Packing, pack, segments_of
from tests.support.models import one_by_one

TOKENS = st.integers(1, 40)


@st.composite
def texts(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    """Lengths of texts, some of them empty, and the tokens of a sequence, which none exceeds."""
    tokens = draw(TOKENS)
    return np.array(draw(st.lists(st.integers(0, tokens), max_size=60)), dtype=np.int64), tokens


def assert_apart(packing: Packing, tokens: int) -> None:
    """No two texts share a token or a number, and no sequence has more of either than it holds."""
    taken, numbers = set(), set()
    for text in np.flatnonzero(packing.length).tolist():
        sequence, start, length = (int(each[text]) for each in (packing.sequence, packing.start, packing.length))
        assert 0 <= sequence < packing.sequences
        assert start + length <= tokens
        own = {(sequence, start + token) for token in range(length)}
        assert not taken & own
        taken |= own
        number = (sequence, int(packing.segment[text]))
        assert number not in numbers
        assert number[1] < segments_of(tokens)
        numbers.add(number)


@given(texts())
def test_with_as_many_sequences_as_needed_no_text_is_cut(given_texts: tuple[np.ndarray, int]):
    lengths, tokens = given_texts
    packing = pack(lengths, tokens)
    assert packing.length.tolist() == lengths.tolist()
    assert_apart(packing, tokens)
    used = set(packing.sequence[packing.length > 0].tolist())
    assert used == set(range(packing.sequences)), "no sequence is empty"


@given(texts(), st.integers(1, 12))
def test_a_text_is_cut_only_if_it_fits_nowhere_and_then_as_little_as_can_be(
    given_texts: tuple[np.ndarray, int], sequences: int
):
    lengths, tokens = given_texts
    packing = pack(lengths, tokens, sequences)
    assert packing.sequences == sequences
    assert_apart(packing, tokens)
    free, texts_in = [tokens] * sequences, [0] * sequences
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):  # as they were placed
        room = max((some for some, held in zip(free, texts_in, strict=True) if held < segments_of(tokens)), default=0)
        got = int(packing.length[text])
        assert got == min(lengths[text], room)
        if got:
            free[packing.sequence[text]] -= got
            texts_in[packing.sequence[text]] += 1


@settings(max_examples=300)
@given(texts(), st.none() | st.integers(0, 30))
def test_equal_texts_placed_at_once_stand_where_each_would_stand_alone(
    given_texts: tuple[np.ndarray, int], sequences: int | None
):
    lengths, tokens = given_texts
    found, expected = pack(lengths, tokens, sequences), one_by_one.pack(lengths, tokens, sequences)
    assert {name: np.asarray(value).tolist() for name, value in vars(found).items()} == {
        name: np.asarray(value).tolist() for name, value in vars(expected).items()
    }


def test_a_text_goes_where_it_leaves_the_least_room():
    packing = pack(np.array([7, 6, 5, 4, 2]), 12)
    assert packing.sequence.tolist() == [0, 1, 0, 1, 1]
    assert packing.start.tolist() == [0, 0, 7, 6, 10]


def test_many_short_texts_do_not_exceed_the_texts_of_a_sequence():
    packing = pack(np.full(10, 1), 16)
    assert np.bincount(packing.sequence).tolist() == [4, 4, 2]


@given(texts(), st.none() | st.integers(1, 12), st.randoms(use_true_random=False))
def test_every_token_is_laid_out_once_in_its_text_and_the_rest_is_padding(given_texts, sequences, random):
    lengths, tokens = given_texts
    starts = np.concatenate([[0], np.cumsum(lengths)])
    ids = np.array([random.randrange(1, 99) for _ in range(starts[-1])], dtype=np.int32)
    packing = pack(lengths, tokens, sequences)
    laid, segments, positions = packing.tokens(ids, starts[:-1], tokens, pad=0)
    assert laid.shape == segments.shape == positions.shape == (packing.sequences, tokens)
    assert laid.dtype == segments.dtype == positions.dtype == np.int64
    for text, length in enumerate(packing.length.tolist()):
        if length:
            at = np.flatnonzero(segments[packing.sequence[text]] == packing.segment[text])
            assert laid[packing.sequence[text], at].tolist() == ids[starts[text] : starts[text] + length].tolist()
            assert positions[packing.sequence[text], at].tolist() == list(range(length))
    assert (segments >= 0).sum() == packing.length.sum()
    assert not laid[segments < 0].any()


@given(texts(), st.integers(1, 5))
def test_the_parts_of_a_packing_are_its_sequences(given_texts: tuple[np.ndarray, int], count: int):
    lengths, tokens = given_texts
    ids, starts = np.arange(1, lengths.sum() + 1, dtype=np.int32), np.cumsum(lengths) - lengths
    packing = pack(lengths, tokens)
    whole, seen = packing.tokens(ids, starts, tokens, pad=0), []
    for first in range(0, packing.sequences, count):
        members, part = packing.part(first, count)
        seen += members.tolist()
        for laid, expected in zip(part.tokens(ids, starts[members], tokens, pad=0), whole, strict=True):
            rows = expected[first : first + count]
            assert (laid[: len(rows)] == rows).all()
    assert sorted(seen) == list(range(len(lengths))) or not packing.sequences


@pytest.mark.parametrize("count", [300, 3000])
def test_texts_of_all_lengths_leave_little_padding(count: int):
    random = np.random.default_rng(0)
    lengths = random.integers(2, 129, count)
    assert lengths.sum() / (128 * pack(lengths, 128).sequences) > 0.95
