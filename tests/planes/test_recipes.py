"""All parts of each stage, metric, accelerator, store, loss, target and export exist; a sentence names a gap."""

from tests.planes.recipes import missing


def test_nothing_is_missing() -> None:
    sentences = list(missing())
    assert not sentences, "\n".join(["", *sentences])
