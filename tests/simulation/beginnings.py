"""States of a workspace that interleavings begin in: what hours of refreshes and people may have left behind."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from tasks.runs import adding_releases, releases
from tasks.runs.adding_releases import add
from tasks.runs.holds import hold
from tasks.runs.rollback import rollback
from tests.simulation.objects import Objects
from tests.simulation.stores import etag
from tests.simulation.workspaces import NEW_ITEMS, Workspace, four_releases, opened, put_all


class _Died(BaseException):
    """The end of a process between two of its writes."""


def _passed_over(store: Any, workspace: Workspace) -> None:
    """A person went back to 3, refresh 5 of 4 was passed over, and a run died after it announced number 6."""
    rollback(store, to=3)
    _add_refresh(store, workspace, refreshed=4)
    _announced(store, workspace)


def _announced(store: Any, workspace: Workspace) -> None:
    """A run died after it announced the next free number."""

    def die(*_: object, **__: object) -> None:
        raise _Died

    with patch.object(adding_releases, "Numbered", die), suppress(_Died):
        add(store, **{**workspace.runs["run"].arguments, "confirm": lambda: None})


def _gone_back(store: Any, workspace: Workspace) -> None:
    """The workers of a refresh are done, but a person went back to another model before its release was made."""
    put_all(store.objects, workspace.refreshes[NEW_ITEMS[0], _serving(store)].written)
    rollback(store, to=1)


def _held(store: Any, workspace: Workspace) -> None:
    """A run's release 5 waits for the end of a hold, and so does refresh 6."""
    hold(store, "why")
    add(store, **{**workspace.runs["run"].arguments, "confirm": lambda: None})
    _add_refresh(store, workspace, refreshed=4)


def _add_refresh(store: Any, workspace: Workspace, refreshed: int) -> None:
    ready = workspace.refreshes[NEW_ITEMS[0], _serving(store)]
    put_all(store.objects, ready.written)
    add(store, **{**ready.arguments, "refreshed": refreshed, "confirm": lambda: None})


def _serving(store: Any) -> str:
    current = releases.current(store)
    assert current is not None
    return current.model.version


PLAIN = "four releases"
_ACTS: Mapping[str, Callable[[Any, Workspace], None]] = {
    PLAIN: lambda store, workspace: None,
    "passed over": _passed_over,
    "announced": _announced,
    "gone back": _gone_back,
    "held": _held,
}
BEGINNINGS = tuple(_ACTS)


@functools.cache
def beginning(name: str) -> Workspace:
    """Return a workspace in a state of this name, made by the code under test as it is without a planted fault."""
    workspace = four_releases()
    objects: Objects = workspace.objects.copy()
    with opened(objects) as store:
        _ACTS[name](store, workspace)
        _, pointer = releases.read_pointer(store)
        assert pointer is not None
    # As a planted fault would leave it that gives each pointer the same id.
    data = pointer.model_copy(update={"write": ""}).to_json()
    objects.put(releases.CURRENT, data, etag(data))  # a bucket has one tag for the same bytes
    return workspace._replace(objects=objects)
