"""The backfill with a real Prefect server and workers that do no arithmetic. Takes a minute or two."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import Artifact, FlowRun, State
from prefect.exceptions import Pause
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Suspended

import infra.compute.factory
from flows.backfill import backfill
from flows.pipeline import pipeline
from flows.refresh import refresh
from flows.running.backfill_page import control_flow_run
from infra.store.base import Conflict, Lock
from infra.store.directory import DirectoryStore
from tasks.backfill import backfill_state
from tasks.backfill.backfill_plan import BackfillPlan
from tasks.backfill.backfill_state import BackfillState
from tasks.backfill.planner import plan_backfill
from tasks.contracts.jobs import JobSpec, ValidateInputs, Waiter
from tasks.contracts.stages import Stage
from tasks.foundation.errors import (
    POLICIES,
    CancelledError,
    CodeError,
    ConfigError,
    DataError,
    FailureClass,
    OutOfMemoryError,
)
from tasks.judging.judge_run import let_pass, plan_again
from tasks.runs import branches, ledger, lineage, releases
from tasks.runs.results import read_judgement
from tasks.runs.rollback import rollback
from tests.support.fakes.fake_runner import FakeRunner, commit_files, ingest, small_config
from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.backfills import ENCODER, fake_workers, run_spans

MONTHS = [f"2021-{month:02d}" for month in range(1, 11)]


class Failing(FakeRunner):
    """Fails once for each (span, stage) in `failing`, and calls `meanwhile` before each job."""

    def __init__(self, store: DirectoryStore) -> None:
        super().__init__(store)
        self.failing: dict[tuple[str, str], BaseException] = {}
        self.meanwhile: Callable[[JobSpec, Waiter], None] = lambda spec, waiter: None

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        self.meanwhile(spec, waiter)
        if (error := self.failing.pop((spec.span.name, spec.stage.value), None)) is not None:
            self.fail(spec.stage, error)
        super().run(spec, waiter, tries)


@pytest.fixture
def store(prefect: PrefectServer, tmp_path: Path) -> Iterator[DirectoryStore]:
    with prefect.in_use():
        yield DirectoryStore(tmp_path / "disturbed")


@pytest.fixture(autouse=True)
def quick(without_pages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for failure, policy in POLICIES.items():
        monkeypatch.setitem(POLICIES, failure, policy._replace(delay_seconds=policy.delay_seconds / 1000))
    for module in ("tasks.running.stage_output", "flows.running.child_runs"):
        monkeypatch.setattr(f"{module}.ASK_SECONDS", 0.2)
    monkeypatch.setattr(
        "flows.running.span_flow.make_stage_page", lambda plan, stage, value: None
    )  # drawing takes longest


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> Failing:
    return workers(store, monkeypatch)


def workers(store: DirectoryStore, patch: pytest.MonkeyPatch) -> Failing:
    runner = Failing(store)
    patch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


def started(store: DirectoryStore, first: str, last: str, *overrides: str, **options: object) -> State[BackfillState]:
    parameters = {"overrides": (ENCODER, *overrides), **options}
    return backfill(store.uri, first, last, **parameters, return_state=True)  # pyright: ignore[reportCallIssue]


def done(store: DirectoryStore, first: str, last: str, *overrides: str, **options: object) -> BackfillState:
    return started(store, first, last, *overrides, **options).result()  # pyright: ignore[reportReturnType]


def planned(store: DirectoryStore, first: str, last: str, *overrides: str, **options: object) -> BackfillPlan:
    return plan_backfill(store, small_config(*overrides), first, last, **options)  # pyright: ignore[reportArgumentType]


def expected_jobs(plan: BackfillPlan) -> Counter[tuple[str, str]]:
    """Return the jobs of the plan: (span, stage)."""
    jobs = [(span.span.name, stage) for span in plan.spans for stage in span.left]
    with_training = [
        (name, early) for name, stage in jobs if stage == "train" for early in ("validate", "health", "warmup")
    ]
    return Counter([*jobs, *with_training])


def jobs(runner: FakeRunner) -> Counter[tuple[str, str]]:
    return Counter((spec.span.name, spec.stage.value) for spec in runner.specs)


def children(store: DirectoryStore, plan: BackfillPlan) -> list[FlowRun]:
    """Return the flow runs of a backfill's spans, by name; other tests' workspaces have a backfill with the same id."""
    by_tag = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"backfill:{plan.id}"]))
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_run_filter=by_tag)
    mine = [run for run in found if run.parameters["workspace"] == store.uri and run.parent_task_run_id]
    return sorted(mine, key=lambda run: run.name)


def weights(store: DirectoryStore) -> tuple[str, bytes, bytes]:
    """Return what the current release serves: run, weights, vectors."""
    release = releases.current(store)
    assert release is not None
    checkpoint = store.read(f"{release.model.checkpoint.prefix}/model.safetensors")
    return release.run_key, checkpoint, store.read(f"{release.vectors_prefix}/part-00000.parquet")


def test_a_backfill_with_three_failures_ends_like_one_without(
    prefect: PrefectServer, store: DirectoryStore, runner: Failing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert "3 of 10 spans failed: 2021-03 (CODE: evaluate: a metric is no number)" in message
    assert "2021-05 (OOM: infer: the shapes do not fit), 2021-07 (DATA: train: row 3 is bad)" in message
    assert "not reached: 2021-08, 2021-09, 2021-10. Nothing was released." in message
    assert isinstance(first.result(raise_on_failure=False), DataError)
    reached = {name for name in MONTHS if name <= "2021-07"}
    not_made = {("2021-07", "evaluate"), ("2021-07", "infer")}
    assert jobs(runner) == Counter({job: 1 for job in expected_jobs(plan) if job[0] in reached and job not in not_made})
    assert releases.current(store) is None
    kept = backfill_state.read(store, plan.id)
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


# --- a lineage with three runs----------------------------------------------------------------------------------

QUARTERS = ["2021-Q1", "2021-Q2", "2021-Q3", "2021-Q4"]


@pytest.fixture(scope="module")
def three_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three_runs")
    store = DirectoryStore(folder)
    ingest(store, *QUARTERS)
    with pytest.MonkeyPatch.context() as patch:
        fake_workers(store, patch)
        run_spans(store, *QUARTERS[:3])
    return folder


@pytest.fixture
def begun(store: DirectoryStore, runner: Failing, three_runs: Path) -> DirectoryStore:
    """A workspace of four quarters, of which three were run and released."""
    shutil.copytree(three_runs, store.root, dirs_exist_ok=True)
    return store


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


def test_an_early_range_does_not_replace_the_release_of_newer_data(begun: DirectoryStore, runner: Failing) -> None:
    ingest(begun, "2021-Q2", version=2)
    plan = planned(begun, "2021-Q2", "2021-Q2")
    assert "The release of 2021-Q3 keeps serving" in plan.sentences[2]
    state = done(begun, "2021-Q2", "2021-Q2")
    assert state.sentence == (
        f"2021-Q2 is released as 4; release 3 of 2021-Q3 serves on; runs of lineage main continue {plan.branch}."
    )
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
    assert isinstance(state, BackfillState)
    assert state.spans[-1].model_dump()["infer"] == state.spans[-1].release == "refused"
    assert branches.active(begun, "main") == "main"
    refreshed = releases.current(begun)
    assert refreshed is not None
    assert (refreshed.refreshed, refreshed.model) == (champion.number, champion.model)
    kept = backfill_state.read(begun, state.id)
    assert kept is not None
    assert kept.state == "Rejected"
    runner.specs.clear()
    again = started(begun, "2021-Q3", "2021-Q4")
    assert (again.name, runner.specs, releases.current(begun)) == ("Rejected", [], refreshed)


def test_a_gate_that_would_ask_a_person_refuses_and_a_command_releases_the_model(
    begun: DirectoryStore, runner: Failing
) -> None:
    """A backfill would keep its locks for days while nobody answers."""
    gate = "{metric: recall@10, direction: higher, baseline: none, threshold: 0.0, min_rows: 1000000, undecided: ask"
    ended = started(begun, "2021-Q3", "2021-Q4", f"evaluate.gates=[{gate}, severity: critical}}]")
    assert ended.name == "Rejected"
    state = ended.result()
    assert isinstance(state, BackfillState)
    key = state.spans[-1].run_key
    assert key is not None
    judged = read_judgement(begun, key)
    assert judged is not None
    assert judged.why.startswith("nobody rejected it: a backfill asks no person about an undecided gate")
    assert f"millrace gate --run {key} --override NAME" in judged.why
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
    assert [row["why"] for row in json.loads(str(table.data))] == ["as it was trained before", "not trained yet"]
    assert "1 done, 1 with work left" in str(table.description)


def test_the_pages_show_the_stages_of_each_span(prefect: PrefectServer, begun: DirectoryStore, runner: Failing) -> None:
    runner.failing = {("2021-Q4", "infer"): DataError("row 3 is bad")}
    failed = started(begun, "2021-Q3", "2021-Q4")
    assert failed.is_failed()
    pages = artifacts_of(UUID(str(failed.state_details.flow_run_id)))
    assert pages["table"].key == "backfill-main"
    row = json.loads(str(pages["table"].data))[-1]
    assert row == {
        "span": "2021-Q4 v1",
        "train": "done",
        "evaluate": "done",
        "infer": "failed",
        "release": "to do",
        "why": "not trained yet",
        "expected": row["expected"],
        "failure": "DATA: infer: row 3 is bad",
    }
    assert (pages["progress"].key, pages["progress"].data) == ("backfill-main-progress", 71.4)
    assert "5 of 7 stages done, 1 spans failed" in str(pages["progress"].description)


def artifacts(run: FlowRun) -> dict[str, Artifact]:
    return artifacts_of(run.id)


def artifacts_of(run: UUID) -> dict[str, Artifact]:
    """Return the artifacts of a flow run, by type."""
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    with get_client(sync_client=True) as client:
        return {str(artifact.type): artifact for artifact in client.read_artifacts(artifact_filter=of_run)}


# --- other processes at the same time---------------------------------------------------------------------------------


def test_the_release_waits_for_a_run_of_the_lineage(
    begun: DirectoryStore, runner: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process locks the lineage while the branch is trained, until the release needs the lock."""
    monkeypatch.setattr("flows.running.backfill_execution.AGAIN_SECONDS", 0.1)
    refused = threading.Event()
    original = begun.lock

    def lock(key: str) -> contextlib.AbstractContextManager[Lock]:
        if key == "lineages/main.run" and not refused.is_set():
            refused.set()
            raise Conflict("lineages/main.run is in use by another process")
        return original(key)

    monkeypatch.setattr(DirectoryStore, "lock", lambda self, key: lock(key))
    assert done(begun, "2021-Q3", "2021-Q4").state == "Released"
    assert refused.is_set()


def test_a_backfill_does_not_run_twice_at_once(begun: DirectoryStore, impatient: None) -> None:
    plan = planned(begun, "2021-Q3", "2021-Q4")
    with begun.lock(f"lineages/{plan.branch}.run"), pytest.raises(Conflict, match="is in use by process"):
        done(begun, "2021-Q3", "2021-Q4")
    with begun.lock("lineages/other.run"):
        assert done(begun, "2021-Q3", "2021-Q4").state == "Released"


def test_an_overtaken_branch_is_neither_released_nor_adopted(begun: DirectoryStore, runner: Failing) -> None:
    serving = begun.read("releases/CURRENT")

    def overtake(spec: JobSpec, waiter: Waiter) -> None:
        if spec.stage is Stage.infer:
            branches.adopt(begun, "main", "other", instead_of="main")

    runner.meanwhile = overtake
    with pytest.raises(ConfigError, match=r"now continue other.*nothing was released"):
        done(begun, "2021-Q3", "2021-Q4")
    assert (begun.read("releases/CURRENT"), branches.active(begun, "main")) == (serving, "other")
    assert "release" not in runner.stages


def test_the_gates_compare_with_a_champion_released_meanwhile(begun: DirectoryStore, runner: Failing) -> None:
    def release_another(spec: JobSpec, waiter: Waiter) -> None:
        if spec.stage is Stage.infer and spec.config.lineage != "main":
            rollback(begun, to=1)

    runner.meanwhile = release_another
    assert done(begun, "2021-Q3", "2021-Q4").state == "Released"
    champions = [spec.inputs.champion for spec in runner.specs if spec.stage is Stage.evaluate]  # pyright: ignore[reportAttributeAccessIssue]
    assert [champion.checkpoint.step for champion in champions if champion] == [30, 10]


# --- pause, cancel, kill ----------------------------------------------------------------------------------------


def wait_for(what: Callable[[], object], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def running_backfill(store: DirectoryStore) -> BackfillState:
    (state,) = backfill_state.read_all(store)
    return state


def test_a_paused_backfill_starts_nothing_until_it_is_resumed(
    begun: DirectoryStore, runner: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingest(begun, "2022-Q1")
    seen: list[str] = []

    def pause_in_the_first_training(spec: JobSpec, waiter: Waiter) -> None:
        if (spec.span.name, spec.stage) == ("2021-Q4", Stage.train):
            seen.append(control_flow_run(UUID(running_backfill(begun).flow_run), "pause"))
            threading.Thread(target=resume_later, daemon=True).start()
            wait_for(lambda: running_backfill(begun).state == "Paused")

    def resume_later() -> None:
        wait_for(lambda: running_backfill(begun).state == "Paused")
        wait_for(lambda: lineage.completed(begun, str(running_backfill(begun).branch))[3:])  # the training itself ends
        time.sleep(0.5)  # no stage may start meanwhile
        seen.extend(runner.stages)
        with temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: password}):
            control_flow_run(UUID(running_backfill(begun).flow_run), "resume")

    url, password = PREFECT_API_URL.value(), PREFECT_API_AUTH_STRING.value()
    runner.meanwhile = pause_in_the_first_training
    state = done(begun, "2021-Q4", "2022-Q1")
    assert state.state == "Released"
    assert seen[0].startswith("it is paused")
    assert seen[1:] == ["validate", "health", "warmup", "train"]
    with pytest.raises(ConfigError, match="its flow run is Completed, so it does not run"):
        control_flow_run(UUID(state.flow_run), "cancel")


def test_a_cancelled_backfill_ends_its_stages_and_continues_when_started_again(
    prefect: PrefectServer, begun: DirectoryStore, runner: Failing
) -> None:
    ingest(begun, "2022-Q1")
    left: list[str] = []

    def cancel(spec: JobSpec, waiter: Waiter) -> None:
        if (spec.span.name, spec.stage) == ("2022-Q1", Stage.train) and not left:
            left.append("begun")
            control_flow_run(UUID(running_backfill(begun).flow_run), "cancel")
            with pytest.raises(CancelledError) as stopped:
                wait_for(waiter.pulse)  # type: ignore[func-returns-value]
            left.append("ended")
            raise stopped.value

    runner.meanwhile = cancel
    ended = started(begun, "2021-Q4", "2022-Q1")
    assert ended.is_cancelled()
    assert left == ["begun", "ended"]
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("span")]
    state = running_backfill(begun)
    assert (state.state, state.ended_at is not None) == ("Cancelled", True)
    assert {run.name: run.state_name for run in children(begun, planned(begun, "2021-Q4", "2022-Q1"))} == {
        "2021-Q4 attempt 1": "Completed", "2022-Q1 attempt 1": "Cancelled",
    }  # fmt: skip
    last = ledger.records(begun)[-1]
    assert (last.stage, last.failure) == (Stage.train, FailureClass.CANCELLED)
    runner.specs.clear()
    assert done(begun, "2021-Q4", "2022-Q1").state == "Released"
    assert runner.stages == ["train", "evaluate", "infer", "release"]


def test_a_suspended_backfill_ends_and_continues_when_started_again(begun: DirectoryStore, runner: Failing) -> None:
    """The pause button of the Prefect UI does this to a deployed backfill. The running training ends normally."""

    def suspend(spec: JobSpec, waiter: Waiter) -> None:
        if (spec.span.name, spec.stage) == ("2021-Q4", Stage.train):
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(UUID(running_backfill(begun).flow_run), Suspended(), force=True)
            time.sleep(0.6)  # three polls of the state

    runner.meanwhile = suspend
    with pytest.raises(Pause):
        done(begun, "2021-Q3", "2021-Q4")
    assert runner.stages == ["validate", "health", "warmup", "train"]
    assert running_backfill(begun).state == "Paused"
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("span")]
    runner.meanwhile = lambda spec, waiter: None
    assert done(begun, "2021-Q3", "2021-Q4").state == "Released"
    assert runner.stages[4:] == ["evaluate", "infer", "release"]


def test_an_interruption_of_the_main_thread_ends_the_spans(
    begun: DirectoryStore, runner: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_training, ended = threading.Event(), threading.Event()

    def wait_in_training(spec: JobSpec, waiter: Waiter) -> None:
        if spec.stage is Stage.train:
            in_training.set()
            try:
                wait_for(waiter.pulse)  # type: ignore[func-returns-value]
            finally:
                ended.set()

    def interrupted(self: object) -> None:
        if in_training.is_set():
            raise KeyboardInterrupt

    runner.meanwhile = wait_in_training
    monkeypatch.setattr(
        "flows.running.backfill_page.StatusPage.flush", lambda self, at_once=False: at_once or interrupted(self)
    )
    with pytest.raises(KeyboardInterrupt):
        done(begun, "2021-Q3", "2021-Q4")
    assert ended.is_set()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("span")]


def test_the_form_in_the_ui_asks_for_plain_values() -> None:
    fields = backfill.parameters.properties
    assert list(fields) == [
        "workspace", "first", "last", "stages", "parallel", "reason", "dry_run", "config_file", "overrides",
    ]  # fmt: skip
    assert all(field["description"] for field in fields.values())
    assert backfill.parameters.required == ["workspace", "first", "last"]
