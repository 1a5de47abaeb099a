"""What became of a run, told from the workspace alone: Prefect's records may be gone, this stays."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from infra.store import Store
from tasks import gates, ledger, lineage, releases
from tasks.contracts import InferOutcome, RunPlan, Stage, Verdict
from tasks.plan import read_plan
from tasks.records import Record
from tasks.results import read_judgement, read_result, result_key
from tasks.spans import first_day


class RunReport(Record):
    """One run as people and scripts see it. What the run has not come to yet is null."""

    version: Literal[1] = 1
    run_key: str
    span: str
    lineage: str
    state: Literal["Released", "Rejected", "Unfinished"]
    verdicts: tuple[Verdict, ...]
    metrics: dict[str, float] | None
    champion: dict[str, float] | None = Field(description="the champion's metrics on the same rows")
    champion_version: str | None
    model_version: str | None = Field(description="of the release")
    release: int | None
    vectors: int | None
    seconds: float = Field(description="wall time of all attempts of all stages")
    cost: float = Field(description="dollars, for the same")
    cached: tuple[Stage, ...] = Field(description="stages that were done before the invocation reported on")

    @property
    def why(self) -> str:
        """The sentences of the gates that refused."""
        return " ".join(verdict.sentence for verdict in self.verdicts if gates.refused([verdict]))


def run_report(store: Store, plan: RunPlan, since: str | None = None) -> RunReport:
    """The report on one run; `since` is when the invocation began (see `ledger.now`), null for all of them.

    Raises:
        StoreError: a record of the run is not readable; names the file.
    """
    judged = read_judgement(store, plan.run_key)
    inferred = read_result(store, plan.run_key, Stage.infer)
    release = next((release for release in releases.history(store) if release.run_key == plan.run_key), None)
    attempts = ledger.records(store, plan.run_key)
    ran = {record.stage for record in attempts if since is None or record.started_at >= since}
    state = "Unfinished"
    if release is not None:
        state = "Released"
    elif judged is not None and gates.refused(judged.verdicts):
        state = "Rejected"
    return RunReport(
        run_key=plan.run_key,
        span=plan.span.name,
        lineage=plan.config.lineage,
        state=state,
        verdicts=judged.verdicts if judged else (),
        metrics=judged.outcome.challenger if judged else None,
        champion=judged.outcome.champion if judged else None,
        champion_version=judged.outcome.champion_version if judged else None,
        model_version=release.model.version if release else None,
        release=release.number if release else None,
        vectors=inferred.outcome.vectors if inferred and isinstance(inferred.outcome, InferOutcome) else None,
        seconds=round(sum(record.wall_seconds for record in attempts), 3),
        cost=sum(record.cost for record in attempts),
        cached=tuple(s for s in Stage if s not in ran and store.exists(result_key(plan.run_key, s))),
    )


def all_reports(store: Store) -> list[RunReport]:
    """A report on every run of the workspace, by span.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    keys = [key.split("/")[1] for key in store.list("runs") if key.endswith("/plan.json")]
    reports = [run_report(store, read_plan(store, key)) for key in keys]
    return sorted(reports, key=lambda report: (report.lineage, first_day(report.span), report.run_key))


def unfinished_before(store: Store, plan: RunPlan) -> str | None:
    """The span of the run that made the plan's parent, if that run has neither released nor rejected its model."""
    state = next((s for ref, s in lineage.completed(store, plan.config.lineage) if ref == plan.parent), None)
    if state is None or not state.consumed:  # imported weights: no run made them
        return None
    before = read_plan(store, state.run_key)
    return before.span.name if run_report(store, before).state == "Unfinished" else None
