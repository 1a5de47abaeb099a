"""The released model's proof in the process of the test: a fresh one takes many seconds to import its libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.worker.search import consumer, encode_released
from tasks.worker.search.consumer import Encoded


def encode_here(patch: pytest.MonkeyPatch, loading: float = 0.0) -> None:
    """Let releases encode in this process from now on, as if their library took `loading` seconds to load."""
    read = consumer._read

    def here(path: Path) -> Encoded:
        return read(path)._replace(loading=loading)

    patch.setattr(consumer, "_run_apart", lambda arguments, folder: encode_released.main(arguments))
    patch.setattr(consumer, "_read", here)
