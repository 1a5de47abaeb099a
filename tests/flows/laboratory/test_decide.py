"""`millrace decide` and `millrace goodput` in this process, and the decision on the page of its run."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

import infra.compute.factory
from flows.presentation.run.report import run_html
from infra.store.directory import DirectoryStore
from tasks.planning.next_run import plan_run
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.processes import command
from tests.support.processes.command import Command
from tests.support.workspace.attempts import give_score


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    for number, month in enumerate(("2026-01", "2026-02", "2026-03", "2026-04")):
        ingest(store, month)
        plan = plan_run(store, small_config())
        carry_out(plan)
        if number > 1:
            give_score(store, plan.run_key, month, number, -2.0)
    ingest(store, "2026-05")
    monkeypatch.setenv("MILLRACE_WORKSPACE", store.uri)
    return store


@pytest.fixture
def millrace(capsys: pytest.CaptureFixture[str]) -> Command:
    return functools.partial(command.call, capsys)


def test_a_decision_is_shown_overruled_and_on_the_page_of_the_run(store, millrace):
    shown = millrace("decide")
    assert shown.code == 0, shown.err
    assert "Let 2026-05 wait" in shown.out
    assert "$0.00" not in shown.out  # no price is configured
    made = json.loads(millrace("decide", "--json").out)
    assert made["finding"] == "not worth it"
    assert made["gain"]["low"] < made["gain"]["points"] < made["gain"]["high"] < made["gain"]["needed"] == 0.5
    assert f"{made['gain']['high']:.2f}".lstrip("-") in shown.out
    assert made["gain"]["probability"] < 0.05
    assert (made["action"], made["overruled"], made["options"][0]["dollars"]) == ("refresh", None, None)
    assert millrace("decide", "--overrule", "train").code == 78
    assert "recorded" in millrace("decide", "--overrule", "train", "--reason", "a fair in May").out
    plan = plan_run(store, small_config())
    carry_out(plan)
    page = run_html(store, plan.run_key).decode()
    assert "Train 2026-05" in page
    assert "a fair in May" in page
    assert "at least decide.least_points 0.5" in page  # the rule's own answer stays in sight


def test_goodput_names_the_source_of_each_number(store, millrace):
    shown = millrace("goodput", "--most-nodes", "2", "--hours", "10")
    assert shown.code == 0, shown.err
    assert "arXiv 2407.21783" in shown.out
    assert "price of a node" in " ".join(shown.out.split())
    assert "$" not in shown.out
    found = json.loads(millrace("goodput", "--most-nodes", "3", "--node-hours", "20", "--json").out)
    assert [row["nodes"] for row in found["rows"]] == [1, 2, 3]
    assert found["model"]["node_hours_between"] == {"value": 20.0, "source": "stated"}
