"""The differences between two resolved configurations, for people."""

from collections.abc import Mapping
from typing import Any

from configs.schema.config import Config


def differences(then: Config, now: Config) -> list[str]:
    """Return the settings that decide a run's model and vectors and differ, as in `train.epochs (1 then, 2 now)`."""
    return [f"{key} ({old} then, {new} now)" for key, (old, new) in changed(then, now).items()]


def changed(then: Config, now: Config) -> dict[str, tuple[Any, Any]]:
    """Return the settings that `differences` names, by key, with both values; None: there is no such key."""
    old, new = leaves(then.work()), leaves(now.work())
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    return {key: (old.get(key), new.get(key)) for key in keys}


def leaves(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return the settings of a tree by their dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= leaves(value, f"{path}{key}.") if isinstance(value, dict) and value else {f"{path}{key}": value}
    return found
