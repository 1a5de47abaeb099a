"""`millrace hosts`, `jobs`, `reap` and `prune`: exclude hosts, list and end jobs, delete folders."""

import datetime as dt
import os
import time
from typing import Annotated, Literal

import typer
from pydantic import Field

import infra.compute.batch.end_jobs
import infra.compute.batch.listing
import tasks.prune.prune
import tasks.runs.host_records
from configs.schema.operations import PruneConfig
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.cli.terminal.options import RunOptions
from flows.presentation.model import Parts, table
from flows.presentation.pruning import section
from flows.presentation.wording import NONE, dollars, duration, moment
from infra import prefect_server
from infra.compute.batch.end_jobs import ReapReport
from infra.compute.batch.listing import JobsReport
from infra.store.base import Store
from tasks.contracts.pruning import PrunePlan
from tasks.foundation.records import Record
from tasks.runs.audit import audited
from tasks.runs.host_records import HostRecord, Strike


class StrikeLine(Record):
    at: str
    run_key: str
    reason: str


class HostLine(Record):
    """One host that is excluded or suspected now."""

    host: str
    state: Literal["suspected", "excluded"]
    until: str = Field(description="time at which the exclusion, or the last strike, expires")
    reason: str = Field(description="reason of the exclusion, or of the last strike")
    run_key: str = Field(description="key of the run that found it")
    strikes: tuple[StrikeLine, ...]


class HostsOutput(Record):
    """`millrace hosts`."""

    forgiven: str | None = Field(description="host that was forgiven now; null: none")
    hosts: tuple[HostLine, ...]


def hosts_page(output: HostsOutput) -> Parts:
    """Yield a row for each host."""
    if output.forgiven is not None:
        yield f"forgiven: {output.forgiven}"
    if not output.hosts:
        yield "no host is excluded or suspected"
        return
    rows = [(h.host, h.state, str(len(h.strikes)), moment(h.until), h.run_key, h.reason) for h in output.hosts]
    yield table("", ("host", "state", ">strikes", "until", "run", "~why"), rows)


@command(hosts_page)
def hosts(
    store: Store,
    forgive: Annotated[str | None, typer.Option(help="Forget the record of this host, after a repair.")] = None,
) -> HostsOutput:
    """List hosts that are excluded or suspected, and why."""
    if forgive is not None:
        tasks.runs.host_records.forgive(store, forgive)
    now = time.time()
    live = (record.live(now) for record in tasks.runs.host_records.known_hosts(store))
    return HostsOutput(forgiven=forgive, hosts=tuple(line for record in live if (line := _line(record)) is not None))


def jobs_page(report: JobsReport) -> Parts:
    """Yield a row for each job, then a sentence about each that takes too long."""
    if not report.jobs:
        queues = " and ".join(report.queues)
        yield f"no job on {queues}" if queues else "no job: with these settings no stage runs on AWS Batch"
        return
    rows = [
        (
            each.job,
            f"{each.stage} {each.attempt}",
            each.run_key,
            each.status,
            each.machines or NONE,
            duration(each.seconds),
            duration(each.planned_seconds),
            dollars(each.dollars),
        )
        for each in report.jobs
    ]
    columns = ("job", "attempt", "run", "status", "machines", ">on machines", ">planned", ">cost")
    yield table("", columns, rows)
    yield from (each.sentence for each in report.jobs if each.beyond)


@command(jobs_page, new=True)
def jobs(options: RunOptions) -> JobsReport:
    """List the workspace's jobs on AWS Batch with their time and dollars until now, beside the run's plan."""
    return infra.compute.batch.listing.list_jobs(options.store, options.config())


def reap_page(report: ReapReport) -> Parts:
    """Yield a row for each job."""
    if not report.jobs:
        queues = " and ".join(report.queues)
        yield f"no job on {queues}" if queues else "no job: with these settings no stage runs on AWS Batch"
        return
    rows = [(job.job, job.name, job.status, job.action, job.why) for job in report.jobs]
    yield table("", ("job", "name", "status", "action", "~why"), rows)


@command(reap_page, new=True)
def reap(
    options: RunOptions,
    grace_minutes: Annotated[float, typer.Option(help="End jobs after this time without a waiting process.")] = 15.0,
    dry_run: Annotated[bool, typer.Option(help="Only list the jobs.", show_default=False)] = False,
) -> ReapReport:
    """End jobs on AWS Batch whose flow run has ended or was lost."""
    config, server = options.config(), prefect_server.running(prefect_server.state_home())
    if server is not None:
        os.environ.update(prefect_server.client_environment(server))
    return infra.compute.batch.end_jobs.reap(
        options.store, config, grace_minutes, dry_run, ask_prefect=server is not None
    )


def prune_page(plan: PrunePlan) -> Parts:
    """Return the folders, largest first, the total by kind, and which releases can still serve."""
    made = section(plan)
    return (*made.tables, *made.lines)


@command(prune_page)
def prune(
    options: RunOptions,
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Keep this many newest releases and no older ones; default: the settings of prune."),
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only list the folders.", show_default=False)] = False,
) -> PrunePlan:
    """Delete models, vectors, catalogues and checkpoints that nothing needs any more. Records stay."""
    policy = options.config().prune if keep is None else PruneConfig.newest(keep)
    if dry_run:
        return tasks.prune.prune.prune(options.store, policy, dry_run, note)
    with audited(options.store, "prune", keep=keep):
        return tasks.prune.prune.prune(options.store, policy, dry_run, note)


def _line(record: HostRecord) -> HostLine | None:
    """Return None if all its records have expired."""
    latest = record.exclusion or max(record.strikes, key=lambda strike: strike.until, default=None)
    if latest is None:
        return None
    return HostLine(
        host=record.host,
        state="excluded" if record.exclusion else "suspected",
        until=_iso(latest.until),
        reason=latest.reason,
        run_key=latest.run_key,
        strikes=tuple(map(_strike, record.strikes)),
    )


def _strike(strike: Strike) -> StrikeLine:
    return StrikeLine(at=_iso(strike.at), run_key=strike.run_key, reason=strike.reason)


def _iso(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()
