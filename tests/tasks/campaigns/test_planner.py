"""Plans of backfills, in workspaces that fake workers filled."""

import shutil
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.campaigns.campaign import BackfillPlan
from tasks.campaigns.estimate import wall_seconds
from tasks.campaigns.planner import plan_backfill
from tasks.campaigns.stored import (
    adopt,
    begin,
    check_not_overtaken,
    locks,
    read,
    read_all,
    run_of,
    save,
)
from tasks.contracts.references import SpanRef
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.foundation.errors import ConfigError, StoreError
from tasks.planning.decisions import skip
from tasks.planning.next_run import plan_run
from tasks.runs import branches, lineage, releases
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.pages.golden import Golden
from tests.support.workspace.backfills import fake_workers, run_spans

QUARTERS = [f"{year}-Q{quarter}" for year in (2021, 2022) for quarter in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight quarters, of which five were run."""
    folder = tmp_path_factory.mktemp("made")
    store = DirectoryStore(folder)
    ingest(store, *QUARTERS)
    with pytest.MonkeyPatch.context() as patch:
        fake_workers(store, patch)
        run_spans(store, *QUARTERS[:5])
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> DirectoryStore:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return DirectoryStore(tmp_path)


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    return fake_workers(store, monkeypatch)


def lineage_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *spans: str) -> DirectoryStore:
    """A new workspace in which these spans were run."""
    store = DirectoryStore(folder)
    fake_workers(store, monkeypatch)
    ingest(store, *spans)
    run_spans(store, *spans)
    return store


def plan_of(store: DirectoryStore, first: str, last: str, *overrides: str, **options: object) -> BackfillPlan:
    return plan_backfill(store, small_config(*overrides), first, last, **options)  # pyright: ignore[reportArgumentType]


def left(plan: BackfillPlan) -> dict[str, str]:
    """What is to be run, by span: the first letters of the stages."""
    return {span.span.name: "".join(stage[0] for stage in span.left) for span in plan.spans}


def train_branch(store: DirectoryStore, plan: BackfillPlan, spans: int | None = None) -> None:
    """Run the first of the spans that are to be trained."""
    assert plan.branch is not None
    branches.begin(store, plan.branch, plan.on, plan.base)
    for span in [span for span in plan.spans if span.train == "run"][:spans]:
        carry_out(run_of(store, plan, span))


def test_nothing_is_left_to_do_if_all_is_done(store: DirectoryStore, golden: Golden) -> None:
    plan = plan_of(store, "2021-Q2", "2022-Q1")
    assert plan.to_do == ()
    assert (plan.branch, plan.base, plan.expected_seconds) == (None, None, 0.0)
    golden({span.why for span in plan.spans})
    assert "Nothing to do" in plan.sentences[0]


def test_planning_writes_nothing(store: DirectoryStore, tmp_path: Path) -> None:
    before = sorted(tmp_path.rglob("*"))
    plan_of(store, "2021-Q2", "2022-Q4", "train.epochs=3")
    assert sorted(tmp_path.rglob("*")) == before


def test_spans_that_were_never_trained_are_trained_on_a_branch_from_the_head(store: DirectoryStore) -> None:
    plan = plan_of(store, "2022-Q1", "2022-Q4")
    assert left(plan) == {"2022-Q1": "", "2022-Q2": "tei", "2022-Q3": "tei", "2022-Q4": "teir"}
    head = lineage.head(store, "main")
    assert head is not None
    assert plan.base == head[0]
    assert [span.why for span in plan.spans[1:]] == ["not trained yet"] * 3
    assert plan.invalidated == ()


def test_a_corrected_span_and_all_later_spans_are_trained_again(store: DirectoryStore, golden: Golden) -> None:
    ingest(store, "2021-Q3", version=2)
    plan = plan_of(store, "2021-Q1", "2022-Q1")
    assert left(plan) == {"2021-Q1": "", "2021-Q2": "", "2021-Q3": "tei", "2021-Q4": "tei", "2022-Q1": "teir"}
    golden(f"{span.span.name}: {span.why}" for span in plan.spans)
    assert plan.base is not None
    assert plan.base.prefix == "lineages/main/step-00000020"
    assert plan.spans[2].span == SpanRef(name="2021-Q3", version=2)


def test_spans_after_the_range_are_named(store: DirectoryStore) -> None:
    ingest(store, "2021-Q3", version=2)
    plan = plan_of(store, "2021-Q3", "2021-Q4")
    assert [span.name for span in plan.invalidated] == ["2022-Q1"]
    assert plan.sentences[-1].startswith("2022-Q1")
    assert "--to 2022-Q1" in plan.sentences[-1]
    assert "nothing changes for them" in plan_of(store, "2021-Q3", "2021-Q4", stages=("train",)).sentences[-1]


def test_spans_are_trained_again_from_the_first_with_other_settings(store: DirectoryStore) -> None:
    plan = plan_of(store, "2021-Q4", "2022-Q1", "train.epochs=3", "cost.dollars_per_worker_hour=7")
    assert "train.epochs (1 then, 3 now)" in plan.spans[0].why
    assert plan.base is not None
    assert plan.base.step == 30
    assert plan_of(store, "2021-Q4", "2022-Q1", "cost.dollars_per_worker_hour=7").branch is None


def test_a_span_that_arrived_late_is_trained_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    store = lineage_of(tmp_path, monkeypatch, "2021-Q1", "2021-Q3")
    ingest(store, "2021-Q2")
    plan = plan_of(store, "2021-Q2", "2021-Q3")
    assert left(plan) == {"2021-Q2": "tei", "2021-Q3": "teir"}
    golden(plan.spans[0].why)
    assert plan.base is not None
    assert plan.base.step == 10


def test_a_new_lineage_starts_with_all_earlier_spans(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    ingest(store, *QUARTERS[:4])
    plan = plan_of(store, "2021-Q2", "2021-Q4")
    windows = [[span.name for span in one.window] for one in plan.spans]
    assert windows == [["2021-Q1", "2021-Q2"], ["2021-Q3"], ["2021-Q4"]]
    assert plan.base is None
    assert "2021-Q1" in plan.spans[0].why
    assert plan.expected_seconds is None
    assert "not known" in plan.sentences[1]


def test_the_spans_of_a_lineages_first_run_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(tmp_path)
    fake_workers(store, monkeypatch)
    ingest(store, *QUARTERS[:4])
    run_spans(store, "2021-Q3", "2021-Q4")
    assert plan_of(store, "2021-Q2", "2021-Q4").to_do == ()
    ingest(store, "2021-Q2", version=2)
    plan = plan_of(store, "2021-Q2", "2021-Q4")
    windows = [[f"{span.name} v{span.version}" for span in one.window] for one in plan.spans]
    assert windows == [["2021-Q1 v1", "2021-Q2 v2", "2021-Q3 v1"], ["2021-Q4 v1"]]
    assert plan.base is None
    assert "2021-Q2 v1 -> v2" in plan.spans[0].why
    with pytest.raises(ConfigError, match=r"2021-Q1 .* --to 2021-Q3"):
        plan_of(store, "2021-Q1", "2021-Q2")


def test_only_missing_stages_of_the_lineages_own_runs_are_left(store: DirectoryStore) -> None:
    runs = {span.span.name: span.run_key for span in plan_of(store, "2021-Q1", "2022-Q1").spans}
    store.delete(RESULT.key(run=str(runs["2021-Q2"]), stage=Stage.infer))
    plan = plan_of(store, "2021-Q1", "2022-Q1")
    assert {name: stages for name, stages in left(plan).items() if stages} == {"2021-Q2": "i"}
    assert (plan.branch, locks(plan)) == (None, ("main",))
    assert run_of(store, plan, plan.to_do[0]).run_key == runs["2021-Q2"]
    assert plan_of(store, "2021-Q1", "2022-Q1", stages=("train", "evaluate")).to_do == ()


def test_planning_again_continues_the_same_backfill(store: DirectoryStore, runner: FakeRunner) -> None:
    ingest(store, "2021-Q3", version=2)
    plan = plan_of(store, "2021-Q3", "2022-Q1")
    assert locks(plan) == (plan.branch,)
    train_branch(store, plan, spans=1)
    again = plan_of(store, "2021-Q3", "2022-Q1", reason="another", parallel=5)
    assert (again.id, again.branch, again.base) == (plan.id, plan.branch, plan.base)
    assert left(again) == {"2021-Q3": "", "2021-Q4": "tei", "2022-Q1": "teir"}
    assert again.spans[1].run_key is not None  # it follows from a checkpoint that is there now
    train_branch(store, again)
    last = plan_of(store, "2021-Q3", "2022-Q1")
    assert left(last) == {"2021-Q3": "", "2021-Q4": "", "2022-Q1": "r"}  # released, but not adopted
    adopt(store, last)
    after = plan_of(store, "2021-Q3", "2022-Q1")
    assert (after.to_do, after.on) == ((), plan.branch)
    following = plan_run(store, small_config())
    assert (following.config.lineage, following.span.name) == (plan.branch, "2022-Q2")


def test_other_stages_continue_on_the_same_branch(store: DirectoryStore, runner: FakeRunner) -> None:
    trained = plan_of(store, "2022-Q2", "2022-Q3", stages=("train",))
    assert left(trained) == {"2022-Q2": "t", "2022-Q3": "t"}
    train_branch(store, trained, spans=1)
    whole = plan_of(store, "2022-Q2", "2022-Q3")
    assert (whole.branch, whole.id != trained.id) == (trained.branch, True)
    assert left(whole) == {"2022-Q2": "", "2022-Q3": "teir"}


def test_other_spans_settings_or_stages_are_another_backfill(store: DirectoryStore) -> None:
    ids = [plan_of(store, "2022-Q2", "2022-Q4").id, plan_of(store, "2022-Q2", "2022-Q3").id]
    ids += [plan_of(store, "2022-Q2", "2022-Q4", "train.epochs=2").id]
    ids += [plan_of(store, "2022-Q2", "2022-Q4", stages=("train",)).id]
    ingest(store, "2022-Q4", version=2)
    ids += [plan_of(store, "2022-Q2", "2022-Q4").id]
    assert len(set(ids)) == 5


def test_a_refused_last_span_stays_refused(store: DirectoryStore, runner: FakeRunner) -> None:
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.3}
    plan = plan_of(store, "2022-Q2", "2022-Q2")
    train_branch(store, plan)
    again = plan_of(store, "2022-Q2", "2022-Q2")
    assert (again.to_do, again.refused) == ((), True)
    assert (again.spans[0].infer, again.spans[0].release) == ("refused", "refused")
    assert again.sentences[1].startswith("The gates refused 2022-Q2")


def test_a_branch_is_overtaken_when_another_is_adopted(store: DirectoryStore) -> None:
    plan = plan_of(store, "2022-Q2", "2022-Q2")
    check_not_overtaken(store, plan)
    branches.adopt(store, "main", "other", instead_of="main")
    with pytest.raises(ConfigError, match=r"now continue other"):
        check_not_overtaken(store, plan)


def test_expected_seconds_come_from_the_ledger_and_depend_on_parallel(store: DirectoryStore, golden: Golden) -> None:
    one, four = (plan_of(store, "2022-Q2", "2022-Q4", parallel=parallel) for parallel in (1, 4))
    stage = 9.75  # seconds of each attempt of the fake workers
    assert [span.expected_seconds for span in one.spans] == [6 * stage, 6 * stage, 7 * stage]
    assert one.expected_seconds == four.expected_seconds == 3 * 4 * stage + 2 * stage + stage
    assert one.attempts_seen == 5
    golden(one.sentences)


@pytest.mark.parametrize(
    ("work", "parallel", "seconds"),
    [
        ([], 2, 0.0),
        ([(10, 0), (10, 0)], 2, 20.0),
        ([(10, 5), (10, 5)], 1, 25.0),
        ([(1, 10), (1, 10), (1, 10)], 1, 31.0),
        ([(1, 10), (1, 10), (1, 10)], 2, 21.0),
        ([(0, 10)] * 4, 2, 20.0),
    ],
)
def test_wall_time_is_training_in_sequence_and_the_rest_in_parallel(
    work: list[tuple[float, float]], parallel: int, seconds: float
) -> None:
    assert wall_seconds(work, parallel) == seconds


@pytest.mark.parametrize(
    ("first", "last", "options", "message"),
    [
        ("2021-Q9", "2022-Q1", {}, "'2021-Q9' is not a day"),
        ("2020-Q4", "2022-Q1", {}, "'2020-Q4' was not ingested; near it: .*of 8 spans"),
        ("2021-Q1", "2023-Q1", {}, "'2023-Q1' was not ingested"),
        ("2022-Q1", "2021-Q1", {}, "did you mean --from 2021-Q1 --to 2022-Q1"),
        ("2022-Q3", "2022-Q4", {}, "2022-Q1, and 2022-Q2 would be skipped .* --from 2022-Q2"),
        ("2021-Q1", "2022-Q1", {"stages": ()}, "no stage given; choose from train, evaluate"),
        ("2021-Q1", "2022-Q1", {"stages": ("health",)}, "stage 'health'.*train includes .*health"),
        ("2021-Q1", "2022-Q1", {"stages": ("train", "release")}, "release needs evaluate and infer as well"),
        ("2021-Q1", "2022-Q1", {"stages": ("infer", "release")}, "release needs evaluate as well"),
        ("2022-Q1", "2022-Q2", {"stages": ("infer",)}, r"1 of 2 spans .* 2022-Q2 \(not trained yet\).*add train"),
    ],
)
def test_an_impossible_request_names_the_way_out(
    store: DirectoryStore, tmp_path: Path, first: str, last: str, options: dict[str, object], message: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        plan_of(store, first, last, **options)
    assert sorted(tmp_path.rglob("*")) == before


def test_spans_before_the_lineage_are_not_trained_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = lineage_of(tmp_path, monkeypatch, "2021-Q2")
    ingest(store, "2021-Q1")
    with pytest.raises(ConfigError, match=r"2021-Q2, .* --to 2021-Q2"):
        plan_of(store, "2021-Q1", "2021-Q1")
    assert left(plan_of(store, "2021-Q1", "2021-Q2")) == {"2021-Q1": "tei", "2021-Q2": "teir"}


def test_an_empty_workspace_is_refused_with_the_command_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="millrace look FILE"):
        plan_of(DirectoryStore(tmp_path), "2021-Q1", "2021-Q2")


def test_the_record_counts_attempts_and_keeps_the_cells(store: DirectoryStore) -> None:
    plan = plan_of(store, "2022-Q2", "2022-Q3", reason="why")
    state = begin(store, plan, "a-flow-run", "http://page")
    assert (plan.state, state.attempt, state.state, state.steps) == ("Planned", 1, "Running", (0, 7))
    done = tuple(span.model_copy(update={"train": "done"}) for span in state.spans)
    save(store, state.model_copy(update={"spans": done}))
    kept = read(store, plan.id)
    assert kept is not None
    assert kept.steps == (2, 7)
    assert begin(store, plan.model_copy(update={"reason": "another"}), "", "").attempt == 2
    begin(store, plan_of(store, "2022-Q2", "2022-Q2"), "", "")
    assert [one.last for one in read_all(store)] == ["2022-Q3", "2022-Q2"]


def test_a_damaged_record_is_named(store: DirectoryStore) -> None:
    store.write("campaigns/cafe.json", b"{")
    with pytest.raises(StoreError, match=r"campaigns/cafe\.json"):
        read_all(store)
    assert read(store, "none") is None
    assert releases.current(store) is not None


def test_another_group_of_held_out_rows_needs_the_whole_lineage(store: DirectoryStore):
    with pytest.raises(ConfigError, match=r"2021-Q1 --to 2021-Q2"):
        plan_of(store, "2021-Q3", "2022-Q1", "evaluate.group=query")
    plan = plan_of(store, "2021-Q1", "2022-Q1", "evaluate.group=query")
    assert plan.config.evaluate.group == "query"
    assert plan.base is None


def rejected_after(store: DirectoryStore, runner: FakeRunner, *names: str) -> None:
    """The models of these spans, the next of the lineage, are refused."""
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    run_spans(store, *names)
    runner.metrics = {"recall@10": 0.5, "mrr@10": 0.3}


def test_a_backfill_does_not_start_from_a_rejected_model(store: DirectoryStore, runner: FakeRunner) -> None:
    accepted = lineage.head(store, "main")
    assert accepted is not None
    rejected_after(store, runner, "2022-Q2")
    for first in ("2022-Q2", "2022-Q3"):
        plan = plan_of(store, first, "2022-Q4")
        assert plan.base == accepted[0]
        assert [[span.name for span in one.window] for one in plan.spans] == [["2022-Q2", "2022-Q3"], ["2022-Q4"]]
        assert "2022-Q2" in plan.spans[0].why
    challenger = plan_of(store, "2022-Q3", "2022-Q4", "train.after_rejection=challenger")
    assert [len(one.window) for one in challenger.spans] == [1, 1]


def test_a_corrected_span_of_a_rejected_model_is_trained_alone(store: DirectoryStore, runner: FakeRunner) -> None:
    rejected_after(store, runner, "2022-Q2")
    assert left(plan_of(store, "2022-Q2", "2022-Q2")) == {"2022-Q2": ""}  # it is as it was
    ingest(store, "2022-Q2", version=2)
    plan = plan_of(store, "2022-Q2", "2022-Q2")
    assert [(span.name, span.version) for span in plan.spans[0].window] == [("2022-Q2", 2)]
    assert "2022-Q2 v1 -> v2" in plan.spans[0].why


def test_spans_that_were_trained_together_after_a_rejection_stay_together(
    store: DirectoryStore, runner: FakeRunner
) -> None:
    rejected_after(store, runner, "2022-Q2")
    run_spans(store, "2022-Q3", "2022-Q4")
    done = plan_of(store, "2022-Q2", "2022-Q4")
    assert (done.to_do, "2022-Q2" in done.spans[0].why) == ((), True)
    ingest(store, "2022-Q3", version=2)
    plan = plan_of(store, "2022-Q3", "2022-Q4")
    assert [[f"{ref.name} v{ref.version}" for ref in one.window] for one in plan.spans] == [
        ["2022-Q2 v1", "2022-Q3 v2"], ["2022-Q4 v1"],
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"2022-Q3 .*--to 2022-Q3"):
        plan_of(store, "2022-Q1", "2022-Q2")


def test_a_backfill_leaves_skipped_spans_out(store: DirectoryStore) -> None:
    skip(store, small_config(), "2022-Q2", "five rows")
    assert list(left(plan_of(store, "2022-Q1", "2022-Q3"))) == ["2022-Q1", "2022-Q3"]
    with pytest.raises(ConfigError, match="2022-Q2 v1 is skipped"):
        plan_of(store, "2022-Q2", "2022-Q3")
