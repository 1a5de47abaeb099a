"""The pipeline's history as a scheduled flow: pages and an artifact."""

import datetime as dt
import importlib

from prefect import flow
from prefect.artifacts import create_link_artifact, create_markdown_artifact
from pydantic import Field

from configs.load import load_config
from flows.orchestration.janitors import LONGEST_SECONDS, newest_only
from flows.orchestration.parameters import ConfigFile, Overrides, Workspace
from flows.presentation import html, markdown
from flows.presentation.history.page import page, summary
from flows.presentation.model import HISTORY_KEY, Cell
from flows.presentation.search import FURTHER, LINEAGES
from flows.presentation.wording import now
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.workspace import LINEAGES_PAGE
from tasks.data.span_versions import note_all
from tasks.foundation.records import Record
from tasks.monitoring.history import History, read_history
from tasks.monitoring.work_sums import sum_up, sum_up_lost
from tasks.running.stage_output import logger
from tasks.runs.snapshot import Snapshot, pack_runs


class Written(Record):
    """Keys of the written files in the workspace."""

    history: str
    lineages: str | None = Field(description="null: the laboratory was deleted, which draws them")


@flow(name="report", flow_run_name="history", timeout_seconds=LONGEST_SECONDS)
@newest_only
def report(workspace: Workspace, config_file: ConfigFile = "", overrides: Overrides = ()) -> Written:
    """Write the history of all runs, as two pages, into the workspace.

    Args:
        workspace: storage of spans, runs and releases; a local directory or s3://bucket/prefix.
        config_file: a YAML file with settings that override base.yaml; its path on the worker.
        overrides: single settings over both, as in links.reports=https://reports.example.com.

    Raises:
        ConfigError: the settings are wrong.
        StoreError: the workspace could not be read or written.
    """
    config = load_config(config_file, overrides)
    store, at = open_store(workspace), now()
    pack_runs(store)
    sum_up(store)
    note_all(store)
    past, written = write_pages(store, at)
    for problem in past.problems:
        logger().warning("left out: %s", problem)
    about = f"{store.uri}/{HISTORY_KEY}"
    if config.links.reports:
        address = f"{config.links.reports.rstrip('/')}/"
        create_link_artifact(key="history", link=address, link_text="History of all runs", description=about)
    create_markdown_artifact(
        key="history-numbers", markdown=markdown.page(summary(past, at), store.uri), description=about
    )
    return written


def write_pages(store: Store, at: dt.datetime) -> tuple[History, Written]:
    """Write the pages as of a time; return the past that they show, and their keys.

    Raises:
        StoreError: the workspace could not be read or written.
    """
    snapshot = Snapshot(store)
    past = read_history(snapshot)
    sum_up_lost(store, (release.number for release in past.releases), past.newest_release)
    lineages = LINEAGES_PAGE.key() if LINEAGES in FURTHER else None
    near = (Cell("Lineages", key=lineages),) if lineages is not None else ()
    store.write(HISTORY_KEY, html.render(page(store.uri, past, at)._replace(near=near)))
    if lineages is not None:
        drawing = importlib.import_module(FURTHER[LINEAGES])
        near = (Cell("History of all runs", key=HISTORY_KEY),)
        store.write(LINEAGES_PAGE.key(), drawing.lineages_page(store.uri, snapshot, past, near))
    return past, Written(history=HISTORY_KEY, lineages=lineages)
