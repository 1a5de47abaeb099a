"""Judges a fault by the expectations of its case: outcome and message, attempts, and the workspace it left."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.contracts.stages import Stage
from tasks.runs.ledger import LedgerRecord
from tests.benchmarks.disturbed.cloud import CloudScene
from tests.benchmarks.disturbed.invariants import problems as of_workspace
from tests.benchmarks.disturbed.judge import RELEASED, outcome_of
from tests.benchmarks.faults.cases import ONCE, Case
from tests.support.processes.command import CommandResult
from tests.support.workspace.shop import half_written

_BEFORE_TRAINING = tuple(Stage)[:3]  # done again where a setting differs


def attempts_in_words(attempts: Sequence[LedgerRecord]) -> str:
    """Stages with anything else than one attempt that was done, as `train HOST, done`."""
    endings: dict[str, list[str]] = {}
    for record in attempts:
        endings.setdefault(record.stage, []).append(record.failure or ("done" if record.ended_at else "open"))
    odd = [f"{stage} {', '.join(ended)}" for stage, ended in endings.items() if ended != ["done"]]
    return "; ".join(odd) or (ONCE if endings else "none")


def done(attempts: Sequence[LedgerRecord]) -> set[str]:
    """The stages that came to their end."""
    return {record.stage for record in attempts if record.ended_at and not record.failure}


def problems(scene: CloudScene, case: Case, result: CommandResult, attempts: Sequence[LedgerRecord]) -> list[str]:
    """Deviations from the case, a sentence each."""
    outcome, tried, jobs = outcome_of(result), attempts_in_words(attempts), len(scene.batch.jobs())
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
        found.append(f"its last line is not one sentence about the fault: {result.err}")
    if case.outcome != RELEASED and scene.store.exists("releases/CURRENT"):
        found.append("something is released")
    if outcome == RELEASED:
        found += of_workspace(scene.store, scene.world.undisturbed.content)
        found += [f"{folder} is half written" for folder in half_written(scene.store)]
    if case.jobs is not None and jobs != case.jobs:
        found.append(f"{jobs} jobs were submitted instead of {case.jobs}")
    return [*found, *scene.left_over()]
