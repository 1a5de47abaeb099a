"""What must hold of a workspace in which several actors worked, one of them a person."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from infra.store.base import Store
from tests.benchmarks.chaos import invariants


class Rolled(NamedTuple):
    """A rollback that was done."""

    began: float  # seconds since 1970
    ended: float
    model: str  # the version of the model that it went back to


def judged(store: Store, expected: dict[str, str], earlier: frozenset[str], rolled: Sequence[Rolled]) -> list[str]:
    """Return what does not hold, a sentence each.

    Args:
        expected: `tests.benchmarks.chaos.invariants.content` of the undisturbed run.
        earlier: keys of the runs before the disturbed one.
        rolled: rollbacks that were done.
    """
    try:
        return [
            *_weights(store, expected),
            *invariants.of_attempts(store),
            *invariants.of_release(store),
            *_serving(store, earlier, rolled),
        ]
    except (FileNotFoundError, KeyError, ValueError) as error:
        return [f"the workspace can't be read: {type(error).__name__}: {error}"]


def _weights(store: Store, expected: dict[str, str]) -> Iterator[str]:
    """Yield weights of the undisturbed run that are others here. What a prune took is none of them.

    What a model scores, as its card and state say, depends on the items that feeds brought meanwhile.
    """
    found = invariants.content(store)
    for key, sha256 in sorted(expected.items()):
        if key.endswith(".safetensors") and found.get(key, sha256) != sha256:
            yield f"{key} has other content than in the undisturbed run"


def _serving(store: Store, earlier: frozenset[str], rolled: Sequence[Rolled]) -> Iterator[str]:
    """Yield a sentence unless the newest accepted model serves, or the one that a person went back to after it."""
    releases = [
        _json(store, key) for key in store.list("releases") if key.split("/")[-1].removesuffix(".json").isdigit()
    ]
    current = next(one for one in releases if one["number"] == _json(store, "releases/CURRENT")["release"])
    made = [one for one in releases if one["refreshed"] is None and one["run_key"] not in earlier]
    if counted := [key for key, count in Counter(one["run_key"] for one in made).items() if count > 1]:
        yield f"{counted[0]} has more than one release"
    if not made:
        yield "the run's accepted model has no release"
        return
    newest = max(made, key=lambda one: one["number"])
    at = dt.datetime.fromisoformat(newest["created_at"]).timestamp()
    serving, accepted = current["model"]["version"], newest["model"]["version"]
    after = [one for one in rolled if one.ended > at]
    allowed = {accepted} if all(one.began < at + SETTLED_SECONDS for one in after) else set[str]()
    allowed |= {one.model for one in after[-1:]}
    if serving not in allowed:
        yield (
            f"release {current['number']} with model {serving} serves; accepted is {accepted} of release "
            f"{newest['number']}, and a person went back to {[one.model for one in after] or 'nothing'} after it"
        )


SETTLED_SECONDS = 20.0  # from the record of a release to the pointer: what was begun in it may be before or after it


def _json(store: Store, key: str) -> Any:
    return json.loads(store.read(key))
