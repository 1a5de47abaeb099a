"""Editors check configuration files by configs/millrace.schema.json: it knows all keys, and finds a misspelt one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from configs.instances import INSTANCES
from configs.load import BASE
from configs.prices import PRICES
from configs.yaml_files import read_yaml, read_yaml_file
from tasks.laboratory import published
from tasks.laboratory.bakeoff_report import PUBLISHED
from tests.docs.editor_schema import FIRST_LINE, PAGE

FILES = sorted({*BASE.parent.glob("*.yaml")} - {INSTANCES, PRICES, PUBLISHED, published.PUBLISHED})
SCHEMA = json.loads(PAGE.read_text(encoding="utf-8"))


def faults(settings: Any) -> list[str]:
    return [error.message for error in Draft7Validator(SCHEMA).iter_errors(settings)]


def test_it_is_a_schema() -> None:
    Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_configuration_file_is_valid_and_names_the_schema(path: Path) -> None:
    assert faults(read_yaml_file(path)) == []
    assert path.read_text(encoding="utf-8").splitlines()[0] == FIRST_LINE


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ("train: {learnign_rate: 0.1}", "learnign_rate"),
        ("trian: {epochs: 1}", "trian"),
        ("evaluate: {gates: [{metrik: recall@10}]}", "metrik"),
        ("evaluate: {gates: [{metric: recall@10}]}", "'threshold' is a required property"),
        (
            "evaluate: {gates: [{metric: recall, direction: higher, threshold: 0, baseline: none, severity: warning}]}",
            "'recall' is not one of",
        ),
        ("train: {checkpoint_every: 50}", "50 is not of type 'string'"),
        ("train: {checkpoint_every: 5 minutes}", "'5 minutes' does not match"),
        ("publish: {targets: [{kind: lancedb, name: shop, url: there}]}", "is not valid"),
    ],
)
def test_a_fault_is_found(settings: str, word: str) -> None:
    assert any(word in fault for fault in faults(read_yaml(settings))), faults(read_yaml(settings))


@pytest.mark.parametrize(
    "settings",
    [
        "health: {machines: {trn1.32xlarge: {devices: 8}}}",
        "heads: {contrastive: null, multiclass: {classes: [1, 2, other]}}",
        "train: {checkpoint_every: auto}",
        "evaluate: {champion_loss: {stop: 0.5}}",
    ],
)
def test_a_part_of_the_settings_is_enough(settings: str) -> None:
    assert faults(read_yaml(settings)) == []


def test_defaults_are_of_base() -> None:
    defaults = SCHEMA["$defs"]["TrainConfig"]["properties"]
    assert defaults["epochs"]["default"] == read_yaml_file(BASE)["train"]["epochs"]
