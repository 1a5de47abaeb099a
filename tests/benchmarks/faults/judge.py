"""Whether a fault ended as it should: its outcome and message, its weights, and what it left behind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tasks.foundation.errors import POLICIES
from tests.benchmarks.faults.cases import ONCE, Case
from tests.benchmarks.faults.world import Scene
from tests.support.workspace.shop import STAGES, CommandResult

_BEFORE_TRAINING = ("validate", "health", "warmup")  # done again where a setting differs
Attempts = list[dict[str, Any]]  # records of the ledger


@dataclass
class Undisturbed:
    """The seconds that a run without a fault takes, and its weights."""

    overhead: float  # outside of the stages: the command, Prefect, the plan
    stages: dict[str, float]
    weights: str

    def take(self, attempts: Attempts, seconds: float) -> None:
        """Compare with this run from now on; it took `seconds` in all."""
        own = stage_seconds(attempts)
        self.stages |= own
        self.overhead = seconds - sum(own.values())

    def seconds(self, stages: Iterable[str]) -> float:
        """Of a run of these stages alone."""
        return self.overhead + sum(self.stages[stage] for stage in stages)


def outcome_of(result: CommandResult) -> str:
    if result.code == 0:
        return str(result.json["state"])
    return next((failure.value for failure, policy in POLICIES.items() if policy.exit_code == result.code), "?")


def attempts_in_words(attempts: Attempts) -> str:
    """Stages with anything else than one attempt that was done, as `train HOST, done`."""
    endings: dict[str, list[str]] = {}
    for record in attempts:
        ending = record["failure"] or ("done" if record["ended_at"] else "open")
        endings.setdefault(record["stage"], []).append(ending)
    odd = [f"{stage} {', '.join(ended)}" for stage, ended in endings.items() if ended != ["done"]]
    return "; ".join(odd) or (ONCE if endings else "none")


def done(attempts: Attempts) -> set[str]:
    """The stages that came to their end."""
    return {record["stage"] for record in attempts if record["ended_at"] and not record["failure"]}


def stage_seconds(attempts: Attempts) -> dict[str, float]:
    """Of stages that took one attempt each: from its start to that of the next stage, of the last one to its end."""
    starts = [one["started_at"] for one in attempts]
    ends = [*starts[1:], attempts[-1]["ended_at"]]
    at = dt.datetime.fromisoformat
    return {
        one["stage"]: (at(end) - at(start)).total_seconds()
        for one, start, end in zip(attempts, starts, ends, strict=True)
    }


def problems(scene: Scene, case: Case, result: CommandResult, attempts: Attempts, weights: str) -> list[str]:
    """What is not as it should be, a sentence each."""
    outcome, tried = outcome_of(result), attempts_in_words(attempts)
    found = []
    if outcome != case.outcome:
        found.append(f"it ended with {outcome} instead of {case.outcome}: {result.err}")
    if tried != case.attempts:
        found.append(f"the attempts are {tried!r} instead of {case.attempts!r}: {result.err}")
    if again := done(attempts) - {*case.stages, *_BEFORE_TRAINING}:
        found.append(f"stages that were done are done again: {sorted(again)}")
    found += [f"it does not say {words!r}: {result.err}" for words in case.says if words not in result.err]
    if "Traceback" in result.err:
        found.append(f"it shows a traceback: {result.err}")
    if case.outcome == "CONFIG" and not result.err.rstrip().rpartition("\n")[2].startswith("CONFIG: "):
        found.append(f"its last line is not one sentence about what is wrong: {result.err}")
    if case.outcome != "Released" and scene.store.exists("releases/CURRENT"):
        found.append("something is released")
    if outcome == "Released":
        if scene.weights() != weights:
            found.append("the released weights differ from those of the run without a fault")
        if half := scene.half_written():
            found.append(f"half written: {half}")
    return found + _problems_of_jobs(scene, case)


def _problems_of_jobs(scene: Scene, case: Case) -> list[str]:
    found = [
        f"{most} jobs of {stage} were live at once"
        for stage in STAGES
        if (most := scene.batch.max_live(f"*-{stage}-*")) > 1
    ]
    if left := scene.left_live():
        found.append(f"containers are still live: {left}")
    if left := [job["jobName"] for job in scene.batch.jobs() if job["status"] not in ("SUCCEEDED", "FAILED")]:
        found.append(f"jobs are not over: {left}")
    if case.jobs is not None and len(scene.batch.jobs()) != case.jobs:
        found.append(f"{len(scene.batch.jobs())} jobs were submitted instead of {case.jobs}")
    return found
