"""What a prune deletes and what it keeps, by workers without arithmetic."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pytest

from configs.schema.operations import PruneConfig
from infra.store.base import Store
from infra.store.manifest import open_folder, read_manifest
from tasks.contracts.references import CompileRef
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import CLOSED_NUMBER, PRUNED_RELEASE, RELEASE, RESULT
from tasks.foundation.errors import CodeError, ConfigError, StoreError
from tasks.judging.rivals import begun_with, compared_with
from tasks.planning.next_run import plan_run
from tasks.planning.start import mined_release
from tasks.prune.prune import prune
from tasks.runs import lineage, releases
from tasks.runs.plan import planned_runs, save_plan
from tasks.runs.results import read_result
from tasks.runs.rollback import rollback
from tests.support.fakes.fake_runner import commit_files, ingest, ingest_feed, small_config, write_checkpoint
from tests.support.fakes.stages import carry_out, refreshed
from tests.support.workspace.states import checkpoint_state
from tests.tasks.prune.six_months import MONTHS, pruned


def folders_of(store: Store, number: int) -> list[str]:
    one = releases.read(store, number)
    assert one.catalogue is not None
    return [one.model_prefix, one.vectors_prefix, one.catalogue.prefix, one.model.checkpoint.prefix]


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


def test_a_pruned_release_is_marked_and_not_rolled_back_to(store, runner):
    pruned(store)
    assert releases.pruned(store) == {1, 2, 3, 4}
    assert store.exists(CLOSED_NUMBER.key(number=7)), "the free number: a process that stood still may yet take it"
    pointer = store.read(releases.CURRENT)
    with pytest.raises(ConfigError, match=r"release 2 .*still 5, 6"):
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
    store.write(f"runs/{left}/validate/positives/{MONTHS[6]}-0f1e2d3c4b5a/item_key.keys", b"what it would train by")
    store.write("runs/a-comparison/validate/rows/2021-01/part", b"no plan, so it is left alone")
    plan = pruned(store)
    assert {folder.folder for folder in plan.folders if folder.kind == "runs"} == {
        f"runs/{left}/validate/rows/{MONTHS[6]}",
        f"runs/{left}/validate/rows/{MONTHS[6]}-0f1e2d3c4b5a",
        f"runs/{left}/validate/keys/{MONTHS[6]}-0f1e2d3c4b5a",
        f"runs/{left}/validate/positives/{MONTHS[6]}-0f1e2d3c4b5a",
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


def test_the_weights_that_embed_the_items_of_a_kept_release_stay(store, runner):
    serving, before = releases.read(store, 6), releases.read(store, 3).model
    of_queries = serving.model.model_copy(update={"items": before})
    store.write("releases/6.json", serving.model_copy(update={"model": of_queries}).to_json())
    pruned(store, keep=1)
    gone = releases.read(store, 2).model.checkpoint
    assert (lineage.is_pruned(store, gone), lineage.is_pruned(store, before.checkpoint)) == (True, False)


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


# --- records ------------------------------------------------------------------------------------------------------


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
    with pytest.raises(StoreError, match=r"CURRENT .*rollback --to N"):
        pruned(store)
    assert releases.pruned(store) == set()


def test_an_unreadable_record_stops_the_prune(store, runner):
    store.write("releases/1.json", b"{")
    before = store.list("vectors")
    with pytest.raises(StoreError, match=r"releases/1\.json"):
        pruned(store)
    assert store.list("vectors") == before
