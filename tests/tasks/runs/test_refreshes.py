import pytest

from infra.compute.batch.job import definition_of, queue_of
from infra.store.directory import DirectoryStore
from infra.store.manifest import mark_of
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage, instance_of
from tasks.contracts.workspace import VERDICTS
from tasks.judging.judge_again import let_pass
from tasks.planning.next_run import plan_run
from tasks.runs import branches, releases
from tasks.runs.catalogues import plan_refresh
from tasks.runs.plan import NothingToDo, mark_pruned, planned_runs, read_plan, save_plan
from tasks.runs.rollback import rollback
from tests.support.fakes.fake_runner import FakeRunner, commit_files, ingest_feed, small_config
from tests.support.fakes.stages import Run, carry_out, refreshed


@pytest.fixture
def released(store: DirectoryStore, runner: FakeRunner) -> Run:
    return carry_out(plan_run(store, small_config()))


def current(store: DirectoryStore) -> Release:
    release = releases.current(store)
    assert release is not None
    return release


def test_without_a_release_or_without_new_items_there_is_nothing_to_do(store, runner):
    with pytest.raises(NothingToDo, match="no release to refresh"):
        plan_refresh(store, small_config())
    carry_out(plan_run(store, small_config()))
    with pytest.raises(NothingToDo, match="release 1 holds every"):
        plan_refresh(store, small_config())


def test_a_feed_is_embedded_by_the_released_model_and_trains_nothing(store, released):
    ingest_feed(store, "2021-01")
    plan, release = plan_refresh(store, small_config())
    assert release == current(store)
    assert (plan.window, plan.parent, plan.span) == ((), release.model.checkpoint, release.span)
    assert plan.history == released.validated.rows
    assert plan_refresh(store, small_config()).plan == plan, "the same work has the same key"
    save_plan(store, plan)
    assert plan.run_key not in planned_runs(store)


@pytest.mark.parametrize("marked", ["release", "refresh"])
def test_what_a_prune_had_in_its_plan_is_made_again_under_other_names(store, released, marked):
    """A deletion of that prune may still be under way."""
    ingest_feed(store, "2021-01")
    first = refreshed(store)
    _passed_over(store, first)
    if marked == "release":
        releases.mark_pruned(store, [first.number])
    else:
        mark_pruned(store, first.run_key)
    store.write(mark_of(first.vectors_prefix), b"{}")
    again = refreshed(store)
    assert (current(store).number, again.number) == (first.number + 1, first.number + 1)
    assert {again.run_key, again.vectors_prefix}.isdisjoint({first.run_key, first.vectors_prefix})
    assert again.refreshed == first.refreshed
    assert again.catalogue == first.catalogue


def test_what_a_person_left_and_a_prune_took_is_not_made_again(store, released):
    ingest_feed(store, "2021-01")
    first = refreshed(store)
    rollback(store, to=first.number - 1)
    releases.mark_pruned(store, [first.number])
    with pytest.raises(NothingToDo, match="a person left it"):
        plan_refresh(store, small_config())


def _passed_over(store: DirectoryStore, release: Release) -> None:
    """As if another release had become current while this one was made."""
    raw, _ = releases.read_pointer(store)
    moved = releases.Pointer(release=release.number - 1, passed_over=(release.number,))
    releases.swap_pointer(store, moved, expected=raw)


def test_another_feed_is_other_work(store, released):
    keys = []
    for version in (1, 2):
        ingest_feed(store, "2021-01", version)
        keys.append(plan_refresh(store, small_config()).plan.run_key)
    assert len(set(keys)) == 2


def test_rows_of_a_rejected_run_are_known(store, runner, released):
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    rejected = carry_out(plan_run(store, small_config()))
    assert rejected.judged.refused
    plan = plan_refresh(store, small_config()).plan
    assert plan.history == (*released.validated.rows, *rejected.validated.rows)


def test_rows_that_seem_wrong_are_not_known_unless_a_human_lets_them_pass(store, runner, released):
    """They would be released by the refresh after the rejection, with the champion's name."""
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    rejected = carry_out(plan := plan_run(store, small_config()))
    wrong = rejected.judged.model_copy(update={"wrong_spans": (plan.span.name,)})
    store.write(VERDICTS.key(run=plan.run_key), wrong.to_json())
    with pytest.raises(NothingToDo, match="release 1 holds every"):
        plan_refresh(store, small_config())
    let_pass(store, plan, wrong, "Ada", "they are right")
    assert plan_refresh(store, small_config()).plan.history == (*released.validated.rows, *rejected.validated.rows)


def test_rows_of_a_branch_are_known_when_it_is_named_and_replace_older_versions(store, runner, released):
    commit_files(store, "spans/2021-Q1/v2", {"p": "corrected"}, "span", rows=41)
    branches.begin(store, "main-backfill", "main", None)
    branch = carry_out(plan_run(store, small_config("lineage=main-backfill")))
    assert rollback(store, 1) == released.released
    with pytest.raises(NothingToDo):
        plan_refresh(store, small_config())
    assert plan_refresh(store, small_config(), "main-backfill").plan.history == branch.validated.rows
    assert [rows.span.version for rows in branch.validated.rows] == [2]


def test_the_settings_are_those_of_the_model_and_only_the_place_is_new(store, released):
    ingest_feed(store, "2021-01")
    changed = ("infer.batch_sequences=7", "train.epochs=9", "retry.attempts=5")
    now = small_config(*changed, "infer.workers=3", "validate.workers=3", "release.workers=3")
    config = plan_refresh(store, now).plan.config
    made_with = small_config()
    assert (config.infer.batch_sequences, config.train) == (made_with.infer.batch_sequences, made_with.train)
    assert (config.infer.workers, config.retry.attempts) == (3, 5)
    assert config.validate_.workers == config.release.workers == 1, "others would have little to do"


ON_BATCH = (
    "compute=batch",
    "accelerator=xla",
    "infer.workers=32",
    "batch.processes_per_node=32",
    "infer.precision=bf16",
)
PRICED = ("batch.cpu_instance=m7i.2xlarge", "batch.accelerator_instance=trn1.32xlarge")


def test_a_few_items_are_embedded_on_the_cpu_queue_and_many_where_runs_embed(store, runner):
    """An accelerator's boot costs more than they do. The next large refresh goes back to the accelerator."""
    now = small_config(*ON_BATCH, *PRICED, "batch.refresh_cpu_items=3")
    carry_out(plan_run(store, now))
    ingest_feed(store, "2021-01")  # of three items
    few = plan_refresh(store, now).plan.config
    assert (queue_of(Stage.infer, few.batch), instance_of(few, Stage.infer)) == ("millrace-cpu", "m7i.2xlarge")
    assert definition_of(Stage.infer, few.batch) == "millrace-cpu-infer"
    assert (few.accelerator, few.infer.workers, few.infer.precision) == ("cpu", 1, "auto")
    released = refreshed(store, now)
    assert read_plan(store, released.run_key).config == few
    for version in (1, 2):
        ingest_feed(store, f"2021-0{version + 1}")
    many = plan_refresh(store, now).plan.config
    assert (queue_of(Stage.infer, many.batch), instance_of(many, Stage.infer)) == (
        "millrace-accelerator", "trn1.32xlarge",
    )  # fmt: skip
    assert (many.accelerator, many.infer.workers) == ("xla", 32)
    never = plan_refresh(store, small_config(*ON_BATCH, "batch.refresh_cpu_items=0")).plan.config
    assert queue_of(Stage.infer, never.batch) == "millrace-accelerator"
    here = plan_refresh(store, small_config(*ON_BATCH, "infer.compute=local")).plan.config
    assert (here.accelerator, here.batch.infer) == ("xla", None)
