"""An item, or a person's rows, gone from every byte of a workspace with four releases, and never back."""

from __future__ import annotations

import json
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from infra.store import kept_copies
from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from infra.store.manifest import MANIFEST, open_files, read_manifest
from tasks.contracts.erasing import ErasedTables, EraseItem
from tasks.contracts.kinds import lineage_lock
from tasks.contracts.spans import SpanKind
from tasks.contracts.workspace import CERTIFICATE, ERASED, ERASURE, KEYS, POSITIVES, TABLE
from tasks.data.canonical import ITEMS, ROWS
from tasks.data.erased import hash_of_value
from tasks.data.ingest import ingest
from tasks.data.span_versions import list_feeds, list_spans
from tasks.erase.erase import erase
from tasks.erase.handling import HANDLING, Part
from tasks.erase.records import Certificate
from tasks.foundation.errors import ConfigError, StoreError
from tasks.planning.next_run import plan_run
from tasks.runs import releases
from tasks.runs.catalogues import plan_refresh
from tasks.runs.plan import NothingToDo, save_plan
from tasks.runs.rollback import rollback
from tasks.runs.snapshot import expect_whole, find_loss
from tests.support.fakes.stages import carry_out, refreshed
from tests.support.workspace.jobs import COLOURS, THINGS
from tests.support.workspace.served import copy_of, in_use, served_config
from tests.support.workspace.stores import STORES
from tests.tasks.erase.scan import found

SPANS = ("2021-Q1", "2021-Q2")
# Once and twice accented letters in NFD, and with the first accent alone composed; NFC composes all.
ACCENTED = ("ite\u0301m-o\u0302\u0301-17", "ite\u0301m-\u00f4\u0301-17")
ITEM, TEXT, USER = "item-0017", "quilted teapot number 17", "user-0003"
MAP = {"id": "row", "query": "query", "item": "item", "item_id": "sku", "label": "label"}


def write_log(path: Path) -> Path:
    """A log of two quarters: 60 items, 20 users, each query about one item of one user."""
    rows = []
    for span, month in (("Q1", "02"), ("Q2", "05")):
        for number in range(120):
            item = number % 60
            thing = f"{COLOURS[item % len(COLOURS)]} {THINGS[item * 3 % len(THINGS)]}"
            rows.append(
                {
                    "row": f"{span}-row-{number:04d}",
                    "at": f"2021-{month}-10T10:00:00Z",
                    "query": f"want a {thing} {number % 7} please, {span} and {number}",
                    "item": TEXT if item == 17 else f"{thing} {item}",
                    "sku": f"item-{item:04d}",
                    "label": float(number % 5 + 1),
                    "user_id": f"user-{number % 20:04d}",
                }
            )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_feed(path: Path, *more: str) -> Path:
    items = {ITEM: f"{TEXT}, now in blue", **{each: f"a new {each}" for each in more}}
    lines = [{"sku": item, "text": text, "at": "2021-05-20T00:00:00Z"} for item, text in items.items()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def take_log(store: DirectoryStore, path: Path) -> tuple[str, ...]:
    return ingest(store, path, None, "at", SpanKind.quarter, MAP, ROWS).notes


def take_feed(store: DirectoryStore, path: Path) -> None:
    ingest(store, path, None, "at", SpanKind.quarter, {"id": "sku", "text": "text"}, ITEMS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    """Two trained spans, each released, and a refresh with a feed that names the item."""
    folder = tmp_path_factory.mktemp("erase")
    store = DirectoryStore(folder / "made" / "workspace")
    take_log(store, write_log(folder / "log.jsonl"))
    with in_use(store):
        for span in SPANS:
            carry_out(plan_run(store, served_config(), span))
        take_feed(store, write_feed(folder / "feed.jsonl"))
        refreshed(store, served_config())
    return store


@pytest.fixture
def store(made: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    monkeypatch.setenv(kept_copies.CACHE, str(tmp_path / "cache"))
    return copy_of(made, tmp_path)


def no_target(asked: EraseItem) -> ErasedTables:
    raise AssertionError(f"nothing is published: {asked.target}")


def erased(store: DirectoryStore, column: str = "item_id", value: str = ITEM, dry_run: bool = False) -> Certificate:
    return erase(store, column, value, dry_run, lambda line: None, no_target)


def expect_sound(store: DirectoryStore) -> None:
    """Compare every file of every folder with its manifest, and every release with its records."""
    for key in store.list(""):
        if key.endswith(f"/{MANIFEST}"):
            prefix = key.removesuffix(f"/{MANIFEST}")
            open_files(store, prefix, read_manifest(store, prefix).kind)
    for release in releases.history(store):
        expect_whole(store, release)
        assert find_loss(store, release) is None
        vectors = [pq.read_metadata(path).num_rows for path in open_files(store, release.vectors_prefix, "vectors")]
        assert sum(vectors) == release.vectors == release.catalogue.items


def test_every_kind_of_the_table_has_its_part_or_a_reason_for_none():
    assert set(HANDLING) == set(TABLE)
    assert all(each.why for each in HANDLING.values() if each.part in (Part.none, Part.weights))


def test_an_item_is_gone_from_every_byte_and_its_releases_serve_on(store, made, tmp_path):
    before = {each.number: each.vectors for each in releases.history(store)}
    assert len(found(store.root, ITEM, TEXT)) > 20, "the scan sees it"
    done = erased(store)
    assert found(store.root, ITEM, TEXT) == []
    expect_sound(store)
    assert {each.number: before[each.number] - each.vectors for each in releases.history(store)} == {1: 1, 2: 1, 3: 1}
    assert done.erased
    assert done.found_again == 0
    assert [(span.name, span.version) for span in done.spans] == [("2021-Q1", 2), ("2021-Q2", 2)]
    assert [each.spans for each in done.trained] == [("2021-Q1",), SPANS]
    assert [each.releases for each in done.trained] == [(1,), (2, 3)]
    assert done.backfill == "millrace backfill --from 2021-Q1 --to 2021-Q2 --reason erased"
    key = hash_of_value("item_id", ITEM)[:16]
    assert Certificate.model_validate_json(store.read(CERTIFICATE.key(key=key, number=1))) == done
    assert store.exists(ERASED.key(key=key))
    assert not store.exists(ERASURE.key(key=key))
    rollback(store, 1)
    rollback(store, 3)
    with pytest.raises(NothingToDo):
        plan_refresh(store, served_config())


def test_folders_that_are_derived_from_its_rows_go(store):
    """The right items of a run are made of the rows of all spans so far."""
    derived = (KEYS, POSITIVES)
    kinds = [kind for key in store.list("runs") for kind in derived if key.endswith(MANIFEST) and kind.match(key)]
    assert [kinds.count(kind) for kind in derived] == [2, 2]
    erased(store)
    assert not [key for key in store.list("runs") for kind in derived if kind.match(key)]


@pytest.mark.parametrize("kind", [name for name in STORES if name != "directory"])
def test_a_bucket_is_erased_as_a_folder(made, tmp_path, request, kind):
    """Its files are read through copies on this machine, which must not be taken for files that are still there."""
    bucket = STORES[kind](request)
    for key in made.list(""):
        if not key.startswith(".locks/"):
            bucket.write(key, made.read(key))
    assert erase(bucket, "item_id", ITEM, False, print, no_target).erased
    for key in bucket.list(""):
        path = tmp_path / "fetched" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.read(key))
    assert found(tmp_path / "fetched", ITEM, TEXT) == []
    expect_sound(DirectoryStore(tmp_path / "fetched"))


def test_the_rows_of_a_person_go_and_the_items_stay(store, made):
    rows = pq.read_table(made.root / "spans/2021-Q1/v1/part-00000.parquet").to_pylist()
    queries = [row["query"] for row in rows if row["user_id"] == USER]
    ids = [row["row_id"] for row in rows if row["user_id"] == USER]
    assert len(queries) == 6
    done = erased(store, "user_id", USER)
    assert found(store.root, USER, *queries, *ids) == []
    expect_sound(store)
    assert done.releases == ()
    held = [kind.rows for kind in done.kinds if kind.kind == "held-out rows"]
    assert held[0] > 0, "pairs of hashed queries go too"
    assert [each.vectors for each in releases.history(store)] == [each.vectors for each in releases.history(made)]


def test_nothing_brings_it_back(store, made, tmp_path):
    erased(store)
    assert "value: 4, " in take_log(store, write_log(tmp_path / "again.jsonl"))[0]
    assert [ref.version for ref in list_spans(store)] == [2, 2], "the same export is as before"
    take_feed(store, write_feed(tmp_path / "feed.jsonl", "item-new"))
    backup = list_feeds(made)[-1].prefix
    shutil.rmtree(store.root / list_feeds(store)[-1].prefix)
    shutil.copytree(made.root / backup, store.root / list_feeds(store)[-1].prefix)
    for ref in list_spans(made):  # a backup of the spans, older than the erasure
        shutil.rmtree(store.root / ref.prefix)
        shutil.copytree(made.root / ref.prefix, store.root / ref.prefix)
    with in_use(store):
        release = refreshed(store, served_config("infer.shard_rows=32"))
        table = pq.read_table([*open_files(store, release.vectors_prefix, "vectors")])
        assert ITEM not in table["item_id"].to_pylist()
        trained = carry_out(plan_run(store, served_config("lineage=other"), "2021-Q1"))
    assert trained is not None
    folders = [path for path in (store.root / "runs").rglob("*.parquet") if "validate/rows" in path.as_posix()]
    assert not any(ITEM in pq.read_table(path)["item_id"].to_pylist() for path in folders)


def test_a_dry_run_lists_the_same_and_changes_nothing(store):
    before = {key: store.read(key) for key in store.list("")}
    planned = erased(store, dry_run=True)
    assert {key: store.read(key) for key in store.list("")} == before
    done = erased(store)
    assert not planned.erased
    assert planned.kinds == done.kinds
    assert (planned.spans, planned.trained, planned.releases) == (done.spans, done.trained, done.releases)


WRITES = ("swap", "create", "upload", "delete", "discard")


@pytest.mark.parametrize("at", [1, 2, 9, 20, 33, 47, 60])
def test_a_killed_erasure_is_finished_by_the_same_command(store, monkeypatch, at):
    count = 0

    def dying(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(self: DirectoryStore, key: str, *arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise KeyboardInterrupt
            return original(self, key, *arguments)

        return write

    with monkeypatch.context() as patch:
        for name in WRITES:
            patch.setattr(DirectoryStore, name, dying(getattr(DirectoryStore, name)))
        with pytest.raises(KeyboardInterrupt):
            erased(store)
    if any(ERASURE.match(key) for key in store.list("erasures")):
        with pytest.raises(ConfigError, match="interrupted"):
            save_plan(store, plan_run(store, served_config("lineage=other"), "2021-Q1"))
    done = erased(store)
    assert found(store.root, ITEM, TEXT) == []
    expect_sound(store)
    assert [each.spans for each in done.trained] == [("2021-Q1",), SPANS]
    assert [span.version for span in done.spans] == [2, 2]
    assert [ref.version for ref in list_spans(store)] == [2, 2]


@pytest.mark.parametrize("lock", [lineage_lock("main"), lineage_lock("main", "refresh"), "ingest"])
def test_nothing_is_erased_while_somebody_works_on_the_workspace(store, lock):
    before = store.sizes("spans")
    with store.lock(lock), pytest.raises(Conflict, match="in use"):
        erased(store)
    assert store.sizes("spans") == before
    assert store.list("erased") == []


def test_kept_copies_of_this_machine_go_too(store, tmp_path):
    (release,) = [each for each in releases.history(store) if each.number == 3]
    files = open_files(store, release.vectors_prefix, "vectors")
    with_it = [path for path in files if ITEM in pq.read_table(path)["item_id"].to_pylist()]
    kept_copies.keep({path: f"{number:064d}" for number, path in enumerate(files)})
    assert len([*(tmp_path / "cache").iterdir()]) == len(files)
    torn = tmp_path / "cache" / f"{9:064d}".replace("0", "f") / "file"
    torn.parent.mkdir()
    torn.write_bytes(b"PAR1 and no footer")
    assert erased(store).copies == len(with_it) + 1 == 2, "a damaged copy may hold it too, and is fetched again"
    assert found(tmp_path / "cache", ITEM) == []


def test_a_file_that_is_of_no_kind_stops_it_by_name(store):
    (store.root / "notes.txt").write_text(f"look at {ITEM} again")
    with pytest.raises(StoreError, match=r"1 file .*notes\.txt"):
        erased(store)
    (store.root / "notes.txt").unlink()
    assert erased(store).erased


@pytest.mark.parametrize("of", ["catalogue", "vectors", "spans"])
def test_a_damaged_file_stops_it_by_name_since_it_may_hold_the_item(store, of):
    """Its pages may still hold the value, packed."""
    key = next(key for key in store.list(of) if key.endswith(".parquet"))
    path = store.path(key)
    data = path.read_bytes()
    path.write_bytes(data[:-8] + b"x" * 8)
    before = {key: tag for key, tag in store.tags("").items() if not key.startswith(".locks/")}
    with pytest.raises(StoreError, match=rf"{key} is damaged"):
        erased(store)
    assert {key: tag for key, tag in store.tags("").items() if not key.startswith(".locks/")} == before
    path.write_bytes(data)
    assert erased(store).erased


def test_an_item_goes_in_every_form_of_unicode_that_files_hold(tmp_path):
    """One export writes é as one sign, the other as e with an accent; the request has the third form."""
    store, both = DirectoryStore(tmp_path / "workspace"), ACCENTED
    log = write_log(tmp_path / "log.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in log]
    forms = {f"item-{number:04d}": form for number, form in zip((17, 18), both, strict=True)}
    rows = [{**row, "sku": forms.get(row["sku"], row["sku"])} for row in rows]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    take_log(store, tmp_path / "log.jsonl")
    with in_use(store):
        carry_out(plan_run(store, served_config(), SPANS[0]))
    assert all(found(store.root, form) for form in both)
    asked = unicodedata.normalize("NFC", both[0])
    assert asked not in both
    done = erased(store, value=asked)
    assert found(store.root, asked, *both) == []
    expect_sound(store)
    assert {kind.kind: kind.rows for kind in done.kinds}["span"] == 8
    assert "rows with an erased value: 8, left out" in take_log(store, tmp_path / "log.jsonl")


def test_a_column_that_no_span_has_is_refused_with_the_columns_there_are(store):
    with pytest.raises(ConfigError, match=r"=.*item_id.*user_id"):
        erased(store, "customer", "7")
    assert store.list("erased") == []
