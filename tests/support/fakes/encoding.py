"""The released model's proof in the process of the test: a fresh one takes many seconds to import its libraries."""

from __future__ import annotations

import pytest

from tasks.worker.search import consumer, encode_released


def encode_here(patch: pytest.MonkeyPatch) -> None:
    """Let releases encode in this process from now on."""
    patch.setattr(consumer, "_run_apart", lambda arguments, folder: encode_released.main(arguments))
