"""Where things lie and what to open next: the page that a run begins with, and the links on all other pages."""

from __future__ import annotations

import datetime as dt
import shlex
from pathlib import Path
from urllib.parse import quote

from prefect.artifacts import create_markdown_artifact

from flows.pages.markdown import Markup, bold, code, commands, counted, link, table
from tasks.contracts import RunPlan, Stage, stage_prefix
from tasks.invocations import Invocation
from tasks.sinks import logger


def links(plan: RunPlan, invocation: Invocation) -> None:
    """Make the page of a run that begins, of the flow run in which this is called; a failure to is a warning."""
    try:
        create_markdown_artifact(
            key=f"run-{plan.config.lineage}",
            markdown=page(plan, invocation),
            description=f"span {plan.span.name}, attempt {invocation.number}: report, TensorBoard, workspace",
        )
    except Exception as error:  # a run is not kept from its work by a page
        logger().warning("the page of links could not be made: %s", error)


def page(plan: RunPlan, invocation: Invocation) -> str:
    """Report, curves and files of a run; what it starts from and when it should be over."""
    history = [rows.span.name for rows in plan.history]
    rows = [
        ("report", report(plan)),
        ("TensorBoard", tensorboard(plan)),
        ("workspace", place(plan.workspace)),
        ("this run's files", place(plan.workspace, f"runs/{plan.run_key}")),
        ("run key", code(plan.run_key)),
        ("trains on", ", ".join(f"{span.name} v{span.version}" for span in plan.window)),
        ("starts from", _start(plan)),
        ("trained before", f"{counted(len(history), 'span')}, the last {history[-1]}" if history else "nothing"),
        ("scheduled", _moment(invocation.scheduled_at) or "by hand"),
        ("began", _moment(invocation.began_at)),
        ("expected to end", _expected_end(invocation)),
        ("late after", _moment(invocation.deadline)),
    ]
    lines = [
        f"# {plan.span.name} attempt {invocation.number}",
        "",
        f"Lineage {bold(plan.config.lineage)}, pipeline {bold(plan.config.pipeline)}.",
        "",
        *table(("", "what"), rows),
        "What has become of it, told from the workspace:",
        "",
        *commands(f"millrace report --run {plan.run_key} --workspace {shlex.quote(plan.workspace)}"),
    ]
    if plan.config.links.tensorboard is None:
        lines += ["TensorBoard over all attempts of its training:", "", *commands(_tensorboard(plan))]
    return "\n".join(lines)


def report(plan: RunPlan) -> Markup:
    """The run's report: its address where one is configured, else the file."""
    key = f"runs/{plan.run_key}/report.html"
    if plan.config.links.reports is None:
        return place(plan.workspace, key)
    return link("report of the run", f"{plan.config.links.reports.rstrip('/')}/{key}")


def tensorboard(plan: RunPlan) -> Markup:
    """TensorBoard's address where one is configured, else what it is to be started on."""
    if plan.config.links.tensorboard is None:
        return place(plan.workspace, stage_prefix(plan.run_key, Stage.train))
    return link("TensorBoard", plan.config.links.tensorboard)


def place(workspace: str, key: str = "") -> Markup:
    """What lies under `key`: a path; in a bucket a link to AWS's console. A browser opens no path from a page."""
    uri = f"{workspace}/{key}" if key else workspace
    scheme, separator, rest = workspace.partition("://")
    if not separator or scheme != "s3":
        return code(uri)
    bucket, _, prefix = rest.partition("/")
    inside = "/".join(part for part in (prefix.strip("/"), key) if part)
    kind, end = ("object", "") if Path(key).suffix in (".json", ".html", ".parquet", ".svg") else ("buckets", "/")
    address = f"https://s3.console.aws.amazon.com/s3/{kind}/{bucket}?prefix={quote(inside + end if inside else '')}"
    return link(uri, address)


def _start(plan: RunPlan) -> Markup:
    if plan.parent is None:
        return Markup("nothing: it begins the lineage")
    return Markup(f"{place(plan.workspace, plan.parent.prefix)}, step {plan.parent.step}")


def _tensorboard(plan: RunPlan) -> str:
    return f"tensorboard --logdir {shlex.quote(f'{plan.workspace}/{stage_prefix(plan.run_key, Stage.train)}')}"


def _expected_end(invocation: Invocation) -> str:
    if invocation.expected_seconds is None:
        return "not known: no run like it is on record"
    began = dt.datetime.fromisoformat(invocation.began_at)
    return _moment((began + dt.timedelta(seconds=invocation.expected_seconds)).isoformat())


def _moment(iso: str | None) -> str:
    """To the second, in UTC as everything on record is."""
    if iso is None:
        return ""
    return dt.datetime.fromisoformat(iso).astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
