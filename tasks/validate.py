"""Stage validate, control side: check the rows of the run's spans, and update the catalogue of all known items."""

import contextlib

from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.jobs import ValidateInputs
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.references import CatalogueRef, FeedRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.data.rows import has_ids_alone
from tasks.data.span_versions import list_feeds
from tasks.judging.golden_set import store_golden_set
from tasks.preflight.checks import check_plan
from tasks.running.stage import run_stage, stage_task, warn_of
from tasks.runs import catalogues, lineage, releases
from tasks.runs.results import UnusableResult, read_result


@stage_task
def validate(plan: RunPlan, catalogue: bool = True) -> ValidateOutcome:
    """Check the rows of every span of the window, write the clean ones, and bring the catalogue up to date.

    Args:
        catalogue: True if items will be embedded; a comparison of two trainings needs no catalogue.

    Raises:
        ConfigError: the settings don't fit these spans or this encoder (`check_plan`), or the file of the golden set
            doesn't exist.
        DataError: a critical check failed, with its numbers in the message; a span lacks a column that the settings
            name; or the golden set can't be used.
    """
    store = open_store(plan.workspace)
    check_plan(store, plan)
    golden = plan.config.evaluate.golden if plan.window else None
    feeds = tuple(list_feeds(store))
    inputs = ValidateInputs(
        window=plan.window,
        history=plan.history,
        feeds=feeds if catalogue else (),
        texts=_texts(store, plan, feeds),
        waiting=_waiting(store, plan),
        bases=catalogues.bases(store, plan) if catalogue else (),
        turn=releases.last(store) if catalogue else 0,
        others=catalogues.others(store, plan) if catalogue and plan.window else (),
        catalogue=catalogue,
        parent=plan.parent,
        kept_out=store_golden_set(store, golden) if golden is not None else None,
    )
    outcome = run_stage(plan, inputs, ValidateOutcome)
    warn_of(outcome.checks)
    return outcome


def _texts(store: Store, plan: RunPlan, feeds: tuple[FeedRef, ...]) -> tuple[FeedRef, ...]:
    """Return the versions of the feed that give texts to rows of ids alone; empty if the window has no such rows.

    A finished stage keeps its own, so that a run which is continued trains on the same texts.
    """
    if not any(has_ids_alone(store, span) for span in plan.window):
        return ()
    with contextlib.suppress(UnusableResult):
        result = read_result(store, plan.run_key, Stage.validate)
        if result is not None and isinstance(result.outcome, ValidateOutcome):
            return result.outcome.texts
    return feeds


def _waiting(store: Store, plan: RunPlan) -> str | None:
    """Return the folder of the rows that wait for their items since the run that made the parent; None if none wait."""
    chain = lineage.newest_first(store, plan.config.lineage) if plan.parent is not None and plan.window else ()
    state = next((state for ref, state in chain if ref == plan.parent), None)
    if state is None:
        return None
    with contextlib.suppress(UnusableResult):
        result = read_result(store, state.run_key, Stage.validate)
        if result is not None and isinstance(result.outcome, ValidateOutcome):
            return result.outcome.waiting
    return None


def catalogue_of(plan: RunPlan, validated: ValidateOutcome) -> CatalogueRef:
    """Return the catalogue that validate built for a run."""
    assert validated.catalogue is not None, f"validate of run {plan.run_key} was not asked for a catalogue"
    return validated.catalogue
