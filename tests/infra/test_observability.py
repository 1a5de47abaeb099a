"""The board and the rules of infra/observability name metrics and labels that Millrace writes, and pages that exist."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from configs.load import load_config
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import FailureClass
from tasks.monitoring.prometheus import metrics_text
from tasks.worker.online.server import Measures
from tests.support.workspace.past import write_run

ROOT = Path(__file__).resolve().parents[2]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((ROOT / "infra/observability/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
BOARD: dict[str, Any] = json.loads((ROOT / "infra/observability/board.json").read_text())
OF_REQUESTS = {"path": "/search", "status": "500"}  # of a server that answered once


def expressions() -> list[str]:
    return [rule["expr"] for rule in RULES] + [
        one["expr"] for panel in BOARD["panels"] for one in panel.get("targets", ())
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Metric]:
    """All that a workspace with releases, a retried run and a failed one says, and a server of queries."""
    store = DirectoryStore(tmp_path_factory.mktemp("workspace"))
    write_run(store, 0)
    write_run(store, 1, retried=FailureClass.HANG)
    write_run(store, 2, "Failed", FailureClass.OOM)
    online = Measures()
    online.requests.labels(**OF_REQUESTS).inc()
    online.seconds.labels(OF_REQUESTS["path"]).observe(0.01)
    texts = (metrics_text(store, dt.datetime(2026, 1, 20, tzinfo=dt.UTC)), generate_latest(online.registry))
    return [family for text in texts for family in text_string_to_metric_families(text.decode())]


def names(family: Metric) -> set[str]:
    endings = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
    return {family.name + ending for ending in endings}


def selectors(expression: str) -> Iterator[tuple[str, str, str, str]]:
    """Metric, label, sign and value of `metric{label=~"value"}`."""
    for metric, inner in re.findall(r"(millrace_\w+)\{([^}]*)\}", expression):
        for label, sign, value in re.findall(r'(\w+)\s*(=~|!=|!~|=)\s*"([^"]*)"', inner):
            yield metric, label, sign, value


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_each_metric_and_label_is_one_that_millrace_writes(written: list[Metric], expression: str) -> None:
    of = {name: family for family in written for name in names(family)}
    asked = set(re.findall(r"\bmillrace_\w+", expression))
    assert asked
    assert asked - of.keys() == set()
    for metric, label, _, value in selectors(expression):
        values = {sample.labels[label] for sample in of[metric].samples if label in sample.labels}
        parts = value.split("|") if value.replace("|", "").isalpha() else [value]
        assert [part for part in parts if not any(re.fullmatch(part, each) for each in values)] == [], (metric, values)
    labels = {label for metric in asked for sample in of[metric].samples for label in sample.labels}
    for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
        assert {each.strip() for each in grouped.split(",")} <= labels, expression
    assert expression.count("(") == expression.count(")")


def test_each_line_of_the_board_is_named_by_labels_that_it_has(written: list[Metric]) -> None:
    of = {name: family for family in written for name in names(family)}
    for panel in BOARD["panels"]:
        for one in panel.get("targets", ()):
            metrics = re.findall(r"\bmillrace_\w+", one["expr"])
            labels = {label for metric in metrics for sample in of[metric].samples for label in sample.labels}
            assert set(re.findall(r"\{\{(\w+)\}\}", one["legendFormat"])) <= labels, panel["title"]


def test_each_rule_says_who_acts_and_leads_to_a_section_of_the_runbook() -> None:
    headings = re.findall(r"^#+ (.*)$", (ROOT / "docs/runbook.md").read_text(), re.M)
    anchors = {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}
    assert len({rule["alert"] for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("page", "ticket")
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/runbook.md"
        assert anchor in anchors, rule["alert"]
        for key in re.findall(r"\b(freshness\.\w+)", rule["annotations"]["summary"]):
            section, _, name = key.partition(".")
            assert name in load_config().tree()[section]


def test_the_watch_writes_the_numbers_more_often_than_they_are_missed() -> None:
    """The rule about old numbers waits for two hours; the watch is hourly."""
    (rule,) = (one for one in RULES if one["alert"] == "MillraceNumbersOld")
    (watch,) = (
        one
        for one in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
        if "flows/watch.py" in one["entrypoint"]
    )
    (schedule,) = watch["schedules"]
    assert schedule["cron"].split()[1:] == ["*", "*", "*", "*"]
    assert int(re.findall(r"> (\d+)", rule["expr"])[0]) == 2 * 3600


def test_panels_of_the_board_do_not_cover_each_other() -> None:
    cells = [
        (x, y)
        for panel in BOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
