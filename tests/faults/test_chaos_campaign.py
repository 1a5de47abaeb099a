"""How disturbed runs are counted and judged, at a place where nothing runs."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import POLICIES, FailureClass
from tests.benchmarks.chaos import campaign as campaigns
from tests.benchmarks.chaos.campaign import Report, campaign, counts
from tests.benchmarks.chaos.draws import Act, Draw
from tests.benchmarks.disturbed.command import HUNG
from tests.benchmarks.disturbed.judge import Undisturbed
from tests.benchmarks.disturbed.world import World
from tests.support.processes.command import CommandResult

RELEASED = CommandResult(0, json.dumps({"state": "Released"}), "")
REJECTED = CommandResult(0, json.dumps({"state": "Rejected"}), "")
KILLED = CommandResult(-signal.SIGKILL, "", "")
FULL = CommandResult(POLICIES[FailureClass.DISK].exit_code, "", "DISK: full")
BUG = CommandResult(POLICIES[FailureClass.CODE].exit_code, "", "Traceback (most recent call last)\nCODE: a bug")
STUCK = CommandResult(HUNG, "", "")


class Script:
    """A place, its scenes and their commands: each command ends as the next of `ends` says."""

    name, whole_share = "nowhere", 0.5
    undisturbed = Undisturbed(dict.fromkeys(map(str, Stage), 0.0), 0.0, 0.0, {})

    def __init__(
        self, store: DirectoryStore, *ends: CommandResult, over: Sequence[bool] = (), left: Sequence[str] = ()
    ) -> None:
        self.store: Store = store
        self.ends, self._over, self._left = list(ends), list(over), list(left)
        self.sent: list[signal.Signals] = []
        self.closed: list[bool] = []
        self.kept: list[str] = []
        self.world, self.earlier = self, frozenset[str]()
        self.words, self.began = ("run",), 0.0

    @property
    def over(self) -> bool:
        return self._over.pop(0) if self._over else False

    def scene(self, name: str, stages: Sequence[Stage]) -> Script:
        self._wanted = stages[0]
        return self

    def start(self) -> Script:
        return self

    def begun(self) -> set[Stage]:
        return {Stage.validate, Stage.health, Stage.warmup, self._wanted}

    def workers(self) -> list[int]:
        return []

    def server(self) -> int | None:
        return None

    def falter(self, act: Act) -> None: ...

    def recover(self) -> None: ...

    def send(self, number: signal.Signals) -> None:
        self.sent.append(number)

    def send_all(self, command: Script, number: signal.Signals) -> None:
        self.sent.append(number)

    def finish(self) -> CommandResult:
        return self.ends.pop(0)

    def left_over(self) -> list[str]:
        return self._left

    def stop(self) -> None: ...

    def close(self, keep: bool) -> None:
        self.closed.append(keep)


def draw(act: Act = Act.kill_orchestrator, stage: Stage = Stage.health) -> Draw:
    return Draw(1, act, stage, 0.5, 0.0, False)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    monkeypatch.setattr(campaigns, "problems", lambda store, expected: [])
    return DirectoryStore(tmp_path)


def report(place: Script, *some: Draw) -> Report:
    return campaign(cast(World, place), 7, some or (draw(),), lambda line: None)


def test_a_run_that_is_killed_may_be_run_again_once(store: DirectoryStore) -> None:
    place = Script(store, KILLED, RELEASED)
    run = report(place).runs[0]
    assert (run.first_end, run.ended, run.violations) == ("killed", "one rerun", ())
    assert run.stage is Stage.warmup, "the run has gone on by then"
    assert place.sent == [signal.SIGKILL]
    assert place.closed == [False]


def test_a_campaign_goes_on_where_it_was_cut_off(store: DirectoryStore) -> None:
    saved: list[Report] = []
    for number in (1, 2):
        earlier = saved[-1].runs if saved else ()
        place = Script(store, RELEASED)
        campaign(cast(World, place), 7, [draw()._replace(number=number)], lambda line: None, earlier, saved.append)
    assert [[run.number for run in each.runs] for each in saved] == [[1], [1, 2]]


@pytest.mark.parametrize(
    ("ends", "left", "violation"),
    [
        ((FULL, FULL), [], "command 2 of 2 ended as DISK: DISK: full"),
        ((STUCK, RELEASED), [], "`millrace run` ended as hung: "),
        ((BUG, RELEASED), [], "`millrace run` ended as CODE: Traceback (most recent call last)\nCODE: a bug"),
        ((REJECTED,), [], "command 1 of 1 ended as Rejected: "),
        ((RELEASED,), ["process 7 goes on"], "process 7 goes on"),
    ],
)
def test_each_end_that_should_not_be_is_a_violation(
    store: DirectoryStore, ends: tuple[CommandResult, ...], left: list[str], violation: str
) -> None:
    place = Script(store, *ends, left=left)
    found = report(place, draw(Act.store_errors))
    assert violation in found.runs[0].violations
    assert (found.wrong, place.closed) == (1, [True])


def test_an_act_that_comes_too_late_is_tried_again_sooner(store: DirectoryStore) -> None:
    place = Script(store, RELEASED, KILLED, RELEASED, over=[True, True])
    assert report(place).runs[0].violations == ()
    always = Script(store, RELEASED, RELEASED, RELEASED, over=[True] * 20)
    assert report(always).runs[0].violations == ("the act was never done: the run ended before it",)


def test_the_table_counts_by_act_and_stage(store: DirectoryStore) -> None:
    place = Script(store, KILLED, RELEASED, KILLED, FULL, RELEASED)
    kill = draw(stage=Stage.train)
    some = (kill, kill._replace(number=2), draw(Act.store_delays, Stage.infer)._replace(number=3))
    found = counts(report(place, *some).runs, "act", "stage")
    assert [row[:6] for row in found] == [
        (Act.kill_orchestrator, Stage.train, 2, 0, 1, 1),
        (Act.store_delays, Stage.infer, 1, 1, 0, 0),
    ]
