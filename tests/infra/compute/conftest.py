"""A workspace, and workers that do what a test wants."""

import dataclasses
import functools

import pytest

from infra.compute import local
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tests.support.fakes.stand_ins import replace_health


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the stand-ins, the same for all tests of a module, so that they share its warm parents."""
    yield tmp_path_factory.mktemp("site")
    local.end_parents()


@pytest.fixture
def stand_in(request, monkeypatch, site):
    """Run `body` in workers that are forked, or with the mark `both_ways` also in processes of their own."""
    if getattr(request, "param", "forked") != "forked":
        monkeypatch.setattr(Stage.health, "traits", dataclasses.replace(Stage.health.traits, libraries=None))
    return functools.partial(replace_health, monkeypatch, site)


@pytest.fixture
def short_grace(monkeypatch) -> None:
    monkeypatch.setattr(local, "GRACE_SECONDS", 0.5)
