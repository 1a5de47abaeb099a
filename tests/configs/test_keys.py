"""The keys that `millrace config` and docs/configuration.md show, their places, and damaged files of settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.in_force import in_force
from configs.keys import NO_DEFAULT, Key, all_keys
from configs.load import leaves, load_config
from configs.yaml_files import read_yaml
from tasks.foundation.errors import ConfigError

HEAD = "heads.classification={weight: 0.5, input: pair, negative_max: 2, positive_min: 4}"


@pytest.fixture(scope="module")
def keys() -> dict[str, Key]:
    return {key.path: key for key in all_keys(load_config().tree())}


def test_every_setting_of_a_configuration_is_a_key(keys: dict[str, Key]) -> None:
    config = load_config(None, [HEAD])
    unknown = [path for path in leaves(config.tree()) if not any(path.startswith(key) for key in keys)]
    assert unknown == []


def test_a_key_decides_if_the_key_of_a_run_is_made_from_it(keys: dict[str, Key]) -> None:
    """The flag is read field by field, the work of a run is cut from the tree: they must agree for each setting."""
    config = load_config(None, [HEAD])
    work = set(leaves(config.work()))
    shown = {path: keys[path].decides for path in leaves(config.tree()) if path in keys}
    assert len(shown) > 150
    assert {path for path, decides in shown.items() if decides} == work & set(shown)


@pytest.mark.parametrize(
    ("path", "kind", "default"),
    [
        ("train.epochs", "integer above 0", 1),
        ("compute", "`local`, `batch`", "local"),
        ("features.numeric", "list of text", []),
        ("health.machines.NAME.devices", "integer from 0", NO_DEFAULT),
        ("evaluate.gates[].undecided", "`accept`, `refuse`, `ask`", "accept"),
        ("validate.items.changed.stop", "number from 0 to 1 or null", 0.3),
    ],
)
def test_type_and_default_are_shown(keys: dict[str, Key], path: str, kind: str, default: Any) -> None:
    assert (keys[path].type, keys[path].default) == (kind, default)


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


LAUGHS = "".join(f", &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))

REFUSED = {
    "a key twice": ("seed: 1\ntrain: {epochs: 1}\nseed: 2\n", "the key 'seed' is there twice"),
    "a key inside twice": ("train: {epochs: 1, epochs: 2}", "the key 'epochs' is there twice"),
    "many levels": (f"features: {'[' * 3000}{']' * 3000}", "more than 50 levels"),
    "aliases of aliases": (f"features: {{numeric: [&a0 [x, x]{LAUGHS}]}}", "aliases make more than"),
    "an alias of its own part": ("train: &a {epochs: *a}", "aliases make more than"),
    "a large number": (f"seed: 0x{'9' * 5000}", "a number of more than 64 bits"),
    "many digits": (f"seed: {'9' * 5000}", "is none of tag:yaml.org,2002:int"),
    "a clock": ("train: {epochs: 1:30}", "line 1, column 17: YAML reads 1:30 as 90; write 90 if that is meant, else"),
    "leading zeros": ("seed: 010", "YAML reads 010 as 8; write 8"),
    "no date": ("seed: 2026-13-45", "'2026-13-45' is none of tag:yaml.org,2002:timestamp"),
    "a wrong tag": ("seed: !!bool perhaps", "'perhaps' is none of tag:yaml.org,2002:bool"),
    "a long file": ("# much\n" * 50_000, "more than 262,144 characters"),
    "a key that is a number": ("train: {1: 2}", "unknown key 'train.1'"),
    "a section that is null": ("validate: null", "validate: expected a section with the keys "),
    "suites that are a number": ("validate: {suites: 5}", "validate.suites: expected list of text, got 5"),
    "a suite that is a number": ("validate: {suites: [5]}", "validate.suites: expected the paths of files, got 5"),
    "a suite without a path": (
        'validate: {suites: ["\\0"]}',
        "configuration: validate.suites: \0: not readable as YAML",
    ),
    "a file without a path": ('extends: "\\ud800"', "not readable as YAML: line 1, column 13: "),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_hostile_is_refused(tmp_path: Path, kind: str) -> None:
    text, message = REFUSED[kind]
    (tmp_path / "team.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_config(tmp_path / "team.yaml")
    assert message in str(refused.value)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize("value", ["9" * 5000, "!!timestamp x"])
def test_an_override_is_read_as_a_file_is(value: str) -> None:
    with pytest.raises(ConfigError, match=r"--set value .*YAML"):
        load_config(overrides=[f"seed={value}"])


def test_aliases_and_merged_keys_are_read() -> None:
    assert read_yaml("a: &x [1]\nb: *x\nc: {<<: {d: 1, e: 2}, d: 3}") == {"a": [1], "b": [1], "c": {"d": 3, "e": 2}}
