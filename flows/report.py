"""The pipeline's history as a flow, to be deployed on a schedule: the page and the numbers that others scrape."""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.artifacts import create_link_artifact, create_markdown_artifact

from configs.load import load_config
from flows.parameters import Overrides, Place, Workspace
from flows.reports.history_page import HISTORY_KEY, MOST_ROWS, page
from flows.reports.wording import dollars, duration, moment, now, share
from infra.store import open_store
from tasks.exposition import METRICS_KEY, exposed
from tasks.history import History, age_seconds, read_history
from tasks.records import Record
from tasks.sinks import logger


class Written(Record):
    """Keys of the workspace."""

    history: str
    metrics: str


@flow(name="report", flow_run_name="history")
def report(workspace: Workspace, place: Place = "", overrides: Overrides = ()) -> Written:
    """Write the history of all runs, as a page and as numbers for Prometheus, into the workspace.

    Args:
        workspace: where spans, runs and releases lie; a local directory or s3://bucket/prefix.
        place: path of a YAML file of settings for this place; its links.reports is where the page is served.
        overrides: single settings over it, as in links.reports=https://reports.example.com.

    Raises:
        ConfigError: the settings are wrong.
        StoreError: the workspace could not be read or written.
    """
    config = load_config(Path(place) if place else None, overrides)
    store, at = open_store(workspace), now()
    past = read_history(store)
    store.write(HISTORY_KEY, page(store.uri, past, at))
    store.write(METRICS_KEY, exposed(store, past, at))
    for problem in past.problems:
        logger().warning("left out: %s", problem)
    about = f"{store.uri}/{HISTORY_KEY}"
    if config.links.reports:
        address = f"{config.links.reports.rstrip('/')}/"
        create_link_artifact(key="history", link=address, link_text="History of all runs", description=about)
    create_markdown_artifact(key="history-numbers", markdown=markdown(past, store.uri), description=about)
    return Written(history=HISTORY_KEY, metrics=METRICS_KEY)


def markdown(past: History, workspace: str) -> str:
    """The numbers that matter, for the UI."""
    succeeded, over = past.judged_runs
    summed, age = past.totals, age_seconds(past.current, now())
    last = past.last
    facts = {
        "Current release": f"{past.current.number}, span {past.current.span.name}" if past.current else "none yet",
        "Newest released data": f"{duration(age)} old" if age is not None else "nothing is released",
        "Runs that came to a result": f"{succeeded} of {over}",
        "Goodput": share(summed.goodput),
        "Cost": dollars(summed.cost),
        "Last run": f"{last.span}, {last.state}, begun {moment(last.began_at)}" if last else "none yet",
    }
    lines = ["# History", "", "| | |", "| --- | --- |", *(f"| {name} | {told} |" for name, told in facts.items())]
    lines += ["", f"The page, with the newest {MOST_ROWS} runs: `{workspace}/{HISTORY_KEY}`"]
    return "\n".join(lines)
