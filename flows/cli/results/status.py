"""What `millrace status` prints, as a record: the spans, the lineages, the current release, all attempts summed up."""

from pydantic import Field

import tasks.runs.releases
from infra.store.base import Store
from infra.store.manifest import read_fact
from tasks.contracts.runs import Hold, Release, RunState
from tasks.contracts.spans import first_day
from tasks.data import span_versions
from tasks.foundation.records import Record
from tasks.planning.skips import skips
from tasks.planning.start import consumed
from tasks.runs import branches, ledger, lineage
from tasks.runs.ledger import Totals
from tasks.runs.plan import read_plan
from tasks.runs.results import vectors_made
from tasks.runs.run_report import all_reports
from tasks.targets.served import Served, of_all_targets


class SpanRun(Record):
    run_key: str
    version: int = Field(description="of the span that it trained")
    lineage: str
    state: RunState
    release: int | None = Field(description="number of the release that it made")


class SpanStatus(Record):
    """The latest version of one span."""

    name: str
    version: int
    rows: int
    trained: tuple[str, ...] = Field(description="lineages that have trained this version of the span")
    runs: tuple[SpanRun, ...] = Field(description="runs that ended with this span, in any version")
    skipped: dict[str, str] = Field(description="lineages that leave this version out, and why")


class LineageStatus(Record):
    """The last completed checkpoint of a lineage."""

    name: str
    span: str | None = Field(description="the newest span in the weights; null: imported, and not trained on yet")
    step: int
    checkpoint: str
    run_key: str


class StatusOutput(Record):
    """`millrace status`."""

    workspace: str
    spans: tuple[SpanStatus, ...]
    lineages: tuple[LineageStatus, ...]
    release: Release | None = Field(description="the current one")
    hold: Hold | None = Field(description="while there is one, no run or refresh changes what serves")
    targets: tuple[Served, ...] = Field(description="what each target served when it was last published to or checked")
    totals: Totals = Field(description="sums over all attempts that have ended")


def workspace_status(store: Store) -> StatusOutput:
    """Return the state of the workspace. Raises StoreError: a record is not readable; names the file."""
    reports = all_reports(store)
    names = sorted({key.split("/")[1] for key in store.list("lineages")})
    last = {name: lineage.head(store, name) for name in names}
    # A branch that was begun and not trained has only what it inherits.
    heads = {name: head for name, head in last.items() if head and head[0].prefix.startswith(f"lineages/{name}/")}
    seen = {name: consumed(head) for name, head in heads.items()}
    left_out = {name: skips(store, name) for name in names if branches.branch_of(store, name) is None}
    versions = {report.run_key: read_plan(store, report.run_key).span.version for report in reports}
    return StatusOutput(
        workspace=store.uri,
        spans=tuple(
            SpanStatus(
                name=span.name,
                version=span.version,
                rows=read_fact(store, span.prefix, "rows", int),
                trained=tuple(name for name in heads if span in seen[name]),
                runs=tuple(
                    SpanRun(
                        run_key=r.run_key,
                        version=versions[r.run_key],
                        lineage=r.lineage,
                        state=r.state,
                        release=r.release,
                    )
                    for r in reports
                    if r.span == span.name
                ),
                skipped={name: found[span].reason for name, found in left_out.items() if span in found},
            )
            for span in span_versions.list_spans(store)
        ),
        lineages=tuple(
            LineageStatus(
                name=name,
                span=max((rows.span.name for rows in state.consumed), key=first_day, default=None),
                step=ref.step,
                checkpoint=ref.prefix,
                run_key=state.run_key,
            )
            for name, (ref, state) in heads.items()
        ),
        release=tasks.runs.releases.current(store),
        hold=tasks.runs.releases.hold_of(store),
        targets=of_all_targets(store),
        totals=ledger.totals(ledger.records(store), vectors_made(store)),
    )
