"""What the catalogue of a run is made of, apart from its own rows: item feeds, and earlier catalogues to build on."""

from infra.store.base import Store
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.references import CatalogueRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.runs import lineage, releases
from tasks.runs.results import UnusableResult, read_result


def bases(store: Store, plan: RunPlan) -> tuple[CatalogueRef, ...]:
    """Return earlier catalogues, best first: that of the current release, and that of the run that made the parent."""
    found = []
    serving = releases.current(store)
    if serving is not None and serving.catalogue is not None:
        found.append(serving.catalogue)
    states = (state for ref, state in lineage.completed(store, plan.config.lineage) if ref == plan.parent)
    if (state := next(states, None)) is not None and (own := of_run(store, state.run_key)) is not None:
        found.append(own)
    return tuple(dict.fromkeys(found))


def of_run(store: Store, run_key: str) -> CatalogueRef | None:
    """Return the catalogue that a run built; None where it built none."""
    try:
        result = read_result(store, run_key, Stage.validate)
    except UnusableResult:
        return None
    return result.outcome.catalogue if result and isinstance(result.outcome, ValidateOutcome) else None
