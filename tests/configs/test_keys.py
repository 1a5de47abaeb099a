"""The keys that `millrace config` and docs/configuration.md show are the keys of a resolved configuration."""

from __future__ import annotations

from typing import Any

import pytest

from configs.differences import leaves
from configs.keys import NO_DEFAULT, Key, all_keys
from configs.load import load_config

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
        ("evaluate.gates[].undecided", "`accept`, `refuse`", "accept"),
        ("validate.items.changed.stop", "number from 0 to 1 or null", 0.3),
    ],
)
def test_type_and_default_are_shown(keys: dict[str, Key], path: str, kind: str, default: Any) -> None:
    assert (keys[path].type, keys[path].default) == (kind, default)
