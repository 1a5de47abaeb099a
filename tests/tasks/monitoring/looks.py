"""Daily spans trained at six in Berlin, and a look at their freshness one morning."""

import datetime as dt
from typing import Any

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.runs import RunPlan
from tasks.contracts.spans import after
from tasks.monitoring.freshness import FreshnessReport, freshness
from tasks.monitoring.problems import Problem
from tasks.monitoring.progress import SpanRow
from tasks.planning.next_run import plan_run
from tasks.runs.plan import save_plan
from tests.support.fakes.fake_runner import ingest
from tests.support.fakes.stages import carry_out
from tests.support.workspace.invocations import write_invocation

DAILY = ("schedule.cron=0 6 * * *", "schedule.timezone=Europe/Berlin", "freshness.target_hours=36")
MORNING = "2026-11-13T07:00:00+01:00"  # an hour after the run that takes 2026-11-12


def days(first: str, last: str) -> list[str]:
    names = [first]
    while names[-1] != last:
        names.append(after(names[-1]))
    return names


def train(store: Store, config: Config, *spans: str) -> None:
    """Ingest and run the spans, each by itself."""
    for span in spans:
        ingest(store, span)
        carry_out(plan_run(store, config, span))


def look(store: Store, config: Config, at: str = MORNING) -> FreshnessReport:
    return freshness(store, config, dt.datetime.fromisoformat(at))


def row(report: FreshnessReport, span: str) -> SpanRow:
    (found,) = [one for one in report.spans if one.span == span]
    return found


def problems_of(report: FreshnessReport) -> list[tuple[str, tuple[str, ...]]]:
    return [(problem.kind, problem.spans) for problem in report.problems]


def problem(report: FreshnessReport, kind: str) -> Problem:
    (found,) = [one for one in report.problems if one.kind == kind]
    return found


def recorded_run(store: Store, config: Config, span: str, **changes: Any) -> RunPlan:
    """A run of which only the record that it began is there."""
    plan = plan_run(store, config, span)
    save_plan(store, plan)
    write_invocation(store, plan, **changes)
    return plan


def locked(store: Store, lineage: str = "main"):
    """The lineage's lock, as a running process holds it."""
    return store.lock(f"lineages/{lineage}.run")
