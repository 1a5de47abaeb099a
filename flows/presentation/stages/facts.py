"""Facts about a finished stage, and its section: by the file with the stage's name, else a table of its outcome.

Alone, since the file of every stage imports it.
"""

import importlib
import importlib.util
from typing import Any, NamedTuple

from flows.presentation.model import Section, table
from tasks.contracts.evaluation import Verdict
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.search import Changes
from tasks.contracts.stages import Stage
from tasks.runs.ledger import LedgerRecord
from tasks.runs.results import Judgement
from tasks.runs.served_targets import Publication


class StageFacts(NamedTuple):
    """The facts of one stage: its outcome, its attempts, and the control plane's decisions on it."""

    workspace: str
    plan: RunPlan | None  # None: not readable
    outcome: Any  # type depends on the stage
    attempts: tuple[LedgerRecord, ...]
    judged: Judgement | None = None
    release: Release | None = None
    release_verdicts: tuple[Verdict, ...] = ()
    serving: int | None = None  # number of the current release
    health: Any = None  # HealthOutcome of the same run; None without one
    # For pages without separate sections for these:
    publications: tuple[Publication, ...] = ()
    changes: Changes | None = None  # from the release before


def section_of(stage: Stage, facts: StageFacts) -> Section:
    """Return the section of a stage: `section` of `flows/presentation/stages/<stage>.py`, under the stage's name."""
    module = f"flows.presentation.stages.{stage.value}"
    made: Section = (
        importlib.import_module(module).section(facts) if importlib.util.find_spec(module) else _plain(facts)
    )
    name = stage.value.capitalize()
    return made._replace(title=f"{name}: {made.title}", id=stage.value, short=name)


def _plain(facts: StageFacts) -> Section:
    fields = facts.outcome.model_dump(mode="json", exclude={"stage"})
    return Section("done", tables=(table("Outcome", ("", ""), [(key, str(value)) for key, value in fields.items()]),))
