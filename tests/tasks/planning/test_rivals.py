import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Role
from tasks.contracts.references import CheckpointRef
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.planning.next_run import plan_run
from tasks.planning.rivals import begun_with, rivals_for
from tasks.runs import branches, lineage, releases
from tasks.runs.rollback import rollback
from tests.support.fakes.fake_runner import FakeRunner, commit_files, ingest, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed

CONFIG = small_config()


def released(store: DirectoryStore, runner: FakeRunner, recall: float, champion: float = 0.4) -> Release:
    """The release of one more run, whose evaluation found these values on its own rows."""
    runner.metrics = {"recall@10": recall, "mrr@10": 0.3}
    runner.of_champion = {"recall@10": champion, "mrr@10": 0.3}
    release = carry_out(plan_run(store, CONFIG)).released
    assert release is not None
    return release


def best(store: DirectoryStore, challenger: Release) -> int | None:
    return roles(store, challenger).get(Role.best)


def roles(store: DirectoryStore, challenger: Release) -> dict[Role, int]:
    return {rival.role: rival.release for rival in rivals_for(store, CONFIG, challenger.model)}


def test_without_a_release_there_is_no_rival(store: DirectoryStore, runner: FakeRunner):
    only = released(store, runner, 0.5)
    assert roles(store, only) == {}, "a run's own release is none"


def test_the_first_release_and_the_best(store: DirectoryStore, runner: FakeRunner):
    one, two, three = (released(store, runner, *of) for of in ((0.5,), (0.7, 0.6), (0.6, 0.6)))
    assert roles(store, three) == {Role.previous: one.number, Role.first: one.number, Role.best: two.number}
    (_, first, best) = rivals_for(store, CONFIG, three.model)
    assert (first.vectors, best.model) == (one.vectors_prefix, two.model)


def test_the_previous_release_is_what_the_champion_replaced_with_its_newest_vectors(store, runner: FakeRunner):
    ingest(store, "2021-Q4")
    one = released(store, runner, 0.5)
    ingest_feed(store, "2021-01")
    refreshed_one = refreshed(store)
    two, three, four = (released(store, runner, 0.5) for _ in range(3))
    (previous, *_) = rivals_for(store, CONFIG, three.model)
    assert previous.release == two.number, "a challenger that is a release already is neither champion nor previous"
    rollback(store, to=two.number)
    (previous, *_) = rivals_for(store, CONFIG, four.model)
    assert (previous.role, previous.model) == (Role.previous, one.model)
    assert (previous.release, previous.vectors) == (refreshed_one.number, refreshed_one.vectors_prefix)
    lineage.prune_checkpoint(store, one.model.checkpoint.prefix)
    assert Role.previous not in roles(store, four), "the one before that is not what the champion replaced"


def test_after_a_rollback_the_release_that_was_taken_back_is_not_the_previous_one(store, runner: FakeRunner):
    one, two = (released(store, runner, 0.5) for _ in range(2))
    rollback(store, to=one.number)
    three = released(store, runner, 0.5)
    assert releases.current(store) == three
    challenger = three.model.model_copy(update={"version": "new"})
    assert {each.role: each.release for each in rivals_for(store, CONFIG, challenger)}[Role.previous] == one.number
    assert two.number == 2


def test_a_high_value_on_an_easy_holdout_is_not_the_best(store: DirectoryStore, runner: FakeRunner):
    """The catalogue grows and recall falls, though each release is better than the one before on the same rows."""
    _, two, three = (released(store, runner, *of) for of in ((0.944,), (0.934, 0.914), (0.914, 0.9)))
    assert best(store, three) == two.number


def test_of_equal_ones_the_newest_is_the_best(store: DirectoryStore, runner: FakeRunner):
    _, two, three = (released(store, runner, *of) for of in ((0.5,), (0.5, 0.5), (0.5, 0.5)))
    assert best(store, three) == two.number


def test_small_losses_add_up(store: DirectoryStore, runner: FakeRunner):
    ingest(store, "2021-Q4")
    one, *_, four = (released(store, runner, *of) for of in ((0.5,), (0.797, 0.8), (0.897, 0.9), (0.997, 1.0)))
    assert best(store, four) == one.number, "each later value is higher, and each model worse than the one before"


def test_after_a_rollback_the_best_is_found_from_the_release_that_serves(store: DirectoryStore, runner: FakeRunner):
    one, two, three = (released(store, runner, *of) for of in ((0.5,), (0.6, 0.5), (0.7, 0.6)))
    store.delete(RESULT.key(run=three.run_key, stage=Stage.evaluate))
    assert best(store, one) == three.number, "nothing is known of the others next to it"
    rollback(store, to=two.number)
    assert best(store, one) == two.number


def test_the_best_is_chosen_by_the_first_ranking_gate(store: DirectoryStore, runner: FakeRunner):
    gate = "{metric: mrr@10, direction: higher, threshold: 0, baseline: best, severity: warning}"
    config = small_config(f"evaluate.gates=[{gate}]")
    one, two, three = (released(store, runner, *of) for of in ((0.5,), (0.498, 0.5), (0.5,)))
    assert {each.role: each.release for each in rivals_for(store, config, three.model)}[Role.best] == two.number
    assert best(store, three) == one.number


def test_a_refresh_is_no_other_model(store: DirectoryStore, runner: FakeRunner):
    one = released(store, runner, 0.5)
    ingest_feed(store, "2021-01")
    refreshed(store)
    two = released(store, runner, 0.5)
    assert roles(store, two) == {Role.first: one.number, Role.best: one.number}


def test_a_model_whose_checkpoint_was_deleted_cant_be_measured(store: DirectoryStore, runner: FakeRunner):
    one, two, three = (released(store, runner, *of) for of in ((0.7,), (0.398, 0.4), (0.5,)))
    lineage.prune_checkpoint(store, one.model.checkpoint.prefix)
    assert roles(store, three) == {Role.best: two.number}, "the second release is not the first"


def test_other_lineages_have_rivals_of_their_own(store: DirectoryStore, runner: FakeRunner):
    one, two = (released(store, runner, *of) for of in ((0.7,), (0.6,)))
    elsewhere = CONFIG.model_copy(update={"lineage": "elsewhere"})
    assert rivals_for(store, elsewhere, two.model) == ()
    branches.begin(store, "elsewhere", CONFIG.lineage, one.model.checkpoint)
    shared = [rival.release for rival in rivals_for(store, elsewhere, two.model)]
    assert shared == [one.number] * 2, "a branch is the same lineage"


@pytest.mark.parametrize("base", [True, False])
def test_imported_weights_are_those_that_the_lineage_began_with(store: DirectoryStore, base: bool):
    assert begun_with(store, CONFIG) is None
    prefix = f"lineages/{CONFIG.lineage}/step-00000000"
    manifest = commit_files(store, prefix, {"model.safetensors": "weights"}, "checkpoint")
    imported = CheckpointRef(prefix=prefix, step=0, sha256=manifest.sha256)
    assert begun_with(store, CONFIG) == imported
    branches.begin(store, "again", CONFIG.lineage, imported if base else None)
    again = CONFIG.model_copy(update={"lineage": "again"})
    assert begun_with(store, again) == (imported if base else None), "a branch without a base begins with a new model"
