"""The events of releases: released, refreshed, rejected, rolled back. Each carries its record."""

from flows.running.events import Event, Severity
from tasks.contracts.kinds import is_refresh
from tasks.contracts.runs import Release, RunPlan
from tasks.foundation.clock import now
from tasks.monitoring.budgets import Budget
from tasks.runs.results import Judgement, Refusal

RELEASED = "millrace.release.released"
REFRESHED = "millrace.release.refreshed"
REJECTED = "millrace.release.rejected"
ROLLED_BACK = "millrace.release.rolled-back"
NEAR_BUDGET = "millrace.budget.near"


def made(release: Release, current: int | None, lineage: str) -> Event:
    """Return the event of a release that a run or a refresh made; `current` is the number of the serving release."""
    vectors = f"{release.vectors:,} vectors by model {release.model.version}"
    sentence = f"Release {release.number} of {release.span.name} has {vectors}."
    if release.refreshed is not None:
        sentence = f"Release {release.number} brings release {release.refreshed} up to date: {vectors}."
    if current is not None and current != release.number:
        sentence = f"{sentence} Release {current} serves on."
    event = RELEASED if release.refreshed is None else REFRESHED
    return _event(event, f"release-{release.number}", release, current, lineage, sentence)


def rolled_back(release: Release, before: Release | None, lineage: str) -> Event:
    """Return the event of a rollback; `before` was the current release."""
    instead = f" instead of release {_named(before)}" if before is not None else ""
    sentence = f"Release {_named(release)} is current again{instead}."
    return _event(ROLLED_BACK, f"rollback-{release.number}-{now()}", release, release.number, lineage, sentence)


def rejected(plan: RunPlan, judged: Judgement | Refusal, following: str = "") -> Event:
    """Return the event of a model, or of a refresh, that the gates refused.

    Args:
        following: a sentence about the start of the next span's training; empty for a refresh.
    """
    what = "refresh" if is_refresh(plan.run_key) else "model"
    return Event(
        what=f"rejected-{plan.run_key}",
        event=REJECTED,
        severity="warning",
        lineage=plan.config.lineage,
        resource={
            "prefect.resource.id": f"millrace.run.{plan.run_key}",
            "prefect.resource.name": plan.span.name,
            "millrace.span": plan.span.name,
            "millrace.lineage": plan.config.lineage,
        },
        sentence=f"The {what} of {plan.span.name} was rejected: {judged.why} {following}".rstrip(),
        payload={
            "span": plan.span.name,
            "run_key": plan.run_key,
            "next_start": following,
            "verdicts": [verdict.sentence for verdict in judged.all_verdicts],
        },
    )


def _named(release: Release) -> str:
    return f"{release.number} of {release.span.name} (model {release.model.version})"


def near_budget(plan: RunPlan, budget: Budget) -> Event:
    """Return the event of a budget that is used to 80 %, by the dollars spent and planned."""
    return Event(
        what=f"budget-{budget.of}-{budget.name}",
        event=NEAR_BUDGET,
        severity="warning",
        lineage=plan.config.lineage,
        resource={
            "prefect.resource.id": f"millrace.budget.{plan.config.lineage}.{budget.of}",
            "prefect.resource.name": budget.name,
            "millrace.span": plan.span.name,
            "millrace.lineage": plan.config.lineage,
        },
        sentence=budget.sentence,
        payload=budget.model_dump(mode="json"),
    )


def _event(event: str, what: str, release: Release, current: int | None, lineage: str, sentence: str) -> Event:
    severity: Severity = "warning" if event == ROLLED_BACK else "info"
    return Event(
        what=what,
        event=event,
        severity=severity,
        lineage=lineage,
        resource={
            "prefect.resource.id": f"millrace.release.{release.number}",
            "prefect.resource.name": f"release {release.number}",
            "millrace.span": release.span.name,
            "millrace.lineage": lineage,
            "millrace.run": release.run_key,
        },
        sentence=sentence,
        payload={"current": current, "release": release.model_dump(mode="json")},
    )
