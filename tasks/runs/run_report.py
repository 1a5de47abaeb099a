"""The report on a run, from the workspace alone: it stays when Prefect's records are gone."""

from typing import Literal

from pydantic import Field

from infra.store.base import Store
from tasks.contracts.evaluation import Override, Verdict, refusals
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.runs import Release, RunPlan, RunState
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.foundation.records import Record
from tasks.runs import ledger, lineage, releases
from tasks.runs.plan import planned_runs, read_plan
from tasks.runs.results import read_judgement, read_result
from tasks.runs.run_state import reached_state, run_state


class RunReport(Record):
    """One run as people and scripts see it. What the run has not reached is null."""

    version: Literal[1] = 1
    run_key: str
    span: str
    lineage: str
    state: RunState = Field(description="Released, Rejected or Unfinished")
    verdicts: tuple[Verdict, ...]
    overrides: tuple[Override, ...] = Field(
        default=(), description="decisions of people to release although gates refused"
    )
    metrics: dict[str, float] | None
    holdout_rows: int | None = Field(default=None, description="rows of the holdout that the metrics are computed over")
    sampled_from: int | None = Field(
        default=None, description="rows of the holdout that these were sampled from; null: all were measured"
    )
    items: int | None = Field(default=None, description="items that each row's own item is searched among")
    champion: dict[str, float] | None = Field(description="metrics of the champion on the same rows")
    champion_version: str | None = Field(description="model version of the champion; null before the first release")
    model_version: str | None = Field(description="model version of the release")
    release: int | None = Field(description="number of the release; null for a rejected model")
    vectors: int | None = Field(description="vectors of the release")
    seconds: float = Field(description="wall time of all attempts of all stages, in seconds")
    cost: float = Field(description="cost of all attempts of all stages, in dollars")
    cached: tuple[Stage, ...] = Field(description="stages that were done before this invocation")

    @property
    def why(self) -> str:
        """The sentences of the gates that refused."""
        return " ".join(refusals(self.verdicts))


def run_report(store: Store, plan: RunPlan, since: str | None = None) -> RunReport:
    """Return the report on one run; `since` is the begin of the invocation, None for all invocations.

    Raises:
        StoreError: a record of the run is not readable; names the file.
    """
    return _report(store, plan, releases.of_run(store, plan.run_key), releases.held(store), since)


def _report(
    store: Store, plan: RunPlan, release: Release | None, held: frozenset[int], since: str | None = None
) -> RunReport:
    judged = read_judgement(store, plan.run_key)
    inferred = read_result(store, plan.run_key, Stage.infer)
    attempts = ledger.records(store, plan.run_key)
    ran = {record.stage for record in attempts if since is None or record.started_at >= since}
    return RunReport(
        run_key=plan.run_key,
        span=plan.span.name,
        lineage=plan.config.lineage,
        state=run_state(release is not None, judged, held=release is not None and release.number in held),
        verdicts=judged.all_verdicts if judged else (),
        overrides=judged.overrides if judged else (),
        metrics=judged.outcome.challenger if judged else None,
        holdout_rows=judged.outcome.holdout_rows if judged else None,
        sampled_from=judged.outcome.sampled_from if judged else None,
        items=judged.outcome.ranked_among if judged else None,
        champion=judged.outcome.champion if judged else None,
        champion_version=judged.outcome.champion_version if judged else None,
        model_version=release.model.version if release else None,
        release=release.number if release else None,
        vectors=inferred.outcome.vectors if inferred and isinstance(inferred.outcome, InferOutcome) else None,
        seconds=round(sum(record.wall_seconds for record in attempts), 3),
        cost=sum(record.cost for record in attempts),
        cached=tuple(s for s in Stage if s not in ran and store.exists(RESULT.key(run=plan.run_key, stage=s))),
    )


def all_reports(store: Store) -> list[RunReport]:
    """Return a report on every run of the workspace, by span.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    by_run = {release.run_key: release for release in releases.history(store)}
    held = releases.held(store)
    reports = [_report(store, read_plan(store, key), by_run.get(key), held) for key in planned_runs(store)]
    return sorted(reports, key=lambda report: (report.lineage, first_day(report.span), report.run_key))


def unfinished_before(store: Store, plan: RunPlan) -> str | None:
    """Return the span of the run that made the plan's parent, if that run neither released nor rejected its model."""
    state = next((s for ref, s in lineage.completed(store, plan.config.lineage) if ref == plan.parent), None)
    if state is None or not state.consumed:  # imported weights: no run made them
        return None
    if reached_state(store, state.run_key) is not RunState.UNFINISHED:
        return None
    return read_plan(store, state.run_key).span.name
