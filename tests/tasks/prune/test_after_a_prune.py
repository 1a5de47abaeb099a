"""Runs, refreshes and backfills after a prune, by workers without arithmetic."""

from __future__ import annotations

import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import check_sizes, read_manifest, seal
from tasks.campaigns import stored
from tasks.campaigns.planner import plan_backfill
from tasks.campaigns.stored import run_of
from tasks.contracts.jobs import InferInputs, JobSpec
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import CLOSED_NUMBER
from tasks.foundation.errors import CodeError, ConfigError, SupersededError
from tasks.planning.next_run import plan_run
from tasks.runs import branches, lineage, releases
from tasks.runs.plan import mark_pruned
from tasks.runs.releases import Numbered
from tasks.runs.results import read_result
from tasks.runs.rollback import rollback
from tests.support.fakes.fake_runner import FakeRunner, commit_files, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed
from tests.support.workspace.backfills import fake_workers
from tests.tasks.prune.six_months import MONTHS, pruned


def test_after_a_prune_a_run_trains_on_and_a_refresh_works(any_store):
    store = any_store
    pruned(store, keep=1)
    done = carry_out(plan_run(store, small_config()))
    assert done.released is not None
    assert (done.released.number, done.released.span.name) == (7, MONTHS[6])
    ingest_feed(store, "2021-01")
    assert refreshed(store).number == 8
    assert pruned(store, keep=2).kept == (6, 7, 8)
    assert rollback(store).number == 6, "the newest of the model before"


def test_a_run_whose_files_are_gone_is_not_taken_up_again(store, runner):
    pruned(store)
    with pytest.raises(ConfigError, match=rf"{MONTHS[2]} .* prune"):
        carry_out(plan_run(store, small_config(), MONTHS[2]))
    carry_out(plan_run(store, small_config(), MONTHS[5]))
    assert runner.specs == [], "a run that is kept is cached whole"


def test_an_unfinished_run_goes_on_where_it_stopped(store, runner):
    runner.fail(Stage.release, CodeError("not yet"))
    with pytest.raises(CodeError):
        carry_out(plan_run(store, small_config()))
    pruned(store, keep=1)
    runner.specs.clear()
    assert carry_out(plan_run(store, small_config())).released is not None
    assert runner.stages == ["release"]


def test_a_run_whose_release_was_made_after_a_prune_marked_its_number_keeps_its_files(store, runner, monkeypatch):
    """It stood still before it made the release, which never served; the same command goes on."""

    def marked(number: int) -> Numbered:
        store.create(CLOSED_NUMBER.key(number=number), b"{}")
        return Numbered(number=number)

    with monkeypatch.context() as late:
        late.setattr("tasks.runs.adding_releases.Numbered", marked)
        with pytest.raises(SupersededError, match=r"release 7 .* again"):
            carry_out(plan_run(store, small_config()))
    pruned(store, keep=1)
    done = carry_out(plan_run(store, small_config()))
    assert (done.released, done.released and done.released.number) == (releases.current(store), 7)
    assert not releases.is_pruned(store, 7)


def test_an_unfinished_refresh_goes_on_though_a_prune_took_the_release_whose_files_it_names(any_store, monkeypatch):
    """It stopped after its vectors: the release before serves whole, and no partition that the new one names goes."""
    store, original = any_store, FakeRunner._infer

    def naming(runner: FakeRunner, spec: JobSpec, inputs: InferInputs) -> InferOutcome:
        if inputs.reuse is not None:
            files = (entry.named_from(inputs.reuse) for entry in read_manifest(store, inputs.reuse).files)
            seal(store, inputs.vectors, tuple(files), "vectors", {"vectors": 30})
        return original(runner, spec, inputs)

    runner = fake_workers(store, monkeypatch)
    ingest_feed(store, "2021-01")
    named = refreshed(store).vectors_prefix
    monkeypatch.setattr(FakeRunner, "_infer", naming)
    for month in ("2021-02", "2021-03"):
        ingest_feed(store, month)
        serving = refreshed(store)
    ingest_feed(store, "2021-04")
    runner.fail(Stage.release, CodeError("not yet"))
    with pytest.raises(CodeError):
        refreshed(store)
    gone = {folder.folder: folder.named for folder in pruned(store, keep=1).folders}
    assert gone[named] == (f"{named}/part-00000.parquet",)
    assert releases.current(store) == serving
    check_sizes(store, serving.vectors_prefix)
    runner.specs.clear()
    made = refreshed(store)
    assert runner.stages == ["release"]
    assert releases.current(store) == made
    assert [entry.at for entry in check_sizes(store, made.vectors_prefix).files] == list(gone[named])


def test_a_refresh_that_a_prune_marked_is_over(store, runner):
    """It is done again under another key, so nothing needs its vectors."""
    ingest_feed(store, "2021-01")
    runner.fail(Stage.release, CodeError("not yet"))
    with pytest.raises(CodeError):
        refreshed(store)
    (run_key,) = (each.partition("/")[2].partition("/")[0] for each in store.list("refreshes") if "plan" in each)
    inferred = read_result(store, run_key, Stage.infer)
    assert inferred is not None
    (vectors, *_) = inferred.outcome.outputs
    assert vectors not in [folder.folder for folder in pruned(store, keep=1).folders]
    mark_pruned(store, run_key)
    assert vectors in [folder.folder for folder in pruned(store, keep=1).folders]
    assert refreshed(store).run_key != run_key


def backfill(store: DirectoryStore) -> tuple[str, list[str]]:
    """A backfill of three months that were trained on a branch and not evaluated; returns its id and checkpoints."""
    commit_files(store, f"spans/{MONTHS[3]}/v2", {"p": "corrected"}, "span", rows=41)
    plan = plan_backfill(store, small_config(), MONTHS[3], MONTHS[5])
    assert plan.branch is not None
    branches.begin(store, plan.branch, plan.on, plan.base)
    state, made = stored.begin(store, plan, "", ""), []
    for number, span in enumerate(plan.spans):
        run = run_of(store, plan, span)
        made.append(carry_out(run).trained.checkpoint.prefix)
        spans = [each.model_copy(update={"run_key": run.run_key}) if n == number else each
                 for n, each in enumerate(state.spans)]  # fmt: skip
        state = state.model_copy(update={"spans": tuple(spans)})
    stored.save(store, state.model_copy(update={"state": "Failed"}))
    return plan.id, made


def test_an_unfinished_backfill_keeps_what_it_trained_and_a_finished_one_does_not(store, runner):
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}  # so that no run on the branch is released
    identity, made = backfill(store)
    pruned(store)
    assert [lineage.is_pruned(store, ref) for ref, _ in lineage.completed(store, made[0].split("/")[1])[-3:]] == [
        False
    ] * 3
    state = stored.read(store, identity)
    assert state is not None
    stored.save(store, state.model_copy(update={"state": "Rejected"}))
    gone = {folder.folder for folder in pruned(store).folders if folder.kind == "checkpoints"}
    assert gone == set(made), "no run continues the branch"


def test_a_backfill_can_start_after_a_checkpoint_that_is_left(store, runner):
    rollback(store, 3)
    pruned(store, keep=1)  # the weights after months 4 and 5 go
    commit_files(store, f"spans/{MONTHS[4]}/v2", {"p": "corrected"}, "span", rows=41)
    with pytest.raises(ConfigError, match=f"start is --from {MONTHS[3]}"):
        plan_backfill(store, small_config(), MONTHS[4], MONTHS[5])
    commit_files(store, f"spans/{MONTHS[3]}/v2", {"p": "corrected"}, "span", rows=41)
    plan = plan_backfill(store, small_config(), MONTHS[3], MONTHS[5])
    assert [span.span.name for span in plan.to_do] == MONTHS[3:6]
    assert plan.base == lineage.completed(store, "main")[2][0]
