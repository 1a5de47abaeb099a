"""Whatever a stage, metric, accelerator, store or loss needs is there; else a sentence says what to add."""

from __future__ import annotations

from tests.planes.recipes import missing


def test_nothing_is_missing() -> None:
    sentences = list(missing())
    assert not sentences, "\n".join(["", *sentences])
