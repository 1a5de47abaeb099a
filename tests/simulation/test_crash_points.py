"""Commands killed before each of their changes; `python -m tests.simulation crash-points` does all of them."""

from __future__ import annotations

import pytest

from tests.simulation.crash_points import COMMANDS, sweep
from tests.simulation.stores import RULES

QUICK = ("ingest", "import", "publish", "prune")


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("command", QUICK)
def test_a_command_that_was_killed_anywhere_ends_as_if_it_was_not(command, rules):
    swept = sweep(command, rules)
    assert swept.changes > 0
    assert swept.wrong == {}


@pytest.mark.proof
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in QUICK])
def test_a_longer_command_that_was_killed_anywhere_ends_as_if_it_was_not(command, rules):
    assert sweep(command, rules).wrong == {}


def test_a_release_that_nobody_decides_after_a_kill_is_found(monkeypatch):
    """The check itself, by a fault that once was there: a refresh that finds its release made had nothing to do."""
    monkeypatch.setattr("flows.refresh.take_up_undecided", lambda store, config: None)
    monkeypatch.setattr("tasks.runs.releases.was_left", lambda store, number: True)
    assert sweep("refresh", "directory").wrong
