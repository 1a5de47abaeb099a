"""Whether two columns of texts have changed places, by the words in them."""

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

_BINS = 4096
_CLEARLY = 0.1  # by so much, of a cosine, must each column be nearer to the other one


def word_counts(texts: Sequence[str]) -> np.ndarray:
    """Return how often words occur, by a hash of the word, int64 (4096,)."""
    hashed = [zlib.crc32(word.encode(errors="replace")) % _BINS for text in texts for word in text.lower().split()]
    return np.bincount(np.asarray(hashed, dtype=np.int64), minlength=_BINS)


def swapped(earlier: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray], columns: tuple[str, str]) -> bool:
    """Return whether each of two columns is clearly nearer to what the other one was."""
    first, second = columns
    return all(
        _cosine(now[one], earlier[other]) > _cosine(now[one], earlier[one]) + _CLEARLY
        for one, other in ((first, second), (second, first))
    )


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0
