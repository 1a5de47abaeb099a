import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Role
from tasks.contracts.references import CheckpointRef
from tasks.contracts.runs import Release
from tasks.evaluating.rivals import begun_with, rivals_for
from tasks.planning.next_run import plan_run
from tasks.runs import branches, lineage
from tests.support.fakes.fake_runner import FakeRunner, commit_files, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed

CONFIG = small_config()


def released(store: DirectoryStore, runner: FakeRunner, recall: float) -> Release:
    runner.metrics = {"recall@10": recall, "mrr@10": 0.3}
    release = carry_out(plan_run(store, CONFIG)).released
    assert release is not None
    return release


def roles(store: DirectoryStore, challenger: Release) -> dict[Role, int]:
    return {rival.role: rival.release for rival in rivals_for(store, CONFIG, challenger.model)}


def test_without_a_release_there_is_no_rival(store: DirectoryStore, runner: FakeRunner):
    only = released(store, runner, 0.5)
    assert roles(store, only) == {}, "a run's own release is none"


def test_the_first_release_and_that_with_the_highest_value(store: DirectoryStore, runner: FakeRunner):
    one, two, three = (released(store, runner, recall) for recall in (0.5, 0.7, 0.6))
    assert roles(store, three) == {Role.first: one.number, Role.best: two.number}
    (first, best) = rivals_for(store, CONFIG, three.model)
    assert (first.vectors, best.model) == (one.vectors_prefix, two.model)


def test_of_equal_ones_the_newest_is_the_best(store: DirectoryStore, runner: FakeRunner):
    one, two, three = (released(store, runner, 0.5) for _ in range(3))
    assert roles(store, three) == {Role.first: one.number, Role.best: two.number}


def test_a_refresh_is_no_other_model(store: DirectoryStore, runner: FakeRunner):
    one = released(store, runner, 0.5)
    ingest_feed(store, "2021-01")
    refreshed(store)
    two = released(store, runner, 0.5)
    assert roles(store, two) == {Role.first: one.number, Role.best: one.number}


def test_a_model_whose_checkpoint_was_deleted_cant_be_measured(store: DirectoryStore, runner: FakeRunner):
    one, two, three = (released(store, runner, recall) for recall in (0.7, 0.6, 0.5))
    lineage.prune_checkpoint(store, one.model.checkpoint.prefix)
    assert roles(store, three) == {Role.best: two.number}, "the second release is not the first"


def test_other_lineages_have_rivals_of_their_own(store: DirectoryStore, runner: FakeRunner):
    one, two = (released(store, runner, recall) for recall in (0.7, 0.6))
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
