"""Each value in force names the file and line, or the option, that sets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.origins import in_force

TEAM = """extends: place.yaml
# comments don't count as keys
train:
  epochs: 3
  max_tokens: {query: 8}
heads:
  classification: {weight: 0.5, input: pair,
    negative_max: 2, positive_min: 4}
"""


@pytest.fixture
def team(tmp_path: Path) -> Path:
    (tmp_path / "place.yaml").write_text("seed: 1\ntrain: {epochs: 7,\n  warmup_steps: 3}\nfeatures: {query: []}\n")
    (tmp_path / "team.yaml").write_text(TEAM)
    return tmp_path / "team.yaml"


@pytest.mark.parametrize(
    ("key", "value", "origin"),
    [
        ("train.epochs", 3, "{folder}/team.yaml:4"),
        ("train.max_tokens.query", 8, "{folder}/team.yaml:5"),
        ("heads.classification.negative_max", 2.0, "{folder}/team.yaml:8"),
        ("heads.classification.loss", "plain", "schema"),
        ("train.warmup_steps", 3, "{folder}/place.yaml:3"),
        ("seed", 5, "--set seed=5"),
        ("heads.multiclass", None, "base.yaml:{line}"),
    ],
)
def test_the_last_layer_that_sets_a_key_is_its_origin(team: Path, key: str, value: object, origin: str) -> None:
    base = (Path(__file__).parents[2] / "configs" / "base.yaml").read_text().splitlines()
    line = next(number for number, text in enumerate(base, 1) if text.strip().startswith("multiclass:"))
    expected = origin.format(folder=team.parent, line=line)
    assert in_force(team, ["seed=4", "seed=5"]).of(key) == (value, expected)


def test_a_key_of_a_section_that_is_null_has_no_value() -> None:
    assert in_force(None, ["heads.classification=null"]).of("heads.classification.weight") == (None, None)


def test_a_section_that_a_later_layer_removes_has_its_origin(team: Path) -> None:
    removed = "heads.classification=null"
    assert in_force(team, [removed]).of("heads.classification") == (None, f"--set {removed}")
