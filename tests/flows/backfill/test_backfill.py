"""The backfill with a real Prefect server and workers that do no arithmetic. Takes a minute or two."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from prefect.client.schemas.objects import Artifact, FlowRun

from flows.backfill import backfill
from flows.pipeline import pipeline
from flows.refresh import refresh
from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from tasks.campaigns import stored
from tasks.campaigns.campaign import Campaign
from tasks.contracts.jobs import ValidateInputs
from tasks.contracts.stages import Stage
from tasks.foundation.errors import CodeError, DataError, FailureClass, OutOfMemoryError
from tasks.judging.judge_again import let_pass, plan_again
from tasks.runs import branches, ledger, lineage, releases
from tasks.runs.results import read_judgement
from tests.flows.backfill.failing import Failing, children, done, expected_jobs, jobs, planned, started, workers
from tests.support.fakes.fake_runner import commit_files, ingest
from tests.support.pages.golden import Golden
from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.backfills import ENCODER

MONTHS = [f"2021-{month:02d}" for month in range(1, 11)]


def weights(store: DirectoryStore) -> tuple[str, bytes, bytes]:
    """Return what the current release serves: run, weights, vectors."""
    release = releases.current(store)
    assert release is not None
    checkpoint = store.read(f"{release.model.checkpoint.prefix}/model.safetensors")
    return release.run_key, checkpoint, store.read(f"{release.vectors_prefix}/part-00000.parquet")


def test_a_backfill_with_three_failures_ends_like_one_without(
    prefect: PrefectServer,
    store: DirectoryStore,
    runner: Failing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    golden: Golden,
) -> None:
    ingest(store, *MONTHS)
    runner.failing = {
        ("2021-03", "evaluate"): CodeError("a metric is no number"),
        ("2021-05", "infer"): OutOfMemoryError("the shapes do not fit"),
        ("2021-07", "train"): DataError("row 3 is bad"),
    }
    plan = planned(store, "2021-01", "2021-10", parallel=3)
    assert expected_jobs(plan).total() == 10 * 6 + 1
    assert (plan.branch, plan.base) == (f"main-backfill-{str(plan.branch)[-8:]}", None)

    first = started(store, "2021-01", "2021-10", parallel=3, reason="a new start")
    assert first.is_failed()
    message = str(first.message)
    golden(message)
    assert isinstance(first.result(raise_on_failure=False), DataError)
    reached = {name for name in MONTHS if name <= "2021-07"}
    not_made = {("2021-07", "evaluate"), ("2021-07", "infer")}
    assert jobs(runner) == Counter({job: 1 for job in expected_jobs(plan) if job[0] in reached and job not in not_made})
    assert releases.current(store) is None
    kept = stored.read(store, plan.id)
    assert kept is not None
    assert (kept.state, kept.attempt, kept.reason) == ("Failed", 1, "a new start")
    assert [span.span.name for span in kept.spans if span.failure] == ["2021-03", "2021-05", "2021-07"]

    runner.specs.clear()
    left = planned(store, "2021-01", "2021-10", parallel=3)
    assert left.id == plan.id
    assert [span.left for span in left.spans if span.span.name in ("2021-02", "2021-03", "2021-05")] == [
        (), ("evaluate",), ("infer",),
    ]  # fmt: skip
    again = done(store, "2021-01", "2021-10", parallel=3)
    # Of what failed in training, the stages before it are done.
    before_training = {("2021-07", stage) for stage in ("validate", "health", "warmup")}
    assert jobs(runner) == Counter({job: 1 for job in expected_jobs(left) if job not in before_training})
    assert (again.state, again.attempt, again.release) == ("Released", 2, 1)

    failures = {(r.span, r.stage.value): r.failure for r in ledger.records(store) if r.failure is not None}
    assert failures == {
        ("2021-03", "evaluate"): FailureClass.CODE,
        ("2021-05", "infer"): FailureClass.OOM,
        ("2021-07", "train"): FailureClass.DATA,
    }
    attempts = Counter((record.span, record.stage.value) for record in ledger.records(store))
    assert attempts == expected_jobs(plan) + Counter(list(failures))

    runs = children(store, plan)
    assert [run.name.partition(" ")[0] for run in runs] == MONTHS  # one flow run for each span
    assert {run.name: run.run_count for run in runs if run.run_count > 1} == {
        "2021-03 attempt 2": 2, "2021-05 attempt 2": 2, "2021-07 attempt 2": 2,
    }  # fmt: skip
    assert [run.state_name for run in runs] == [*["Completed"] * (len(MONTHS) - 1), "Released"]

    undisturbed = DirectoryStore(tmp_path / "undisturbed")
    ingest(undisturbed, *MONTHS)
    other = workers(undisturbed, monkeypatch)
    assert done(undisturbed, "2021-01", "2021-10", parallel=3).state == "Released"
    assert jobs(other) == expected_jobs(plan)
    assert weights(undisturbed) == weights(store)


def test_a_corrected_span_is_released_adopted_and_continued(begun: DirectoryStore, runner: Failing) -> None:
    ingest(begun, "2021-Q2", version=2)
    before = lineage.completed(begun, "main")
    plan = planned(begun, "2021-Q1", "2021-Q3")
    state = done(begun, "2021-Q1", "2021-Q3")
    assert (state.state, state.release) == ("Released", 4)
    assert jobs(runner) == expected_jobs(plan)
    assert lineage.completed(begun, "main") == before
    assert branches.active(begun, "main") == plan.branch
    assert [span.train for span in state.spans] == ["done"] * 3

    report = pipeline(begun.uri, overrides=(ENCODER,))  # as a schedule asks
    assert (report.span, report.lineage, report.state) == ("2021-Q4", plan.branch, "Released")
    inputs = next(spec.inputs for spec in runner.specs if spec.stage is Stage.train and spec.span.name == "2021-Q4")
    head = lineage.completed(begun, str(plan.branch))
    assert inputs.parent == head[-2][0]  # pyright: ignore[reportAttributeAccessIssue]
    assert [rows.span.version for rows in head[-1][1].consumed] == [1, 2, 1, 1]

    runner.specs.clear()
    nothing = done(begun, "2021-Q1", "2021-Q4")
    assert (nothing.state, runner.specs) == ("Done", [])
    assert "Nothing to do" in nothing.sentence


def test_an_early_range_does_not_replace_the_release_of_newer_data(
    begun: DirectoryStore, runner: Failing, golden: Golden
) -> None:
    ingest(begun, "2021-Q2", version=2)
    plan = planned(begun, "2021-Q2", "2021-Q2")
    assert "release of 2021-Q3" in plan.sentences[2]
    state = done(begun, "2021-Q2", "2021-Q2")
    golden(state.sentence)
    serving = releases.current(begun)
    assert serving is not None
    assert serving.number == 3
    assert pipeline(begun.uri, overrides=(ENCODER,)).span == "2021-Q3"
    assert releases.read(begun, 5).span.name == "2021-Q3"


def test_other_settings_make_other_weights_on_a_branch(begun: DirectoryStore, runner: Failing) -> None:
    plan = planned(begun, "2021-Q3", "2021-Q4", "train.epochs=4")
    assert done(begun, "2021-Q3", "2021-Q4", "train.epochs=4").state == "Released"
    assert jobs(runner) == expected_jobs(plan)
    assert {spec.config.train.epochs for spec in runner.specs} == {4}
    assert {spec.config.lineage for spec in runner.specs} == {plan.branch}
    assert [state.run_key for _, state in lineage.completed(begun, str(plan.branch))][:2] == [
        state.run_key for _, state in lineage.completed(begun, "main")
    ][:2]


def test_a_refused_model_stays_refused_and_the_champion_embeds_its_items(
    prefect: PrefectServer, begun: DirectoryStore, runner: Failing
) -> None:
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.3}
    champion = releases.current(begun)
    assert champion is not None
    ended = started(begun, "2021-Q3", "2021-Q4")
    assert (ended.is_completed(), ended.name) == (True, "Rejected")
    state = ended.result()
    assert isinstance(state, Campaign)
    assert state.spans[-1].model_dump()["infer"] == state.spans[-1].release == "refused"
    assert branches.active(begun, "main") == "main"
    refreshed = releases.current(begun)
    assert refreshed is not None
    assert (refreshed.refreshed, refreshed.model) == (champion.number, champion.model)
    kept = stored.read(begun, state.id)
    assert kept is not None
    assert kept.state == "Rejected"
    runner.specs.clear()
    again = started(begun, "2021-Q3", "2021-Q4")
    assert (again.name, runner.specs, releases.current(begun)) == ("Rejected", [], refreshed)


def test_a_gate_that_would_ask_a_person_refuses_and_a_command_releases_the_model(
    begun: DirectoryStore, runner: Failing, golden: Golden
) -> None:
    """A backfill would keep its locks for days while nobody answers."""
    gate = "{metric: recall@10, direction: higher, baseline: none, threshold: 0.0, min_rows: 1000000, undecided: ask"
    ended = started(begun, "2021-Q3", "2021-Q4", f"evaluate.gates=[{gate}, severity: critical}}]")
    assert ended.name == "Rejected"
    state = ended.result()
    assert isinstance(state, Campaign)
    key = state.spans[-1].run_key
    assert key is not None
    judged = read_judgement(begun, key)
    assert judged is not None
    golden(judged.why)
    assert f"--run {key} --override NAME" in judged.why
    passed = let_pass(begun, plan_again(begun, key, None, ()), judged, "Ann", "looked at by hand")
    assert (passed.passes, passed.overrides[0].refusals) == (True, judged.refusals)


def test_rows_of_a_refused_branch_stay_in_later_releases(begun: DirectoryStore, runner: Failing) -> None:
    commit_files(begun, "spans/2021-Q3/v2", {"p": "corrected"}, "span", rows=41)
    good, runner.metrics = runner.metrics, {"recall@10": 0.1, "mrr@10": 0.3}
    assert started(begun, "2021-Q3", "2021-Q3").name == "Rejected"
    refreshed = releases.current(begun)
    assert refreshed is not None
    assert refreshed.refreshed is not None
    assert refresh(begun.uri, overrides=(ENCODER,), return_state=True).name == "NothingToDo"
    runner.metrics = good
    assert pipeline(begun.uri, "2021-Q4", overrides=(ENCODER,)).state == "Released"
    (inputs,) = [spec.inputs for spec in runner.specs[-7:-6]]
    assert isinstance(inputs, ValidateInputs)
    assert [(rows.span.name, rows.span.version) for rows in inputs.others] == [("2021-Q3", 2)]
    assert [rows.span.version for rows in inputs.history] == [1, 1, 1], "the lineage itself stays as it is"
    assert refresh(begun.uri, overrides=(ENCODER,), return_state=True).name == "NothingToDo"


def test_only_requested_stages_run(begun: DirectoryStore, runner: Failing) -> None:
    serving = begun.read("releases/CURRENT")
    assert done(begun, "2021-Q3", "2021-Q4", stages=("train", "infer")).state == "Done"
    assert runner.stages == ["validate", "health", "warmup", "train", "infer"]
    assert (begun.read("releases/CURRENT"), branches.active(begun, "main")) == (serving, "main")
    runner.specs.clear()
    assert done(begun, "2021-Q3", "2021-Q4").state == "Released"
    assert runner.stages == ["evaluate", "release"]


def test_a_span_that_is_planned_to_cost_more_than_its_budget_is_refused(begun: DirectoryStore, runner: Failing) -> None:
    """Only the requested stages count."""
    priced = ("cost.dollars_per_worker_hour=1", "cost.budget_dollars_per_run=0.015")
    failed = started(begun, "2021-Q3", "2021-Q4", *priced)
    assert failed.is_failed()
    assert "2021-Q4 (CONFIG: train: 2021-Q4 does not start: " in str(failed.message)
    assert runner.stages == []
    assert done(begun, "2021-Q3", "2021-Q4", *priced, stages=("train",)).state == "Done"
    assert runner.stages == ["validate", "health", "warmup", "train"]


@pytest.mark.usefixtures("impatient")
def test_missing_stages_of_the_lineages_own_runs_are_run(begun: DirectoryStore, runner: Failing) -> None:
    runs = {state.consumed[-1].span.name: state.run_key for _, state in lineage.completed(begun, "main")}
    for name in ("2021-Q1", "2021-Q2"):
        begun.delete(f"runs/{runs[name]}/infer/result.json")
    with begun.lock("lineages/main.run"), pytest.raises(Conflict):
        done(begun, "2021-Q1", "2021-Q3")
    assert done(begun, "2021-Q1", "2021-Q3").state == "Released"  # the last one was, before
    assert jobs(runner) == Counter({("2021-Q1", "infer"): 1, ("2021-Q2", "infer"): 1})
    assert branches.active(begun, "main") == "main"


def test_a_dry_run_only_shows_the_plan(prefect: PrefectServer, begun: DirectoryStore) -> None:
    before = sorted(key for key in begun.list("") if not key.startswith(".locks/"))
    state = done(begun, "2021-Q3", "2021-Q4", dry_run=True)
    assert (state.state, [span.train for span in state.spans]) == ("Planned", ["done", "run"])
    assert sorted(key for key in begun.list("") if not key.startswith(".locks/")) == before
    table = artifacts(prefect.last_run())["table"]
    assert [row["span"] for row in json.loads(str(table.data))] == ["2021-Q3 v1", "2021-Q4 v1"]
    assert "1 with work left" in str(table.description)


def test_the_pages_show_the_stages_of_each_span(prefect: PrefectServer, begun: DirectoryStore, runner: Failing) -> None:
    runner.failing = {("2021-Q4", "infer"): DataError("row 3 is bad")}
    failed = started(begun, "2021-Q3", "2021-Q4")
    assert failed.is_failed()
    pages = artifacts_of(UUID(str(failed.state_details.flow_run_id)))
    assert pages["table"].key == "backfill-main"
    row = json.loads(str(pages["table"].data))[-1]
    assert (row["infer"], row["release"], row["failure"]) == ("failed", "to do", "DATA: infer: row 3 is bad")
    assert (pages["progress"].key, pages["progress"].data) == ("backfill-main-progress", 71.4)
    assert "5 of 7 stages" in str(pages["progress"].description)


def artifacts(run: FlowRun) -> dict[str, Artifact]:
    return artifacts_of(run.id)


def artifacts_of(run: UUID) -> dict[str, Artifact]:
    """Return the artifacts of a flow run, by type."""
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    with get_client(sync_client=True) as client:
        return {str(artifact.type): artifact for artifact in client.read_artifacts(artifact_filter=of_run)}


def test_the_form_in_the_ui_asks_for_plain_values() -> None:
    fields = backfill.parameters.properties
    assert list(fields) == [
        "workspace", "first", "last", "stages", "parallel", "reason", "dry_run", "config_file", "overrides",
    ]  # fmt: skip
    assert all(field["description"] for field in fields.values())
    assert backfill.parameters.required == ["workspace", "first", "last"]
