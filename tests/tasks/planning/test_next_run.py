import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import RunPlan
from tasks.foundation.errors import ConfigError, StoreError
from tasks.planning.next_run import plan_run, plan_work
from tasks.runs.branches import adopt, begin
from tasks.runs.plan import NothingToDo, save_plan
from tests.support.fakes.fake_runner import ingest, small_config
from tests.support.workspace.states import reject, released, trained_only

QUARTERS = ("2021-Q1", "2021-Q2", "2021-Q3", "2021-Q4")


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    ingest(store, *QUARTERS)
    return store


def spans(*names: str, version: int = 1) -> tuple[SpanRef, ...]:
    return tuple(SpanRef(name=name, version=version) for name in names)


def train_in_order(store: DirectoryStore, *names: str) -> list[RunPlan]:
    plans = []
    for name in names:
        plans.append(plan_run(store, small_config(), name))
        released(store, plans[-1])
    return plans


def test_the_first_run_without_a_span_takes_the_oldest_alone(store):
    plan = plan_run(store, small_config())
    assert plan.window == spans("2021-Q1")
    assert plan.span.name == "2021-Q1"
    assert plan.history == ()
    assert plan.parent is None
    assert plan.workspace == store.uri


def test_the_first_run_over_a_later_span_includes_the_earlier_spans(store):
    plan = plan_run(store, small_config(), "2021-Q3")
    assert plan.window == spans("2021-Q1", "2021-Q2", "2021-Q3")
    assert plan.span == plan.window[-1]


def test_the_latest_version_of_a_span_is_trained(store):
    ingest(store, "2021-Q1", version=2)
    assert plan_run(store, small_config()).window == spans("2021-Q1", version=2)


def test_planning_writes_nothing(store, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    plan_run(store, small_config())
    assert sorted(tmp_path.rglob("*")) == before


def test_the_next_run_starts_from_the_head_with_the_oldest_untrained_span(store):
    first = plan_run(store, small_config(), "2021-Q2")
    checkpoint = released(store, first)
    plan = plan_run(store, small_config())
    assert plan.window == spans("2021-Q3")
    assert plan.parent == checkpoint
    assert [rows.span.name for rows in plan.history] == ["2021-Q1", "2021-Q2"]


def test_a_run_interrupted_after_its_training_comes_first(store):
    plan = plan_run(store, small_config())
    trained_only(store, plan)
    assert plan_run(store, small_config()) == plan
    reject(store, plan)
    assert plan_run(store, small_config()).span.name == "2021-Q2"


def test_an_interrupted_run_does_not_delay_other_settings(store):
    trained_only(store, plan_run(store, small_config()))
    assert plan_run(store, small_config("train.epochs=7")).span.name == "2021-Q2"


def test_naming_the_next_span_gives_the_plan_without_a_name(store):
    released(store, plan_run(store, small_config()))
    assert plan_run(store, small_config(), "2021-Q2") == plan_run(store, small_config())


def test_another_lineage_begins_at_the_beginning(store):
    released(store, plan_run(store, small_config()))
    plan = plan_run(store, small_config("lineage=other"))
    assert plan.parent is None
    assert plan.window == spans("2021-Q1")


def test_there_is_nothing_to_do_when_all_spans_are_trained(store):
    released(store, plan_run(store, small_config(), "2021-Q4"))
    with pytest.raises(NothingToDo, match=r"main has .* 2021-Q4$"):
        plan_run(store, small_config())


def test_nothing_to_do_tells_spans_that_arrived_too_late_from_new_versions_of_trained_ones(tmp_path):
    store = DirectoryStore(tmp_path)
    ingest(store, "2021-Q2", "2021-Q3")
    released(store, plan_run(store, small_config(), "2021-Q3"))
    ingest(store, "2021-Q2", version=2)
    with pytest.raises(NothingToDo, match=r"2021-Q2 .*--from 2021-Q2 ") as only_new:
        plan_run(store, small_config())
    assert "late" not in str(only_new.value)
    ingest(store, "2021-Q1")
    with pytest.raises(NothingToDo, match=r"too late .*: 2021-Q1; .*: 2021-Q2 .*--from 2021-Q1 "):
        plan_run(store, small_config())


def test_a_trained_span_gives_the_plan_of_the_run_that_trained_it(store):
    plans = train_in_order(store, "2021-Q1", "2021-Q2", "2021-Q3")
    for plan in plans:
        assert plan_run(store, small_config(), plan.span.name) == plan


def test_the_plan_is_found_again_after_the_workspace_moved(store, tmp_path):
    (plan,) = train_in_order(store, "2021-Q1")
    moved = DirectoryStore(tmp_path.rename(tmp_path.parent / "moved"))
    again = plan_run(moved, small_config(), "2021-Q1")
    assert again == plan.model_copy(update={"workspace": moved.uri})
    save_plan(moved, again)


def test_a_trained_span_with_other_settings_is_refused_with_the_keys(store):
    (plan,) = train_in_order(store, "2021-Q1")
    changed = small_config("train.learning_rate=1e-3", "train.epochs=2", "evaluate.slices=[brand]")
    with pytest.raises(ConfigError) as raised:
        plan_run(store, changed, "2021-Q1")
    message = str(raised.value)
    assert f"run {plan.run_key}" in message
    assert "(1 then, 2 now), train.learning_rate" in message
    assert "--set lineage=NAME" in message


def test_a_trained_span_is_found_again_with_other_gates_and_under_the_key_of_an_earlier_version(store, monkeypatch):
    with monkeypatch.context() as earlier:
        earlier.setattr("tasks.runs.plan.config_hash", lambda config: "of an earlier version")
        (plan,) = train_in_order(store, "2021-Q1")
    asked = small_config("evaluate.gates=[]", "train.workers=2", "health.min_disk_gib=9")
    again = plan_run(store, asked, "2021-Q1")
    assert (again.run_key, again.config.evaluate.gates, again.config.train.workers) == (plan.run_key, (), 2)
    save_plan(store, again)


def test_a_span_inside_the_first_window_has_no_run_of_its_own(store):
    train_in_order(store, "2021-Q2")
    with pytest.raises(ConfigError, match="2021-Q1 together"):
        plan_run(store, small_config(), "2021-Q1")


def test_a_newer_version_of_a_trained_span_is_refused(store):
    train_in_order(store, "2021-Q1")
    ingest(store, "2021-Q1", version=2)
    with pytest.raises(ConfigError, match=r"v2 .*2021-Q1 --to 2021-Q1"):
        plan_run(store, small_config(), "2021-Q1")


@pytest.mark.parametrize("damage", [None, b"{"])
def test_a_trained_span_whose_plan_is_not_readable_names_the_file(store, damage):
    (plan,) = train_in_order(store, "2021-Q1")
    store.delete(f"runs/{plan.run_key}/plan.json")
    if damage is not None:
        store.write(f"runs/{plan.run_key}/plan.json", damage)
    with pytest.raises(StoreError, match=rf"runs/{plan.run_key}/plan\.json"):
        plan_run(store, small_config(), "2021-Q1")


def test_runs_continue_the_branch_that_was_adopted(store):
    first, second = train_in_order(store, "2021-Q1", "2021-Q2")
    assert second.parent is not None
    begin(store, "fix", "main", second.parent)
    assert plan_run(store, small_config()).parent != second.parent  # not yet
    adopt(store, "main", "fix", instead_of="main")
    plan = plan_run(store, small_config())
    assert (plan.config.lineage, plan.parent, plan.window) == ("fix", second.parent, spans("2021-Q2"))
    assert plan.run_key != second.run_key
    released(store, plan)
    after = plan_run(store, small_config())
    assert (after.config.lineage, after.span.name) == ("fix", "2021-Q3")
    assert plan_run(store, small_config(), "2021-Q1") == first  # inherited, so it stays in its own lineage
    assert plan_run(store, small_config(), "2021-Q2") == plan
    assert plan_work(store, small_config("train.epochs=7"), "2021-Q2").parent == second.parent


def test_an_inherited_run_that_was_interrupted_comes_first(store):
    (first,) = (plan_run(store, small_config()),)
    base = trained_only(store, first)
    begin(store, "fix", "main", base)
    adopt(store, "main", "fix", instead_of="main")
    assert plan_run(store, small_config()) == first


def test_without_spans_the_error_names_the_first_look(tmp_path):
    with pytest.raises(ConfigError, match=r"look FILE --workspace "):
        plan_run(DirectoryStore(tmp_path), small_config())


@pytest.mark.parametrize(
    ("span", "message"),
    [
        ("2021-Q4", "can't come next in lineage main, which stands at 2021-Q1: run 2021-Q2, 2021-Q3 first"),
        ("2020-Q4", "2020-Q4 is older than 2021-Q1.*start a new lineage"),
        ("2022-Q4", "'2022-Q4' was not ingested; near it: .*2021-Q4"),
        ("2021-q2", "'2021-q2' is not a day"),
        ("2021-Q5", "'2021-Q5' is not a day"),
        ("", "'' is not a day"),
    ],
)
def test_a_span_that_cannot_come_next_says_why_and_which_can(store, span, message):
    train_in_order(store, "2021-Q1")
    ingest(store, "2020-Q4")
    with pytest.raises(ConfigError, match=message):
        plan_run(store, small_config(), span)


def test_a_lineage_keeps_the_group_that_it_began_with(store: DirectoryStore):
    first = plan_run(store, small_config(), "2021-Q1")
    assert first.config.evaluate.group == "query_and_item"
    released(store, first)
    assert plan_run(store, small_config(), "2021-Q1").run_key == first.run_key
    released(store, plan_run(store, small_config("lineage=other", "evaluate.group=item"), "2021-Q1"))
    assert plan_run(store, small_config("lineage=other"), "2021-Q2").config.evaluate.group == "item"


def test_another_group_is_refused_once_rows_were_trained_on(store: DirectoryStore):
    train_in_order(store, "2021-Q1", "2021-Q2")
    change = "evaluate.group=query"
    for plan in (plan_run, plan_work):
        with pytest.raises(ConfigError, match=r"2021-Q1 --to 2021-Q2.*NAME"):
            plan(store, small_config(change), "2021-Q3")
    assert plan_run(store, small_config(change, "lineage=other"), "2021-Q1").parent is None


def test_another_share_may_come_with_any_span(store: DirectoryStore):
    train_in_order(store, "2021-Q1")
    for share in (0.4, 0.01):
        plan = plan_run(store, small_config(f"evaluate.holdout_share={share}"), "2021-Q2")
        assert plan.parent is not None
        assert plan.config.evaluate.holdout_share == share
