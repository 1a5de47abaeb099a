"""Workspaces to begin with, made by the real stages with workers that do no arithmetic.

The last step of a stage's task, `add`, is kept back: a simulation does it in the middle of others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from unittest.mock import patch

import infra.compute.factory
import tasks.release
import tasks.runs.plan
from configs.schema.config import Config
from infra.store import factory
from tasks.planning.next_run import plan_run
from tasks.running.context import override_context
from tasks.runs import adding_releases, releases
from tasks.runs.adding_releases import add
from tasks.runs.holds import hold
from tasks.runs.rollback import rollback
from tests.simulation.objects import Objects
from tests.simulation.stores import RULES, etag
from tests.support.fakes.fake_runner import FakeRunner, ingest, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed

SPANS = ("2021-Q1", "2021-Q2", "2021-Q3")
OTHER = "other"  # another lineage of the workspace
NEW_ITEMS = ("first items", "more items")
_SHARED = ("releases/", ".locks/", "packs/")


class Kept(BaseException):
    """The end of a stage before its release is added."""


class Ready(NamedTuple):
    """Work whose release can be added: the arguments of `add`, and the objects that its stages wrote."""

    arguments: Mapping[str, Any]
    written: Mapping[str, bytes]


class Workspace(NamedTuple):
    """A workspace, and the work that is ready to be released in it."""

    objects: Objects
    runs: Mapping[str, Ready]  # by the name of its command
    refreshes: Mapping[tuple[str, str], Ready]  # by new items and version of the model


@contextmanager
def opened(objects: Objects, rules: str = "directory", runner: type[FakeRunner] = FakeRunner) -> Iterator[Any]:
    """Yield the store of these objects; `open_store` gives it too, and its workers do no arithmetic."""
    store = RULES[rules](objects)
    scheme = store.uri.partition("://")[0]
    with (
        patch.dict(factory.STORES, {scheme: lambda _: store}),
        patch.object(infra.compute.factory, "make_runner", lambda config, store, stage: runner(store)),
        patch.object(tasks.runs.plan, "to_yaml", _yaml),
    ):
        yield store


@functools.cache
def _dumped(config: str) -> str:
    return config


def _yaml(config: Any) -> str:
    """Settings as JSON, which is YAML: the emitter would take most of the time."""
    return _dumped(config.model_dump_json())


def made_by(objects: Objects, work: Callable[[Any], object]) -> Ready:
    """Do work on a copy up to its release."""
    there = objects.copy()
    before, kept = dict(there.files), {}

    def keep(store: object, **arguments: Any) -> None:
        kept.update(arguments)
        raise Kept

    with opened(there) as store, patch.object(tasks.release, "add", keep), suppress(Kept):
        work(store)
    new = {key: found.data for key, found in there.files.items() if before.get(key) != found}
    return Ready(kept, {key: data for key, data in new.items() if not key.startswith(_SHARED)})


@functools.cache
def four_releases() -> Workspace:
    """Releases 1 and 2 by two models, 3 and 4 refreshes of 2; a trained run, a run of another lineage, two feeds."""
    objects = Objects()
    config, other = small_config(), small_config(f"lineage={OTHER}")
    with opened(objects) as store:
        ingest(store, *SPANS)
        for span in SPANS[:2]:
            carry_out(plan_run(store, config, span))
        for version in (1, 2):
            ingest_feed(store, "2021-01", version)
            refreshed(store, config)
        plan, of_other = plan_run(store, config, SPANS[2]), plan_run(store, other, SPANS[1])
    runs = {
        "run": made_by(objects, lambda _: carry_out(plan)),
        "other run": made_by(objects, lambda _: carry_out(of_other)),
    }
    for ready in runs.values():
        put_all(objects, ready.written)
    refreshes: dict[tuple[str, str], Ready] = {}
    for items in NEW_ITEMS:
        for serving in _each_current(objects, runs):
            with opened(serving) as store:
                ingest_feed(store, "2021-01", _version(items))
                model = releases.current(store)
                assert model is not None
            refreshes[items, model.model.version] = made_by(serving, lambda store: refreshed(store, config))
    return Workspace(objects, runs, refreshes)


def _each_current(objects: Objects, runs: Mapping[str, Ready]) -> Iterator[Objects]:
    """Yield copies in which each model serves in turn."""
    yield objects.copy()
    first = objects.copy()
    first.put(releases.CURRENT, releases.Pointer(release=1).to_json())
    yield first
    for ready in runs.values():
        released = objects.copy()
        with opened(released) as store:
            span = ready.arguments["span"].model_copy(update={"name": SPANS[2]})  # so that it becomes current
            add(store, **{**ready.arguments, "span": span, "confirm": lambda: None})
        yield released


@functools.cache
def _config() -> Config:
    return small_config()  # reading the settings takes as long as an interleaving


def made_again(objects: Objects, items: str) -> Ready:
    """Plan the refresh with these new items in a workspace as it is, and do its stages, in one turn.

    Raises:
        NothingToDo: as `plan_refresh`.
    """
    there = objects.copy()
    with opened(there) as store, override_context(lineages=()):
        ingest_feed(store, "2021-01", _version(items))
        return made_by(there, lambda store: refreshed(store, _config()))


def _version(items: str) -> int:
    return NEW_ITEMS.index(items) + 3  # of the feed, which has two in the workspace


def put_all(objects: Objects, written: Mapping[str, bytes]) -> None:
    """Put what stages wrote."""
    for key, data in written.items():
        objects.put(key, data)


# States to begin in: what hours of refreshes and people may have left behind


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
