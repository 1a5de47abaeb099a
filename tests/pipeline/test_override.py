"""A run that its gates refuse, let pass by a human: the installed command, real workers, a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.complete import assert_complete
from tests.support.workspace.shop import SPANS, STAGES, Shop, open_shop

pytestmark = [pytest.mark.pipeline, pytest.mark.proof]

HIGH = "evaluate.gates=[{metric: recall@1, direction: higher, threshold: 1.0, baseline: none, severity: critical}]"
NAME, REASON = "Ada Byron", "the holdout lacks the new shop"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = open_shop(tmp_path, tmp_path / "prefect", rows_per_span=400)
    try:
        yield shop
    finally:
        shop.millrace("down")


def test_an_override_makes_a_release_with_all_its_vectors_and_is_on_its_pages(shop: Shop) -> None:
    refused = shop.run("--span", SPANS[0], "--set", HIGH).json
    key = refused["report"]["run_key"]
    assert (refused["state"], refused["report"]["release"]) == ("Rejected", None)

    passed = shop.millrace("gate", "--run", key, "--override", NAME, "--reason", REASON, "--json").json
    assert (passed["state"], passed["release"], passed["judgement"]) == ("Released", 1, 1)
    stages = shop.millrace("report", "--run", key, "--json").json["stages"]
    assert {each["stage"]: each["attempts"] for each in stages} == dict.fromkeys(STAGES, 1)
    assert_complete(shop.workspace, SPANS[:1])

    release = json.loads((shop.workspace / "releases" / "1.json").read_text())
    assert [(each["name"], each["reason"]) for each in release["overrides"]] == [(NAME, REASON)]
    html = shop.workspace.parent / "report.html"
    assert shop.millrace("report", "--run", key, "--html", str(html)).code == 0
    card = shop.workspace / "models" / release["model"]["version"] / "README.md"
    for page in (html.read_text(), card.read_text()):
        assert NAME in page
        assert REASON in page
    listed = shop.millrace("releases").out  # in a narrow column, a word or two in a line
    assert all(word in listed for word in f"{NAME} {REASON}".split())
