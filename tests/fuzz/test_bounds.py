import itertools

import pytest

from tests.support.processes.bounds import bounded


def test_what_never_ends_is_stopped():
    with pytest.raises(AssertionError, match="processor time"), bounded(seconds=0.1):
        all(number >= 0 for number in itertools.count())


def test_memory_that_was_given_back_counts():
    with pytest.raises(AssertionError, match=r"\d+ MiB, where 16 "), bounded(mib=16):
        bytearray(64 * 2**20)
