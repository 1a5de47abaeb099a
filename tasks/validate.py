"""Stage validate, control side: check the rows of the run's spans, and update the catalogue of all known items."""

from infra.store.factory import open_store
from tasks.contracts.jobs import ValidateInputs
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.references import CatalogueRef
from tasks.contracts.runs import RunPlan
from tasks.data.span_versions import list_feeds
from tasks.planning.golden_set import store_golden_set
from tasks.planning.preflight import check_plan
from tasks.running.stage import run_stage, stage_task, warn_of
from tasks.runs import catalogues


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
    inputs = ValidateInputs(
        window=plan.window,
        history=plan.history,
        feeds=tuple(list_feeds(store)) if catalogue else (),
        bases=catalogues.bases(store, plan) if catalogue else (),
        others=catalogues.others(store, plan) if catalogue and plan.window else (),
        catalogue=catalogue,
        parent=plan.parent,
        kept_out=store_golden_set(store, golden) if golden is not None else None,
    )
    outcome = run_stage(plan, inputs, ValidateOutcome)
    warn_of(outcome.checks)
    return outcome


def catalogue_of(plan: RunPlan, validated: ValidateOutcome) -> CatalogueRef:
    """Return the catalogue that validate built for a run."""
    assert validated.catalogue is not None, f"validate of run {plan.run_key} was not asked for a catalogue"
    return validated.catalogue
