"""Files of settings that are damaged or hostile: one sentence with the file and the place, in a moment."""

from pathlib import Path

import pytest

from configs.load import load_config
from configs.yaml_files import read_yaml
from tasks.foundation.errors import ConfigError

LAUGHS = "".join(f", &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9))

REFUSED = {
    "a key twice": ("seed: 1\ntrain: {epochs: 1}\nseed: 2\n", "the key 'seed' is there twice"),
    "a key inside twice": ("train: {epochs: 1, epochs: 2}", "the key 'epochs' is there twice"),
    "many levels": (f"features: {'[' * 3000}{']' * 3000}", "more than 50 levels"),
    "aliases of aliases": (f"features: {{numeric: [&a0 [x, x]{LAUGHS}]}}", "aliases make more than"),
    "an alias of its own part": ("train: &a {epochs: *a}", "aliases make more than"),
    "a large number": (f"seed: 0x{'9' * 5000}", "a number of more than 64 bits"),
    "many digits": (f"seed: {'9' * 5000}", "is none of tag:yaml.org,2002:int"),
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
    "a file without a path": ('extends: "\\ud800"', "extends must be the path of one config file"),
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
    with pytest.raises(ConfigError, match=r"--set value .* is not readable as YAML"):
        load_config(overrides=[f"seed={value}"])


def test_aliases_and_merged_keys_are_read() -> None:
    assert read_yaml("a: &x [1]\nb: *x\nc: {<<: {d: 1, e: 2}, d: 3}") == {"a": [1], "b": [1], "c": {"d": 3, "e": 2}}
