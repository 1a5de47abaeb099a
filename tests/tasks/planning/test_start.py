"""What a lineage does after rejections; workers do nothing here."""

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import MinedRelease, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError, StoreError
from tasks.planning.next_run import missed, plan_run, plan_work, run_of
from tasks.planning.start import adopt_branch, mined_release, next_start, unfinished_before
from tasks.runs import lineage, releases
from tasks.runs.branches import active, adopt, begin, branch_of
from tasks.runs.plan import NothingToDo, read_plan, save_plan
from tests.support.fakes.fake_runner import FakeRunner, ingest, ingest_feed, small_config, write_checkpoint
from tests.support.fakes.stages import carry_out, refreshed
from tests.support.workspace.states import checkpoint_state, rejected, release, released, trained_only

MONTHS = ("2026-06", "2026-07", "2026-08", "2026-09")
CHALLENGER = "train.after_rejection=challenger"


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    ingest(store, *MONTHS)
    return store


def spans(*names: str, version: int = 1) -> tuple[SpanRef, ...]:
    return tuple(SpanRef(name=name, version=version) for name in names)


def consumed(store: DirectoryStore, name: str = "main") -> list[str]:
    head = lineage.head(store, active(store, name))
    return [rows.span.name for rows in head[1].consumed] if head else []


def accepted_then_rejected(store: DirectoryStore, rejections: int = 1) -> tuple[RunPlan, list[RunPlan]]:
    """June was released; the models after it were rejected, one after the other."""
    first = plan_run(store, small_config())
    released(store, first)
    after = []
    for _ in range(rejections):
        after.append(plan_run(store, small_config()))
        rejected(store, after[-1])
    return first, after


def test_the_next_run_starts_from_the_last_accepted_checkpoint_and_trains_the_rejected_span_again(store):
    first, (july,) = accepted_then_rejected(store)
    plan = plan_run(store, small_config())
    assert (plan.window, plan.span.name) == (spans("2026-07", "2026-08"), "2026-08")
    assert plan.parent == july.parent
    assert [rows.span.name for rows in plan.history] == ["2026-06"]
    assert plan == plan_run(store, small_config(), "2026-08")
    assert read_plan(store, first.run_key).branch is None


def test_runs_continue_the_branch_once_it_is_trained_and_no_span_is_in_it_twice(store):
    accepted_then_rejected(store)
    plan = plan_run(store, small_config())
    save_plan(store, plan)
    assert active(store, "main") == "main"  # until then the rejected span counts as trained: nothing is missed
    assert consumed(store) == ["2026-06", "2026-07"]
    assert missed(store, small_config(), "2026-08") == ["2026-08"]
    released(store, plan)
    assert active(store, "main") == plan.config.lineage
    assert consumed(store) == ["2026-06", "2026-07", "2026-08"]
    assert run_of(store, small_config(), "2026-07") == "2026-08"
    after = plan_run(store, small_config())
    assert (after.window, after.config.lineage, after.branch) == (spans("2026-09"), plan.config.lineage, None)


def test_the_checkpoint_of_the_rejected_model_stays(store):
    _, (july,) = accepted_then_rejected(store)
    plan = plan_run(store, small_config())
    sibling = released(store, plan)
    head = lineage.head(store, "main")
    assert head is not None
    assert (head[0].step, head[1].run_key, sibling.step) == (20, july.run_key, 20)  # siblings, at the same step


def test_rejections_in_a_row_all_go_back_to_the_same_checkpoint(store):
    _, (july, august) = accepted_then_rejected(store, rejections=2)
    plan = plan_run(store, small_config())
    assert plan.window == spans("2026-07", "2026-08", "2026-09")
    assert plan.parent == july.parent == august.parent
    assert plan.config.lineage not in ("main", august.config.lineage)
    released(store, plan)
    assert consumed(store) == list(MONTHS)
    branch = branch_of(store, plan.config.lineage)
    assert branch is not None
    assert branch.of == "main"  # and no branch of the branch, of which a year of rejections would make a long chain


@pytest.mark.parametrize("imported", [False, True])
def test_a_rejected_first_run_is_followed_by_one_over_both_spans_from_where_it_began(store, imported):
    beginning = None
    if imported:
        key = plan_run(store, small_config()).run_key
        beginning = write_checkpoint(store, checkpoint_state(0, lineage="main", run_key=key))
    rejected(store, plan_run(store, small_config()))
    plan = plan_run(store, small_config())
    assert (plan.window, plan.parent, plan.history) == (spans("2026-06", "2026-07"), beginning, ())
    says = "the imported weights" if imported else "nothing"
    assert f"from {says}, since" in next_start(store, small_config())
    released(store, plan)
    assert consumed(store) == ["2026-06", "2026-07"]
    assert plan_run(store, small_config()).window == spans("2026-08")


def test_a_run_from_the_challenger_is_as_before(store):
    accepted_then_rejected(store)
    plan = plan_run(store, small_config(CHALLENGER))
    assert (plan.window, plan.config.lineage, plan.branch) == (spans("2026-08"), "main", None)
    assert plan.parent is not None
    assert plan.parent.step == 20
    said = "step 20 of 2026-07, whose model was rejected: train.after_rejection is challenger."
    assert next_start(store, small_config(CHALLENGER)).endswith(said)


def test_a_model_that_is_released_after_all_is_the_parent(store):
    _, (july,) = accepted_then_rejected(store)
    planned = plan_run(store, small_config())
    head = lineage.head(store, "main")
    assert head is not None
    release(store, july, head[0])
    after = plan_run(store, small_config())
    assert (after.window, after.parent, after.config.lineage) == (spans("2026-08"), head[0], "main")
    assert after.run_key != planned.run_key


def test_planning_again_after_a_crash_finds_the_same_work(store):
    """Between the plan, the branch, the training and the adoption."""
    accepted_then_rejected(store)
    plan = plan_run(store, small_config())
    save_plan(store, plan)
    assert plan_run(store, small_config()) == plan
    checkpoint = trained_only(store, plan, adopt=False)
    assert active(store, "main") == "main"
    assert plan_run(store, small_config()) == plan
    save_plan(store, plan)
    for _ in range(2):
        adopt_branch(store, plan)
    head = lineage.head(store, active(store, "main"))
    assert head is not None
    assert head[0] == checkpoint


def test_an_old_run_that_is_looked_at_again_does_not_move_the_lineage_back(store):
    accepted_then_rejected(store)
    plan = plan_run(store, small_config())
    released(store, plan)
    begin(store, "fix", "main", plan.parent)
    adopt(store, "main", "fix", instead_of=plan.config.lineage)
    adopt_branch(store, plan)
    assert active(store, "main") == "fix"


def test_a_rejected_span_asked_again_is_the_same_run_until_data_or_settings_change(store):
    _, (july,) = accepted_then_rejected(store)
    assert plan_run(store, small_config(), "2026-07") == july
    gentle = plan_run(store, small_config("train.learning_rate=1e-6"), "2026-07")
    assert (gentle.window, gentle.parent) == (july.window, july.parent)
    ingest(store, "2026-07", version=2)
    corrected = plan_run(store, small_config(), "2026-07")
    assert corrected.window == spans("2026-07", version=2)
    assert corrected == plan_run(store, small_config(), "2026-07")
    released(store, corrected)
    assert plan_run(store, small_config()).window == spans("2026-08")


def test_a_corrected_rejected_span_is_trained_again_though_no_other_follows(store):
    accepted_then_rejected(store, rejections=3)
    with pytest.raises(NothingToDo, match=r"2026-07, 2026-08, 2026-09"):
        plan_run(store, small_config())
    ingest(store, "2026-08", version=2)
    again = plan_run(store, small_config())
    assert [(span.name, span.version) for span in again.window] == [("2026-07", 1), ("2026-08", 2), ("2026-09", 1)]


def test_a_rejected_span_inside_a_window_is_not_run_alone_by_its_name(store):
    accepted_then_rejected(store)
    released(store, plan_run(store, small_config()))
    with pytest.raises(ConfigError, match="2026-07 together"):
        plan_run(store, small_config(), "2026-07")


def test_a_comparison_after_a_rejection_is_outside_of_the_branch(store):
    accepted_then_rejected(store)
    plan = plan_run(store, small_config())
    released(store, plan)
    assert plan_work(store, small_config("train.epochs=7"), "2026-08").branch is None


def test_a_checkpoint_that_was_pruned_cannot_be_gone_back_to(store):
    _, (july,) = accepted_then_rejected(store)
    assert july.parent is not None
    lineage.prune_checkpoint(store, july.parent.prefix)
    with pytest.raises(ConfigError, match=r"step-00000010, .*=challenger"):
        plan_run(store, small_config())
    assert plan_run(store, small_config(CHALLENGER)).span.name == "2026-08"


def test_the_sentence_names_the_checkpoint_and_what_is_trained_again(store, golden):
    accepted_then_rejected(store, rejections=2)
    golden(next_start(store, small_config()))


def test_a_trained_but_unfinished_run_is_found(store: DirectoryStore) -> None:
    first = plan_run(store, small_config())
    assert unfinished_before(store, first) is None
    checkpoint = trained_only(store, first)
    other = plan_run(store, small_config("train.epochs=7"))  # the same settings would go on with the interrupted run
    assert unfinished_before(store, other) == MONTHS[0]
    release(store, first, checkpoint)
    assert unfinished_before(store, other) is None


NEGATIVES = "heads.contrastive.negatives={per_query: 2}"


def mined_by(runner: FakeRunner) -> list[MinedRelease | None]:
    """What each training was given."""
    return [spec.inputs.mined for spec in runner.specs if isinstance(spec.inputs, TrainInputs)]


def test_a_run_mines_the_release_that_is_current_and_the_first_run_none(store: DirectoryStore, runner: FakeRunner):
    config = small_config(NEGATIVES)
    first = carry_out(plan_run(store, config)).released
    carry_out(plan_run(store, config))
    assert first is not None
    assert first.catalogue is not None
    release = MinedRelease(
        number=1,
        model=first.model,
        vectors=first.vectors_prefix,
        vectors_sha256=first.vectors_sha256,
        catalogue=first.catalogue,
    )
    assert mined_by(runner) == [None, release]


def test_a_run_without_hard_negatives_needs_no_release(store: DirectoryStore, runner: FakeRunner):
    carry_out(plan_run(store, small_config()))
    carry_out(plan_run(store, small_config()))
    assert mined_by(runner) == [None, None]


def test_a_run_that_goes_on_after_a_release_keeps_its_negatives(store: DirectoryStore, runner: FakeRunner):
    config = small_config(NEGATIVES)
    carry_out(plan_run(store, config))
    plan = plan_run(store, config)
    before = mined_release(store, plan)
    assert before is not None
    ingest_feed(store, "2021-01")
    refreshed(store)
    current = releases.current(store)
    assert current is not None
    assert current.number > before.number
    assert mined_release(store, plan) == before
    trainings = len([spec for spec in runner.specs if spec.stage is Stage.train])
    carry_out(plan)
    carry_out(plan)
    assert mined_by(runner)[trainings:] == [before], "trained once, with what it began with"


def test_a_release_that_cannot_be_read_stops_the_run(store: DirectoryStore, runner: FakeRunner):
    config = small_config(NEGATIVES)
    carry_out(plan_run(store, config))
    store.write("releases/1.json", b"{")
    with pytest.raises(StoreError, match=r"releases/1\.json"):
        mined_release(store, plan_run(store, config))
