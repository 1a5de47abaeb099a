"""A publication that ends at any step: consumers keep the release before it, and the next one goes on from there."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.contracts.workspace import MEASURED
from tasks.runs.served_targets import publication
from tasks.worker import publish
from tasks.worker.export.table_contents import ReleaseVectors
from tasks.worker.export.targets import open_target
from tests.support.workspace.publications import publish_job, publish_spec
from tests.support.workspace.releases import PARTITIONS, write_release
from tests.tasks.worker.export.reading import served
from tests.tasks.worker.export.watched import Watched

ROOT = Path(__file__).resolve().parents[4]
STEPS = ["create", *["load"] * PARTITIONS, "index", "serve", "drop"]  # those that change something, in order

KILLED = """
import os, signal, sys
from infra.store.factory import open_store
from tasks.contracts.jobs import JobSpec
from tasks.worker import publish
from tasks.worker.process.job import Job, PhaseClock, Rank
from tests.tasks.worker.export.watched import Watched

spec, watched = JobSpec.model_validate_json(sys.stdin.read()), Watched()
watched.before["load"] = lambda: watched.calls.count("load") == 3 and os.kill(os.getpid(), signal.SIGKILL)
publish.open_target = watched.open
publish.run(Job(spec, open_store(spec.workspace), Rank(0, 1, 0), PhaseClock(0.0)))
"""


class Interrupted(BaseException):
    pass


def interrupt() -> None:
    raise Interrupted


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_interruption_at_any_step_leaves_one_whole_release(store, place, monkeypatch, after):
    releases = [write_release(store, number) for number in (1, 2, 3)]
    for release in releases[:2]:
        publish.run(publish_job(store, place.config(), release, only_current=False))
    watched, swapped = Watched.instead_of_targets(monkeypatch), False
    for step in STEPS:
        watched.before, watched.after = ({}, {step: interrupt}) if after else ({step: interrupt}, {})
        if swapped:
            break  # it serves the release, so the next publication only checks
        with pytest.raises(Interrupted):
            publish.run(publish_job(store, place.config(), releases[2]))
        swapped = step == "drop" or (step == "serve" and after)
        assert served(store, place, releases[2] if swapped else releases[1]), step
    assert swapped
    watched.before = watched.after = {}
    watched.calls.clear()
    outcome = publish.run(publish_job(store, place.config(), releases[2]))
    assert (outcome.loaded, "load" in watched.calls) == (0, False)
    assert served(store, place, releases[2])


def test_only_what_is_missing_is_loaded_after_each_interruption(store, place, monkeypatch):
    release, watched = write_release(store, 1), Watched.instead_of_targets(monkeypatch)
    watched.after["load"] = interrupt
    for _ in range(PARTITIONS - 1):
        with pytest.raises(Interrupted):
            publish.run(publish_job(store, place.config(), release))
    watched.after.clear()
    outcome = publish.run(publish_job(store, place.config(), release))
    assert watched.calls.count("load") == PARTITIONS
    assert 0 < outcome.loaded < release.vectors / 2
    assert served(store, place, release)


def test_an_interruption_while_a_damaged_table_is_replaced_is_gone_on_from(store, place, monkeypatch):
    release, watched = write_release(store, 1), Watched.instead_of_targets(monkeypatch)
    damaged = publish.run(publish_job(store, place.config(), release)).table
    assert damaged is not None
    vectors = ReleaseVectors(store, release.vectors_prefix, release.model.version, release.vectors_sha256)
    with contextlib.closing(open_target(place.config().publish.targets[0])) as target:
        target.load(damaged, 0, vectors.rows(0).slice(0, 1), again=True)
    for step, ends in (("load", watched.after), ("index", watched.before), ("serve", watched.before)):
        ends[step] = interrupt
        with pytest.raises(Interrupted):
            publish.run(publish_job(store, place.config(), release))
        del ends[step]
    watched.before["drop"] = interrupt
    with pytest.raises(Interrupted):
        publish.run(publish_job(store, place.config(), release))
    watched.before.clear()
    assert served(store, place, release)
    outcome = publish.run(publish_job(store, place.config(), release))
    assert (outcome.loaded, outcome.dropped) == (0, (damaged,))


def test_no_rollback_goes_at_once_to_a_table_that_is_loaded_again(store, place, monkeypatch):
    """The record of an earlier publication of the release would say that its table was checked."""
    release, watched = write_release(store, 1), Watched.instead_of_targets(monkeypatch)
    record = MEASURED.key(run=publication(1, "look"))
    store.write(record, b"{}")
    watched.after["load"] = interrupt
    with pytest.raises(Interrupted):
        publish.run(publish_job(store, place.config(), release))
    assert not store.exists(record)


def test_a_killed_worker_leaves_the_old_release_and_whole_partitions(store, place):
    old, new = write_release(store, 1), write_release(store, 2)
    publish.run(publish_job(store, place.config(), old, only_current=False))
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        input=publish_spec(store, place.config(), new).to_json(),
        cwd=ROOT,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert served(store, place, old)
    outcome = publish.run(publish_job(store, place.config(), new))
    assert 0 < outcome.loaded < new.vectors  # two partitions were there
    assert served(store, place, new)
