"""One fact has one value: each command and page shows the same state, recall, cost and age target of a run or release.

A surface that computes such a fact by itself, or by other settings, fails here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from flows.cli.serving.pages import Pages
from flows.orchestration.run_end import ended
from flows.presentation import markdown
from flows.presentation.model import ended_as
from flows.presentation.run.pages import stage_page
from flows.presentation.wording import ON_HOLDOUT, SIGNS, dollars, duration, number
from infra.store.directory import DirectoryStore
from tasks.contracts.kinds import REFRESH
from tasks.contracts.stages import Stage
from tasks.foundation.clock import old
from tasks.foundation.errors import FailureClass
from tasks.monitoring.history import read_history
from tasks.runs import releases
from tasks.runs.plan import save_plan
from tasks.runs.releases import CURRENT, Pointer
from tasks.runs.run import Run, read_run
from tasks.runs.snapshot import Snapshot
from tests.support.pages.shown import Page, tables
from tests.support.processes import command
from tests.support.workspace.past import End, settings, week, write_run

ENDS: dict[int, tuple[End, FailureClass | None]] = {
    2: ("Rejected", None),
    3: ("Failed", FailureClass.OOM),
    4: ("Cancelled", FailureClass.CANCELLED),
    6: ("Running", None),  # no process holds its lineage: it was killed
}
STATES = ("Released", "Released", "Rejected", "Failed", "Cancelled", "Released", "Lost")
TARGET_HOURS = 1000.0
METRIC = "recall@10"
RELEASES = {0: 1, 1: 2, 5: 3}  # by number of the run


class Shown(NamedTuple):
    """All surfaces of one workspace, each read once."""

    store: DirectoryStore
    keys: tuple[str, ...]
    json: dict[str, Any]  # by command
    text: dict[str, str]
    pages: dict[str, Page]  # by path below `millrace serve`
    metrics: dict[tuple[str, str], float]  # by name and label values

    def run(self, at: int) -> Run:
        return read_run(Snapshot(self.store), self.keys[at])

    def line(self, command: str, words: str) -> str:
        """The first line of a command's text with these words."""
        return next(line for line in self.text[command].splitlines() if words in line)

    def rows(self, first: str, path: str = "/history") -> list[list[str]]:
        """The rows with this first cell in the tables of a page."""
        return [row for row in self.pages[path].rows if row and row[0] == first]

    def run_row(self, at: int) -> list[str]:
        """The row of a run in the history's table of runs, the only one with reasons."""
        rows = self.pages["/history"].rows
        begin = next(number for number, row in enumerate(rows) if row[-1] == "why")
        return next(row for row in rows[begin:] if row[0] == week(at))

    def report(self, at: int) -> Page:
        return self.pages[f"/runs/{self.keys[at]}/report.html"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    """Three releases and a refresh, and a run of each other end; the last one has another target of the age."""
    store = DirectoryStore(tmp_path_factory.mktemp("one") / "workspace")
    config = settings(f"freshness.target_hours={TARGET_HOURS}")
    for at in range(len(STATES)):
        write_run(store, at, *ENDS.get(at, ("Released", None)), config=config if at == len(STATES) - 1 else None)
    served = releases.read(store, 3)
    key = f"{REFRESH}0123456789abcdef"
    refresh = served.model_copy(update={"number": 4, "previous": 3, "refreshed": 3, "run_key": key})
    plan = Run(Snapshot(store), served.run_key).plan
    assert plan is not None
    save_plan(store, plan.model_copy(update={"run_key": key}))
    store.write("releases/4.json", refresh.to_json())
    store.write(CURRENT, Pointer(release=4).to_json())
    return store


@pytest.fixture
def shown(store: DirectoryStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shown:
    monkeypatch.setenv("COLUMNS", "200")
    keys = tuple(run.run_key for run in read_history(Snapshot(store)).runs)

    def called(*arguments: str) -> command.CommandResult:
        return command.call(capsys, *arguments, "--workspace", store.uri)

    commands = {"status": ["status"], "history": ["history"], "ledger": ["history", "--ledger"],
                "freshness": ["freshness"], "releases": ["releases"]}  # fmt: skip
    commands |= {f"report {at}": ["report", "--run", key] for at, key in enumerate(keys)}
    served = Pages(store)
    paths = ["/history", "/releases", *(f"/runs/{key}/report.html" for key in keys)]
    found = {path: served.page(path) for path in [*paths, "/metrics"]}
    metrics = {}
    for family in text_string_to_metric_families(((body := found.pop("/metrics")) and body.body.decode()) or ""):
        for sample in family.samples:
            metrics[sample.name, " ".join(sample.labels.values())] = sample.value
    return Shown(
        store,
        keys,
        {name: called(*words, "--json").json for name, words in commands.items()},
        {name: called(*words).out for name, words in commands.items()},
        {path: Page(one.body) for path, one in found.items() if one is not None},
        metrics,
    )


def one(values: Mapping[str, Any]) -> Any:
    """The value that all surfaces show."""
    assert len(set(values.values())) == 1, f"surfaces differ: {dict(values)}"
    return next(iter(values.values()))


def test_a_run_has_one_state(shown: Shown) -> None:
    runs_of_status = {run["run_key"]: run for span in shown.json["status"]["spans"] for run in span["runs"]}
    spans_of_freshness = {row["span"]: row["state"] for row in shown.json["freshness"]["spans"]}
    for at, state in enumerate(STATES):
        values = {
            "run": shown.run(at).state.value,
            "status": runs_of_status[shown.keys[at]]["state"],
            "history": shown.json["history"]["runs"][at]["state"],
            "ledger": shown.json["ledger"]["runs"][at]["state"],
            "freshness": spans_of_freshness[week(at)],
            "report": shown.json[f"report {at}"]["report"]["state"],
        }
        assert one(values) == state
        sign, words = SIGNS[state][0], ended_as(state, RELEASES.get(at), ENDS.get(at, ("", None))[1])
        texts = {
            "status": shown.line("status", f"{week(at)} ").rstrip().split("  ")[-1],
            "history": " ".join(shown.line("history", shown.keys[at]).split()[3 : 3 + len(words.split())]),
            "report": shown.text[f"report {at}"].splitlines()[0].partition(f"{week(at)}  {sign} ")[2].strip(),
            "report page": shown.report(at).text.partition(f" {week(at)} {sign} ")[2][: len(words)],
            "history page": shown.run_row(at)[1].removeprefix(f"{sign} "),
        }
        assert one(texts) == words
        assert f"{sign} {state}" in {row[1] for row in shown.rows(week(at))}, "the table of spans"
    for state in set(STATES):
        assert shown.metrics["millrace_runs", state.lower()] == STATES.count(state)
    (last,) = (labels for name, labels in shown.metrics if name == "millrace_last_run_info")
    assert {shown.keys[-1], week(6), "lost"} <= set(last.split())
    in_prefect = [ended(shown.run(at)) for at in (0, 2)]
    assert [(each.name, each.message.split(",")[0]) for each in in_prefect] == [
        ("Released", "Released as 1"),
        ("Rejected", "Rejected"),
    ]


def test_a_release_has_one_recall(shown: Shown) -> None:
    """The refresh has the model of release 3, so its recall too."""
    for at, release in (*RELEASES.items(), (5, 4)):
        run = shown.run(at)
        stage = (
            stage_page(shown.store, run.plan, Stage.release, releases.read(shown.store, release)) if run.plan else None
        )
        assert stage is not None
        facts = {row[0]: row[1] for table in tables(markdown.page(stage, "")) for row in table}
        made = {one["release"]: one for one in shown.json["history"]["releases"]}
        sources = {
            "releases": shown.json["releases"]["releases"][release - 1],
            "history": shown.json["history"]["runs"][at],
            "history, releases": made[release],
        }
        values = {name: number(source["metrics"][METRIC]) for name, source in sources.items()} | {
            "report": number(shown.json[f"report {at}"]["report"]["metrics"][METRIC]),
            "report page, tile": shown.report(at).text.partition(f" {METRIC} ")[2][:6],
            "release in Prefect": facts[f"{METRIC} {ON_HOLDOUT}"],
        }
        if release == 4:
            values["metrics"] = number(shown.metrics["millrace_release_quality", f"{METRIC} all"])
        one(values)
        of_page = {
            row[0].strip(" ✓").removesuffix(", serves"): row for row in shown.pages["/history"].rows if len(row) == 7
        }
        of_releases = next(row for row in shown.pages["/releases"].rows if row and row[0] == str(release))
        in_terminal = re.findall(r"(\S+) \(\S+ to \S+\)", shown.line("history", shown.keys[at]))
        for place, queries in enumerate(("unseen", "seen")):
            values = {
                name: number(source["by_queries"][queries]["metrics"][METRIC]) for name, source in sources.items()
            }
            values |= {
                "history, terminal": in_terminal[place],
                "history page, runs": shown.run_row(at)[2 + place].split()[0],
                "history page, releases": of_page[str(release)][5 + place].split()[0],
                "releases page": of_releases[6 + place].split()[0],
                "report page": next(
                    row[1] for row in shown.report(at).rows if row[0] == f"{METRIC}, {queries} queries"
                ),
                "state in Prefect": ended(run).message.partition(f" on {queries} queries")[0].split()[-1],
            }
            if release == 4:
                values["metrics"] = number(shown.metrics["millrace_release_quality", f"{METRIC} {queries}"])
            one(values)


def test_a_run_has_one_cost(shown: Shown) -> None:
    for at in range(len(STATES)):
        values = {
            "history": dollars(shown.json["history"]["runs"][at]["cost"]),
            "ledger": dollars(shown.json["ledger"]["runs"][at]["cost"]),
            "report": dollars(shown.json[f"report {at}"]["report"]["cost"]),
            "history, terminal": next(
                word for word in shown.line("history", shown.keys[at]).split() if word.startswith("$")
            ),
            "report, terminal": shown.line(f"report {at}", "Cost ").split("Cost ")[1].split(";")[0].strip(),
            "report page": shown.report(at).text.partition(" Cost ")[2].split()[0],
            "history page": shown.run_row(at)[8],
        }
        if at in RELEASES:
            values["releases"] = dollars(shown.json["releases"]["costs"][str(RELEASES[at])])
            assert values["releases"] in shown.line("releases", releases.read(shown.store, RELEASES[at]).model.version)
        one(values)
    assert "lost machine time" not in shown.report(0).text, "phases that add up leave no rest of rounding"
    assert shown.json["releases"]["costs"]["4"] is None, "a refresh without an attempt on record"
    last = shown.json["history"]["runs"][-1]["cost"]
    assert shown.metrics["millrace_last_run_cost_dollars", ""] == pytest.approx(last)
    sums = {
        "status": dollars(shown.json["status"]["totals"]["cost"]),
        "history": dollars(shown.json["history"]["totals"]["cost"]),
        "ledger": dollars(shown.json["ledger"]["whole"]["cost"]),
        "metrics": dollars(shown.metrics["millrace_cost_dollars_total", ""]),
        "history page": shown.rows("cost")[0][1].split()[0],
        "status, terminal": shown.line("status", "ledger: ").partition("; cost ")[2].split()[0],
    }
    one(sums)
    rates = {name: shown.json[name]["totals"]["dollars_per_million_vectors"] for name in ("status", "history")}
    one(rates)


def test_a_cost_without_prices_is_unknown_and_never_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.workspace.past.PRICES", (None, None))
    store = DirectoryStore(tmp_path / "workspace")
    write_run(store, 0)
    pages = Pages(store)
    found = [pages.page(path) for path in ("/history", "/runs/000000005eed0000/report.html")]
    texts = [Page(each.body).text for each in found if each is not None]
    commands = (["status"], ["history"], ["history", "--ledger"], ["report"])
    texts += [command.call(capsys, *words, "--workspace", store.uri).out for words in commands]
    for text in texts:
        assert "$" not in text
        assert "m7i.2xlarge, trn1.32xlarge" in " ".join(text.split())
    metrics = command.call(capsys, "history", "--prometheus", "-", "--workspace", store.uri).out.splitlines()
    assert not [line for line in metrics if "cost_dollars" in line and not line.startswith("#")]
    assert 'millrace_unpriced_machine{instance="trn1.32xlarge"} 1.0' in metrics


def test_no_cost_is_shown_without_the_basis_and_the_date_of_its_prices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = DirectoryStore(tmp_path / "workspace")
    write_run(store, 0)
    pages = Pages(store)
    found = [pages.page(path) for path in ("/history", "/runs/000000005eed0000/report.html")]
    texts = [Page(each.body).text for each in found if each is not None]
    commands = (["status"], ["history"], ["history", "--ledger"], ["history", "--ledger", "--run", "0000"], ["report"])
    texts += [command.call(capsys, *words, "--workspace", store.uri).out for words in commands]
    for text in texts:
        assert "$" in text
        assert "on demand, us-east-1, 2026-07-20" in " ".join(text.split())
    metrics = command.call(capsys, "history", "--prometheus", "-", "--workspace", store.uri).out
    assert 'millrace_cost_info{basis="on demand, us-east-1, 2026-07-20"} 1.0' in metrics


def test_a_cost_is_shown_at_the_prices_then_and_at_those_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, file = DirectoryStore(tmp_path / "workspace"), tmp_path / "now.yaml"
    write_run(store, 0)
    file.write_text(
        "- {basis: on_demand, region: us-east-1, date: 2026-11-01, source: a quote, "
        "dollars_per_hour: {trn1.32xlarge: 43, m7i.2xlarge: 1.8}}"  # twice the prices then
    )
    at = ("--prices", str(file), "--workspace", store.uri)
    for words in (["history", "--ledger"], ["report"], ["report", "--full"]):
        text = " ".join(command.call(capsys, *words, *at).out.split())
        assert "on demand, us-east-1, 2026-07-20" in text
        assert "on demand, us-east-1, 2026-11-01" in text
    for sums in (
        json.loads(command.call(capsys, "history", "--ledger", "--json", *at).out)["whole"],
        json.loads(command.call(capsys, "report", "--json", *at).out)["costs"],
    ):
        assert sums["repriced"] == pytest.approx(2 * sums["cost"])
    file.write_text(file.read_text().replace("trn1.32xlarge", "trn2.48xlarge"))
    text = " ".join(command.call(capsys, "report", *at).out.split())
    assert "no price for trn1.32xlarge" in text


def test_the_released_data_has_one_age_and_one_target(shown: Shown) -> None:
    """Of the last run, whatever the settings of this folder; unless a command names a file."""
    seconds = TARGET_HOURS * 3600
    targets = {
        "freshness": shown.json["freshness"]["target_hours"] * 3600,
        "history": shown.json["history"]["target_seconds"],
        "metrics": shown.metrics["millrace_freshness_target_seconds", ""],
    }
    assert one(targets) == seconds
    assert f"of {old(TARGET_HOURS)} promised" in shown.text["freshness"]
    assert f"target of {duration(seconds)}" in shown.text["history"]
    assert f"target of {duration(seconds)}" in shown.pages["/history"].text
    ages = {
        "freshness": shown.json["freshness"]["age_hours"],
        "history": shown.json["history"]["newest_data_seconds"] / 3600,
        "metrics": shown.metrics["millrace_freshness_age_seconds", ""] / 3600,
    }
    assert list(ages.values()) == pytest.approx([ages["history"]] * 3, abs=0.2)
    serving = {
        "status": shown.json["status"]["release"]["number"],
        "history": shown.json["history"]["release"],
        "freshness": shown.json["freshness"]["release"],
        "releases": shown.json["releases"]["current"],
        "metrics": shown.metrics["millrace_release_number", ""],
    }
    assert one(serving) == 4


def test_a_named_file_and_single_settings_come_before_those_of_the_last_run(
    store: DirectoryStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("freshness: {target_hours: 7}\n")

    def hours(*words: str) -> float:
        return command.call(capsys, "freshness", *words, "--json", "--workspace", store.uri).json["target_hours"]

    assert hours("--config", str(file)) == 7.0
    assert hours("--set", "freshness.target_hours=8") == 8.0
    assert hours() == TARGET_HOURS
