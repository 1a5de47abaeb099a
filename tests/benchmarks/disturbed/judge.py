"""How commands ended, and the judgement of a workspace in which a run was disturbed, alone or among other actors."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from infra.store.base import Store
from tasks.contracts.stages import Stage
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.runs.ledger import LedgerRecord
from tests.benchmarks.disturbed import invariants
from tests.benchmarks.disturbed.command import HUNG
from tests.support.processes.command import CommandResult

RELEASED = "Released"
SETTLED_SECONDS = 20.0  # from the record of a release to the pointer: a rollback begun in it may be before or after it


class Undisturbed(NamedTuple):
    """The run that nothing disturbs."""

    stage_seconds: dict[str, float]  # from the start of one to the start of the next
    boot_seconds: float  # from the start of the command to that of the first stage
    tail_seconds: float  # from the end of the last stage to that of the command
    content: dict[str, str]  # key -> SHA-256, see invariants.py

    def until_next(self, stage: Stage) -> float:
        """Return the seconds that a stage takes; the first one begins with the command."""
        return self.stage_seconds[stage] + (self.boot_seconds if stage is Stage.validate else 0.0)

    def seconds(self, stages: Iterable[str]) -> float:
        """Return the seconds that these stages take, with the command around them."""
        return self.boot_seconds + sum(self.stage_seconds[stage] for stage in stages) + self.tail_seconds


def measured(records: Sequence[LedgerRecord], started: float, ended: float, content: dict[str, str]) -> Undisturbed:
    """Return the measure of a run with one attempt of each stage.

    Args:
        started: of its command, seconds since 1970.
        ended: of its command, seconds since 1970.
    """
    begins = [_seconds(record.started_at) for record in records]
    end = _seconds(records[-1].ended_at or records[-1].started_at)
    lengths = [after - before for before, after in zip(begins, [*begins[1:], end], strict=True)]
    stages = [str(record.stage) for record in records]
    return Undisturbed(dict(zip(stages, lengths, strict=True)), begins[0] - started, ended - end, content)


class Said(NamedTuple):
    """A command that has ended."""

    actor: str | None  # None: the run
    words: tuple[str, ...]
    began: float  # seconds since 1970
    ended: float
    result: CommandResult

    @property
    def outcome(self) -> str:
        return outcome_of(self.result)


def outcome_of(result: CommandResult) -> str:
    """Return the state of a run, `done` of another command, the failure class, `killed`, `hung`, or `?`."""
    if result.code == HUNG:
        return "hung"
    if result.code < 0:
        return "killed"
    if result.code == 0:
        return str(json.loads(result.out).get("state", "done")) if result.out.startswith("{") else "done"
    return next((failure.value for failure, policy in POLICIES.items() if policy.exit_code == result.code), "?")


def of_commands(said: Iterable[Said]) -> Iterator[str]:
    """Yield commands that ended in no way that a command may end in."""
    for one in said:
        if one.outcome in ("hung", "?", FailureClass.CODE) or "Traceback (most recent call last)" in one.result.err:
            yield f"`millrace {' '.join(one.words)}` ended as {one.outcome}: {one.result.err.strip()[-2000:]}"


def of_crowd(store: Store, expected: dict[str, str], earlier: frozenset[str], said: Sequence[Said]) -> list[str]:
    """Return the faults of a workspace in which several actors worked, one of them a person, a sentence each.

    Args:
        expected: `tests.benchmarks.disturbed.invariants.content` of the undisturbed run.
        earlier: keys of the runs before the disturbed one.
        said: all commands of the actors.
    """
    try:
        return [
            *_weights(store, expected),
            *invariants.of_attempts(store),
            *invariants.of_release(store),
            *_serving(store, earlier, [one for one in said if one.words[0] == "rollback" and one.result.code == 0]),
        ]
    except (FileNotFoundError, KeyError, ValueError) as error:
        return [f"the workspace can't be read: {type(error).__name__}: {error}"]


def _weights(store: Store, expected: dict[str, str]) -> Iterator[str]:
    """Yield weights of the undisturbed run that are others here; a prune may have taken some.

    The scores of a model, in its card and state, depend on the items that feeds brought meanwhile.
    """
    found = invariants.content(store)
    for key, sha256 in sorted(expected.items()):
        if key.endswith(".safetensors") and found.get(key, sha256) != sha256:
            yield f"{key} has other content than in the undisturbed run"


def _serving(store: Store, earlier: frozenset[str], rolled: Sequence[Said]) -> Iterator[str]:
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
    at = _seconds(newest["created_at"])
    serving, accepted = current["model"]["version"], newest["model"]["version"]
    after = [one for one in rolled if one.ended > at]
    back_to = [one.result.json["release"]["model"]["version"] for one in after]
    allowed = {accepted} if all(one.began < at + SETTLED_SECONDS for one in after) else set[str]()
    if serving not in allowed | set(back_to[-1:]):
        yield (
            f"release {current['number']} with model {serving} serves; accepted is {accepted} of release "
            f"{newest['number']}, and a person went back to {back_to or 'nothing'} after it"
        )


def _seconds(moment: str) -> float:
    return dt.datetime.fromisoformat(moment).timestamp()


def _json(store: Store, key: str) -> Any:
    return json.loads(store.read(key))
