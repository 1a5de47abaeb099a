"""What a prune deletes and what it keeps, by workers without arithmetic."""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.schema.operations import PruneConfig
from infra.store.base import Conflict, Store
from infra.store.directory import DirectoryStore
from infra.store.kernel_lock import KernelLock
from infra.store.lease import LostLease
from infra.store.manifest import MissingFolder, check_sizes, open_folder, read_manifest, seal
from tasks.backfill import backfill_state
from tasks.backfill.backfill_state import run_of
from tasks.backfill.planner import plan_backfill
from tasks.contracts.jobs import InferInputs, JobSpec
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.pruning import PrunePlan
from tasks.contracts.references import CompileRef
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import CLOSED_NUMBER, PRUNED_RELEASE, RELEASE, RESULT
from tasks.foundation.errors import CodeError, ConfigError, StoreError, SupersededError
from tasks.judging.rivals import begun_with, compared_with
from tasks.planning.next_run import plan_run
from tasks.planning.start import mined_release
from tasks.prune.prune import prune
from tasks.prune.prune_plan import plan_prune
from tasks.runs import branches, lineage, releases
from tasks.runs.plan import mark_pruned, planned_runs, save_plan
from tasks.runs.releases import Numbered
from tasks.runs.results import read_result
from tasks.runs.rollback import rollback
from tests.support.fakes.fake_runner import (
    FakeRunner,
    commit_files,
    ingest,
    ingest_feed,
    small_config,
    write_checkpoint,
)
from tests.support.fakes.stages import carry_out, refreshed
from tests.support.workspace.backfills import fake_workers, run_spans
from tests.support.workspace.states import checkpoint_state
from tests.support.workspace.stores import STORES

MONTHS = [f"2021-{month:02d}" for month in range(1, 8)]


@pytest.fixture(scope="module")
def six_months(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    """Six released months, and a seventh that has arrived; made once, and copied for each test."""
    store = DirectoryStore(tmp_path_factory.mktemp("six months"))
    with pytest.MonkeyPatch.context() as patch:
        fake_workers(store, patch)
        ingest(store, *MONTHS)
        run_spans(store, *MONTHS[:6])
    return store


@pytest.fixture
def store(tmp_path: Path, six_months: DirectoryStore) -> DirectoryStore:
    shutil.copytree(six_months.root, tmp_path / "workspace")
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture(params=STORES)
def any_store(request: pytest.FixtureRequest, six_months: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Each kind of store in turn."""
    store = STORES[request.param](request)
    for key in six_months.list(""):
        if not key.startswith(".locks/"):
            store.write(key, six_months.read(key))
    fake_workers(store, monkeypatch)
    return store


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    return fake_workers(store, monkeypatch)


def pruned(store: Store, keep: int = 2, dry_run: bool = False) -> PrunePlan:
    return prune(store, PruneConfig.newest(keep), dry_run, print)


def folders_of(store: Store, number: int) -> list[str]:
    one = releases.read(store, number)
    assert one.catalogue is not None
    return [one.model_prefix, one.vectors_prefix, one.catalogue.prefix, one.model.checkpoint.prefix]


# --- what goes ----------------------------------------------------------------------------------------------------


def test_a_dry_run_lists_sizes_and_deletes_nothing(store, runner):
    before = store.sizes("")
    plan = pruned(store, dry_run=True)
    assert store.sizes("") == before
    assert (plan.deleted, plan.kept, plan.releases) == (False, (5, 6), (1, 2, 3, 4))
    expected = {folder for number in range(1, 5) for folder in folders_of(store, number)}
    expected.remove(releases.read(store, 1).model.checkpoint.prefix)  # evaluations measure the first model
    assert {folder.folder for folder in plan.folders} == expected
    for folder in plan.folders:
        sizes = store.sizes(folder.folder)
        assert (folder.files, folder.bytes) == (len(sizes), sum(sizes.values()))
    assert plan.total_bytes == sum(plan.bytes.values()) == sum(folder.bytes for folder in plan.folders)
    assert set(plan.bytes) == {"models", "vectors", "catalogue", "checkpoints"}


def test_kept_releases_stay_whole_and_the_others_keep_their_records(any_store):
    store = any_store
    records = [key for key in store.list("runs") if key.endswith((".json", ".yaml")) and "/rows/" not in key]
    plan = pruned(store)
    assert plan.deleted
    for number in (5, 6):
        for prefix in folders_of(store, number):
            open_folder(store, prefix, read_manifest(store, prefix).kind)
    assert rollback(store).number == 5
    for folder in plan.folders:
        if folder.kind != "checkpoints":
            assert store.list(folder.folder) == []
    assert set(records) <= set(store.list("runs"))
    assert [each.number for each in releases.history(store)] == [1, 2, 3, 4, 5, 6]
    assert pruned(store, dry_run=True).folders == ()


def test_the_current_release_and_the_one_before_it_are_always_kept(store, runner):
    rollback(store, 3)
    assert pruned(store, keep=1).kept == (2, 3, 6)
    assert rollback(store).number == 2


def test_the_model_before_is_kept_after_any_number_of_refreshes(store, runner):
    for month in ("2021-01", "2021-02", "2021-03"):
        ingest_feed(store, month)
        refreshed(store)
    plan = pruned(store, keep=1)
    assert (plan.kept, plan.releases) == ((5, 8, 9), (1, 2, 3, 4, 6, 7))
    assert rollback(store, 5).number == 5
    assert pruned(store, keep=1).kept == (5, 9), "what is gone can't be kept"


def test_a_pruned_release_is_marked_and_not_rolled_back_to(store, runner):
    pruned(store)
    assert releases.pruned(store) == {1, 2, 3, 4}
    assert store.exists(CLOSED_NUMBER.key(number=7)), "the free number: a process that stood still may yet take it"
    pointer = store.read(releases.CURRENT)
    with pytest.raises(ConfigError, match=r"release 2 can't serve, nothing was changed: .*prune; there are still 5, 6"):
        rollback(store, 2)
    assert store.read(releases.CURRENT) == pointer


def test_files_that_were_made_again_go_with_a_new_mark(any_store):
    """A process read the old mark to remove it, and stood still: it must not remove the new one."""
    store, folders = any_store, folders_of(any_store, 2)[:2]
    files = {key: store.read(key) for folder in folders for key in store.list(folder)}
    pruned(store)
    for key, data in files.items():
        store.write(key, data)
    seen = store.tags(PRUNED_RELEASE.key(number=2))
    assert pruned(store).releases == (2,)
    store.discard(PRUNED_RELEASE.key(number=2), seen)
    assert releases.is_pruned(store, 2)


def test_rows_of_a_run_that_the_lineage_passed_go_and_rows_of_the_lineage_stay(store, runner):
    runner.fail(Stage.warmup, CodeError("it was the settings"))
    with pytest.raises(CodeError):
        carry_out(plan_run(store, small_config("train.epochs=9"), MONTHS[6]))
    (left,) = [key for key in planned_runs(store) if read_result(store, key, Stage.train) is None]
    assert not [folder for folder in pruned(store, dry_run=True).folders if folder.kind == "runs"], "it may go on"
    carry_out(plan_run(store, small_config(), MONTHS[6]))
    store.write(f"runs/{left}/train/attempt-1/tensorboard/events", b"curves")
    store.write(f"runs/{left}/validate/rows/{MONTHS[6]}-0f1e2d3c4b5a/part", b"as named by its content")
    store.write(f"runs/{left}/validate/keys/{MONTHS[6]}-0f1e2d3c4b5a/pairs.int64", b"the keys of these rows")
    store.write("runs/a-comparison/validate/rows/2021-01/part", b"no plan, so it is left alone")
    plan = pruned(store)
    assert {folder.folder for folder in plan.folders if folder.kind == "runs"} == {
        f"runs/{left}/validate/rows/{MONTHS[6]}",
        f"runs/{left}/validate/rows/{MONTHS[6]}-0f1e2d3c4b5a",
        f"runs/{left}/validate/keys/{MONTHS[6]}-0f1e2d3c4b5a",
        f"runs/{left}/train/attempt-1/tensorboard",
    }
    head = lineage.head(store, "main")
    assert head is not None
    for rows in head[1].consumed:
        open_folder(store, rows.prefix, "rows")
    assert store.exists("runs/a-comparison/validate/rows/2021-01/part")


def test_the_checkpoint_of_a_rejected_model_goes_once_no_run_continues_it(store, runner):
    ingest(store, "2021-08", "2021-09")
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    rejected = carry_out(plan_run(store, small_config()))
    assert rejected.released is None
    checkpoint = rejected.trained.checkpoint
    pruned(store)
    assert not lineage.is_pruned(store, checkpoint), "runs continue the lineage whose head it is"
    runner.metrics = {"recall@10": 0.5, "mrr@10": 0.3}
    assert carry_out(plan_run(store, small_config())).released is not None  # on a branch
    pruned(store)
    assert lineage.is_pruned(store, checkpoint)
    after = carry_out(plan_run(store, small_config())).released
    assert after is not None
    assert [rows.span.name for rows in after.rows] == [*MONTHS, "2021-08", "2021-09"]


def test_the_models_that_evaluations_compare_with_can_still_be_measured(store, runner):
    ingest(store, *(f"2021-{month:02d}" for month in range(8, 13)))
    for recall, champion in ((0.9, 0.5), (0.6, 0.602), (0.6, 0.602)):
        runner.metrics = {"recall@10": recall, "mrr@10": 0.3}
        runner.of_champion = {"recall@10": champion, "mrr@10": 0.3}
        carry_out(plan_run(store, small_config()))
    before = {release.number for release in compared_with(store, small_config()).values()}
    assert before == {1, 7, 8}, "the first, the best, and the one before the champion"
    assert pruned(store, keep=1).kept == (8, 9)
    assert {release.number for release in compared_with(store, small_config()).values()} == before
    assert {1, 7} <= releases.pruned(store), "they can't be rolled back to"


def test_imported_weights_stay_since_evaluations_measure_them_as_untrained(store, runner):
    imported = write_checkpoint(store, checkpoint_state(0, consumed=()))
    assert begun_with(store, small_config()) == imported
    pruned(store, keep=1)
    assert begun_with(store, small_config()) == imported, "else the gate would compare with random weights"


def test_a_compile_cache_stays_if_the_last_run_used_it_or_if_it_is_in_the_making(store, runner):
    commit_files(store, "compile/used", {"graph": "used"}, "compiled", complete=True)
    commit_files(store, "compile/old", {"graph": "old"}, "compiled", complete=True)
    commit_files(store, "compile/begun", {"graph": "begun"}, "compiled", complete=False)
    store.write("compile/no-manifest/graph", b"begun")
    head = lineage.head(store, "main")
    assert head is not None
    key = head[1].run_key
    warmed = read_result(store, key, Stage.warmup)
    assert warmed is not None
    outcome = warmed.outcome.model_copy(update={"compiled": CompileRef(key="used", graphs=1, seconds=1.0)})
    store.write(RESULT.key(run=key, stage=Stage.warmup), warmed.model_copy(update={"outcome": outcome}).to_json())
    assert [folder.folder for folder in pruned(store).folders if folder.kind == "compile"] == ["compile/old"]


def test_tokens_stay_for_runs_that_are_kept_and_go_with_their_rows(store, runner):
    first, last = releases.read(store, 1), releases.read(store, 6)
    comparison = "runs/a-comparison/validate/rows/2021-01"
    commit_files(store, comparison, {"part": "rows"}, "rows")
    gone = f"{last.rows[-1].prefix}-gone"
    rows = {"old": first.rows[0].prefix, "kept": last.rows[-1].prefix, "gone": gone, "compared": comparison}
    for name, of in rows.items():
        commit_files(store, f"tokens/{name}", {"rows.bin": name}, "tokens", of=of)
    store.write("tokens/begun/rows.bin", b"in the making")
    deleted = {folder.folder for folder in pruned(store).folders if folder.kind == "tokens"}
    assert deleted == {"tokens/old", "tokens/gone"}
    left = {key.split("/")[1] for key in store.list("tokens")}
    assert left == {"kept", "compared", "begun"}


def test_hard_negatives_and_the_release_they_come_from_stay_until_all_runs_are_finished(store, runner):
    config = small_config("heads.contrastive.negatives={per_query: 1}")
    commit_files(store, "negatives/k", {"rows.parquet": "mined"}, "negatives")
    plan = plan_run(store, config)
    save_plan(store, plan)
    mined = mined_release(store, plan)
    assert mined is not None
    for month in MONTHS[:3]:
        ingest_feed(store, month)
        refreshed(store)
    pruned(store, keep=1)
    open_folder(store, "negatives/k", "negatives")
    open_folder(store, mined.vectors, "vectors")
    carry_out(plan)
    assert "negatives/k" in {folder.folder for folder in pruned(store, keep=1).folders}


def test_notes_of_shards_go_with_the_shards(store, runner):
    first, last = releases.read(store, 1), releases.read(store, 6)
    notes = []
    for one in (first, last):
        shards = one.vectors_prefix.removeprefix("vectors/")
        notes.append(f"runs/{one.run_key}/infer/shards/{shards}")
        store.write(f"{notes[-1]}/0.json", b"{}")
    pruned(store)
    assert [bool(store.list(note)) for note in notes] == [False, True]


def test_input_is_never_deleted(store, runner):
    ingest(store, MONTHS[0], version=2)
    ingest_feed(store, "2021-01")
    ingest_feed(store, "2021-01", version=2)
    before = [*store.list("spans"), *store.list("items")]
    pruned(store, keep=1)
    assert [*store.list("spans"), *store.list("items")] == before


# --- what goes on -------------------------------------------------------------------------------------------------


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
    with pytest.raises(ConfigError, match=rf"{MONTHS[2]} is over, and its files were deleted by millrace prune"):
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
        with pytest.raises(SupersededError, match=r"release 7 .* run the same command again"):
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


def test_the_newest_releases_of_models_and_young_ones_are_kept(store, runner):
    policy = {"releases": 1, "models": 1, "days": 0.0}
    kept = [prune(store, PruneConfig(**policy), True, print).kept]
    kept.append(prune(store, PruneConfig(**{**policy, "models": 4}), True, print).kept)
    made = dt.datetime.fromisoformat(releases.read(store, 2).created_at)
    days = (dt.datetime.now(dt.UTC) - made).total_seconds() / 86400 + 1e-6
    kept.append(prune(store, PruneConfig(**{**policy, "days": days}), True, print).kept)
    ingest_feed(store, "2021-01")
    refreshed(store)
    kept.append(prune(store, PruneConfig(**{**policy, "models": 3}), True, print).kept)
    assert kept == [(5, 6), (3, 4, 5, 6), (2, 3, 4, 5, 6), (4, 5, 6, 7)]


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
    state, made = backfill_state.begin(store, plan, "", ""), []
    for number, span in enumerate(plan.spans):
        run = run_of(store, plan, span)
        made.append(carry_out(run).trained.checkpoint.prefix)
        spans = [each.model_copy(update={"run_key": run.run_key}) if n == number else each
                 for n, each in enumerate(state.spans)]  # fmt: skip
        state = state.model_copy(update={"spans": tuple(spans)})
    backfill_state.save(store, state.model_copy(update={"state": "Failed"}))
    return plan.id, made


def test_an_unfinished_backfill_keeps_what_it_trained_and_a_finished_one_does_not(store, runner):
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}  # so that no run on the branch is released
    identity, made = backfill(store)
    pruned(store)
    assert [lineage.is_pruned(store, ref) for ref, _ in lineage.completed(store, made[0].split("/")[1])[-3:]] == [
        False
    ] * 3
    state = backfill_state.read(store, identity)
    assert state is not None
    backfill_state.save(store, state.model_copy(update={"state": "Rejected"}))
    gone = {folder.folder for folder in pruned(store).folders if folder.kind == "checkpoints"}
    assert gone == set(made), "no run continues the branch"


def test_a_backfill_can_start_after_a_checkpoint_that_is_left(store, runner):
    rollback(store, 3)
    pruned(store, keep=1)  # the weights after months 4 and 5 go
    commit_files(store, f"spans/{MONTHS[4]}/v2", {"p": "corrected"}, "span", rows=41)
    with pytest.raises(ConfigError, match=f"nearest earlier start is --from {MONTHS[3]}"):
        plan_backfill(store, small_config(), MONTHS[4], MONTHS[5])
    commit_files(store, f"spans/{MONTHS[3]}/v2", {"p": "corrected"}, "span", rows=41)
    plan = plan_backfill(store, small_config(), MONTHS[3], MONTHS[5])
    assert [span.span.name for span in plan.to_do] == MONTHS[3:6]
    assert plan.base == lineage.completed(store, "main")[2][0]


# --- safety -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["run", "refresh"])
def test_nothing_is_deleted_while_a_process_works(store, runner, what):
    before = store.sizes("")
    with store.lock(f"lineages/main.{what}"), pytest.raises(Conflict):
        pruned(store)
    assert {key: size for key, size in store.sizes("").items() if not key.startswith(".locks/")} == {
        key: size for key, size in before.items() if not key.startswith(".locks/")
    }


class Meanwhile(DirectoryStore):
    """A store in which something happens before a delete or after a write."""

    before_delete: Callable[[str], None] = staticmethod(lambda key: None)
    after_write: Callable[[str], None] = staticmethod(lambda key: None)

    def delete(self, prefix: str) -> None:
        self.before_delete(prefix)
        super().delete(prefix)

    def write(self, key: str, data: bytes) -> None:
        super().write(key, data)
        self.after_write(key)


def test_a_prune_that_lost_a_lineage_deletes_nothing_more(store, runner, monkeypatch):
    before = store.sizes("vectors") | store.sizes("lineages")
    monkeypatch.setattr(KernelLock, "confirm", lambda lock: raise_lost())
    with pytest.raises(SupersededError):
        pruned(store)
    assert store.sizes("vectors") | store.sizes("lineages") == before


def raise_lost() -> None:
    raise LostLease("the lease was lost to process 7 on elsewhere")


def test_a_folder_loses_its_manifest_first_and_a_killed_prune_goes_on(store, runner):
    disturbed = Meanwhile(store.root)
    vectors = releases.read(store, 1).vectors_prefix

    def die(key: str) -> None:
        if key == vectors:
            raise KeyboardInterrupt

    disturbed.before_delete = die
    with pytest.raises(KeyboardInterrupt):
        pruned(disturbed)
    with pytest.raises(MissingFolder):
        read_manifest(store, vectors)
    assert store.list(vectors), "killed in the middle"
    assert 1 in releases.pruned(store)
    pruned(store)
    assert store.list(vectors) == []


def test_a_checkpoint_killed_in_the_middle_still_counts_as_trained(store, runner):
    disturbed = Meanwhile(store.root)
    prefix = releases.read(store, 2).model.checkpoint.prefix

    def die(key: str) -> None:
        if key == f"{prefix}/model.safetensors":
            raise KeyboardInterrupt

    disturbed.before_delete = die
    with pytest.raises(KeyboardInterrupt):
        pruned(disturbed)
    chain = lineage.completed(store, "main")
    assert len(chain) == 6
    pruned(store)
    assert lineage.completed(store, "main") == chain
    assert store.list(prefix) == [f"{prefix}/PRUNED.json", f"{prefix}/state.json"]


@pytest.mark.parametrize("moved", [{"release": 2}, {"release": 6, "going_to": 2}])
def test_a_rollback_at_the_same_moment_stops_the_prune(store, runner, moved):
    disturbed = Meanwhile(store.root)
    pointer = store.read(releases.CURRENT)

    def roll_back(key: str) -> None:
        if key == "releases/2.pruned.json":
            store.swap(releases.CURRENT, releases.Pointer(**moved).to_json(), expected=pointer)

    disturbed.after_write = roll_back
    with pytest.raises(Conflict, match="release 2 became current meanwhile; nothing was deleted"):
        pruned(disturbed)
    assert releases.pruned(store) == set()
    assert rollback(store, 1).number == 1


@pytest.mark.parametrize("on", [2, 6], ids=["of the plan", "current"])
def test_a_prune_that_stood_still_removes_no_mark_of_another(store, runner, monkeypatch, on):
    """The other one took the locks, and deletes the files of the release."""
    disturbed = Meanwhile(store.root)

    def roll_back(key: str) -> None:
        if key == "releases/2.pruned.json":
            raw, _ = releases.read_pointer(store)
            store.swap(releases.CURRENT, releases.Pointer(release=2).to_json(), expected=raw)

    if on == 2:
        disturbed.after_write = roll_back
    else:
        releases.mark_pruned(store, [on])

    def other(*_: object) -> None:
        releases.mark_pruned(store, [on])

    monkeypatch.setattr("tasks.prune.prune.confirm_lineages", other)
    with contextlib.suppress(Conflict):
        pruned(disturbed, keep=on)  # of 6, nothing is deleted, so nothing else confirms
    assert releases.is_pruned(store, on)


def test_a_release_that_was_made_after_the_plan_was_begun_stops_the_prune(store, runner, monkeypatch):
    planned = plan_prune

    def make(*arguments: Any) -> PrunePlan:
        made = releases.read(store, 6)
        store.create(RELEASE.key(number=7), made.model_copy(update={"number": 7}).to_json())
        return planned(*arguments)

    monkeypatch.setattr("tasks.prune.prune.plan_prune", make)
    with pytest.raises(Conflict, match="release 7 was made meanwhile; nothing was deleted"):
        pruned(store)
    assert not store.exists(CLOSED_NUMBER.key(number=7))
    assert releases.pruned(store) == set()


def test_a_prune_that_is_killed_after_it_closed_the_number_of_a_new_release_does_not_undo_the_release(
    store, runner, monkeypatch
):
    """It stood still while the release was made; a person went back then, so no prune looks at the release first."""

    class Killed(Exception): ...

    def kill(*_: object) -> None:
        raise Killed

    carry_out(plan_run(store, small_config()))
    with monkeypatch.context() as slow:
        slow.setattr("tasks.prune.prune.releases.last", lambda _: 6)  # as it was before that
        slow.setattr("tasks.prune.prune._open", kill)
        with pytest.raises(Killed):
            pruned(store)
    assert store.exists(CLOSED_NUMBER.key(number=7))
    rollback(store, 6)
    pruned(store, keep=1)
    assert 7 not in releases.pruned(store)
    assert rollback(store, 7).number == 7


def test_a_mark_that_a_killed_prune_left_on_the_current_release_is_removed(store, runner):
    releases.mark_pruned(store, [6])
    assert 6 in pruned(store).kept
    assert not releases.is_pruned(store, 6)


def test_a_rollback_that_was_killed_does_not_stop_each_later_prune(store, runner):
    """It announced its target, a prune had marked that, and both were killed. If it only stood still, it is refused."""
    raw, pointer = releases.read_pointer(store)
    assert pointer is not None
    releases.swap_pointer(store, pointer.model_copy(update={"going_to": 2}), expected=raw)
    announced = store.read(releases.CURRENT)
    releases.mark_pruned(store, [2])
    assert 2 in pruned(store).releases
    _, pointer = releases.read_pointer(store)
    assert pointer is not None
    assert pointer.going_to is None
    with pytest.raises(Conflict):
        store.swap(releases.CURRENT, releases.Pointer(release=2).to_json(), expected=announced)
    with pytest.raises(ConfigError, match="release 2 can't serve"):
        rollback(store, 2)


def test_a_prune_at_the_same_moment_stops_the_rollback(store, runner):
    disturbed = Meanwhile(store.root)
    before = releases.current(store)

    def mark(key: str) -> None:
        if key == releases.CURRENT and not releases.pruned(store):
            releases.mark_pruned(store, [2])

    disturbed.after_write = mark
    with pytest.raises(ConfigError, match="release 2 can't serve"):
        rollback(disturbed, 2)
    assert releases.current(store) == before
    _, pointer = releases.read_pointer(store)
    assert pointer is not None
    assert pointer.going_to is None


def test_a_prune_does_not_walk_back_over_releases_that_were_pruned_before(store, runner, monkeypatch):
    for _ in range(2):  # the second one finds all releases by other models without files
        pruned(store)
    read, real = Counter[str](), store.read
    monkeypatch.setattr(store, "read", lambda key: read.update([key]) or real(key))
    pruned(store)
    of_old_ones = {key: count for key, count in read.items() if RELEASE.match(key) and key < "releases/5.json"}
    # Once as all records, once as the models that evaluations compare with.
    assert of_old_ones == {f"releases/{number}.json": 2 for number in range(1, 5)}


def test_a_lost_pointer_stops_the_prune_since_nobody_knows_what_serves(store, runner):
    store.delete(releases.CURRENT)
    with pytest.raises(StoreError, match=r"releases/CURRENT is gone.*millrace rollback --to N; nothing was deleted"):
        pruned(store)
    assert releases.pruned(store) == set()


def test_an_unreadable_record_stops_the_prune(store, runner):
    store.write("releases/1.json", b"{")
    before = store.list("vectors")
    with pytest.raises(StoreError, match=r"releases/1\.json"):
        pruned(store)
    assert store.list("vectors") == before
