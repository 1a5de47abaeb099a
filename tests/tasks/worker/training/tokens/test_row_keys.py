"""Keys of spans in files: equal to the keys of the texts, used for a run's own queries, refused if they don't fit."""

import dataclasses
import io
import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.manifest import open_folder
from tasks.contracts.references import RowsRef
from tasks.worker.process.machine import Machine
from tasks.worker.training import row_keys
from tasks.worker.training.known_pairs import KnownPositives, LineageKeys, Positives, find_known_positives
from tasks.worker.training.replay import ReplayedRows
from tasks.worker.training.row_keys import (
    KIND,
    OTHERS,
    PAIRS,
    ROW_KEYS,
    TEXTS,
    WIDTHS,
    SortedFile,
    TextKeys,
    id_keys,
    open_span_keys,
    ranges_of_keys,
    text_keys,
    write_keys,
)
from tests.support.workspace.jobs import CLASSIFIER, change_rows, make_workspace, tiny_config, with_keys, write_rows
from tests.support.workspace.stores import STORES

PAIRS_ONLY = (CLASSIFIER, "heads.contrastive.positives_only=true")
CONFIG, AGAIN = tiny_config(*PAIRS_ONLY), tiny_config(*PAIRS_ONLY, "train.replay=0.9")


def test_keys_in_workspaces_stay_those_of_their_texts():
    shoe, nothing = 8339643581532627818, 6510301506637419378
    assert text_keys(pa.chunked_array([["Red  ＳＨＯＥ", "red shoe", ""]])).tolist() == [shoe, shoe, nothing]
    assert id_keys(pa.chunked_array([["b-1", "B-1"]])).tolist() == [5599665587877520278, 7332413382568398454]


@pytest.fixture
def spans(tmp_path: Path) -> tuple[DirectoryStore, tuple[RowsRef, ...]]:
    """Three spans, whose queries have several items, and items several texts."""
    store, first = make_workspace(tmp_path, rows=90, distinct=12)
    second = change_rows(store, first, "2026-02", _few_queries, tmp_path)
    third = write_rows(store, "2026-04", 60, tmp_path, 9)
    return store, (first, second, change_rows(store, third, "2026-03", _few_queries, tmp_path))


def _few_queries(rows: pa.Table) -> pa.Table:
    queries = [f"want a {('red', 'blue')[number % 2]} {number % 7}" for number in range(rows.num_rows)]
    items = [f"{item} of {number % 3}" for number, item in enumerate(rows["item"].to_pylist())]
    for name, values in (("query", queries), ("item", items)):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(values))
    return rows


def records(folder: Path, name: str) -> list[tuple[int, ...]]:
    return [tuple(row) for row in np.fromfile(folder / name, np.int64).reshape(-1, WIDTHS[name]).tolist()]


def test_a_folder_has_the_keys_of_all_rows_once_and_sorted(spans: tuple[DirectoryStore, tuple[RowsRef, ...]]):
    store, (first, *_) = spans
    (ref,) = with_keys(store, CONFIG, first)
    assert ref.row_keys is not None
    folder, manifest = open_folder(store, ref.row_keys, KIND)
    rows = np.concatenate(list(TextKeys(store, [first], None, CONFIG.heads)))
    every = [tuple(row) for row in rows[["query_key", "item_key", "text_key", "pair"]].tolist()]
    assert records(folder, PAIRS) == sorted({row[:3] for row in every if row[3]})
    assert records(folder, TEXTS) == sorted({row[1:3] for row in every})
    assert records(folder, OTHERS) == sorted({row[:1] for row in every if not row[3]})
    assert manifest.facts["rule"] == {"version": 1, "pair": "label >= 4.0"}
    assert with_keys(store, CONFIG, first) == (ref,), "the same rows and rule give the same folder"
    assert with_keys(store, tiny_config(), first)[0].row_keys != ref.row_keys


def keys_of(
    store: Store,
    own: tuple[RowsRef, ...],
    earlier: tuple[RowsRef, ...],
    config: Config = CONFIG,
    golden: str | None = None,
) -> LineageKeys:
    replayed = ReplayedRows.of(store, config, own, earlier, None)
    return LineageKeys(store, own, earlier, golden, config.heads, replayed)


def known_of(keys: LineageKeys, folder: Path) -> KnownPositives:
    folder.mkdir()
    keys.write_known(folder, lambda: None)
    return KnownPositives.open(folder)


def assert_same(one: Positives, other: Positives) -> None:
    for name in ("queries", "offsets", "keys"):
        assert np.asarray(getattr(one, name)).tolist() == np.asarray(getattr(other, name)).tolist(), name


@pytest.mark.parametrize("config", [CONFIG, AGAIN])
def test_from_keys_come_the_pairs_of_the_texts_for_the_queries_of_the_run(
    spans: tuple[DirectoryStore, tuple[RowsRef, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Config
):
    store, (*earlier, own) = spans
    own = change_rows(store, own, "2026-05", lambda rows: rows.slice(0, 5), tmp_path)
    refs = with_keys(store, config, *earlier, own)
    every = find_known_positives(TextKeys(store, (*earlier, own), None, config.heads), 240)
    keys = keys_of(store, refs[2:], refs[:2], config)
    drawn = keys.replayed.commit("runs/r/validate/replayed/2026-03", tmp_path / "replayed")
    keys = dataclasses.replace(keys, replayed=dataclasses.replace(keys.replayed, folder=drawn))
    rows = np.concatenate(list(TextKeys(store, [own], None, config.heads)))
    assert not rows["pair"].all(), "queries of rows that are no pairs count too"
    again = [text_keys(table["query"]) for table in keys.replayed]
    expected = every.part(np.unique(np.concatenate([rows["query_key"], *again])))
    assert (len(expected.items.queries) > len(every.part(np.unique(rows["query_key"])).items.queries)) == bool(again)
    for ref in earlier:
        store.delete(ref.prefix)
    monkeypatch.setattr(row_keys, "ROWS_AT_ONCE", 16)
    monkeypatch.setattr(row_keys, "_READ_RECORDS", 5)
    found = known_of(keys, tmp_path / "known")
    for one, other in zip(found, expected, strict=True):
        assert len(np.asarray(one.queries)) > 2
        assert_same(one, other)


def test_keys_in_a_bucket_are_those_in_a_directory(
    spans: tuple[DirectoryStore, tuple[RowsRef, ...]], tmp_path: Path, request: pytest.FixtureRequest
):
    store, refs = spans
    refs = with_keys(store, CONFIG, *refs)
    bucket = STORES["s3"](request)
    for ref in refs:
        assert ref.row_keys is not None
        for key in store.list(ref.row_keys):
            bucket.write(key, store.read(key))
    machine = Machine(bucket.uri, "runs/r/train/attempt-1", 0, 1)
    expected = known_of(keys_of(store, refs[2:], refs[:2]), tmp_path / "directory")
    found = known_of(keys_of(machine.reads(bucket), refs[2:], refs[:2]), tmp_path / "bucket")
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)
    machine.leave()


@pytest.mark.parametrize("why", ["none were written", "damaged", "pruned", "another rule"])
def test_a_span_without_usable_keys_is_read_for_its_texts(
    spans: tuple[DirectoryStore, tuple[RowsRef, ...]], tmp_path: Path, why: str, capsys: pytest.CaptureFixture[str]
):
    store, (*earlier, own) = spans
    refs = with_keys(store, CONFIG, *earlier, own)
    config, old = CONFIG, refs[0].row_keys
    assert old is not None
    if why == "none were written":
        refs = (refs[0].model_copy(update={"row_keys": None}), *refs[1:])
    elif why == "damaged":
        store.path(f"{old}/{PAIRS}").write_bytes(b"damaged!" * 3)
    elif why == "pruned":
        store.delete(old)
    else:
        config = tiny_config(
            CLASSIFIER.replace("positive_min: 4", "positive_min: 3"), "heads.contrastive.positives_only=true"
        )
    assert open_span_keys(store, refs[0], config.heads) is None
    assert (old in capsys.readouterr().out) == (why != "none were written")
    found = known_of(keys_of(store, refs[2:], refs[:2], config), tmp_path / "known")
    queries = np.concatenate(list(TextKeys(store, [own], None, config.heads)))["query_key"]
    expected = find_known_positives(TextKeys(store, (*earlier, own), None, config.heads), 240).part(np.unique(queries))
    for one, other in zip(found, expected, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("golden", [False, True])
def test_what_validate_found_is_what_a_training_would_find_in_the_whole_history(
    spans: tuple[DirectoryStore, tuple[RowsRef, ...]], tmp_path: Path, golden: bool
):
    store, (*earlier, own) = spans
    (*earlier, own) = with_keys(store, CONFIG, *earlier, own)
    key = write_golden(store, own) if golden else None
    asked = keys_of(store, (own,), tuple(earlier), golden=key)
    (expected := tmp_path / "expected").mkdir()
    asked.write_known(expected, lambda: None)
    expected = KnownPositives.open(expected)
    written = asked.commit_known("runs/r/validate/positives/2026-03", tmp_path / "written")
    assert written == asked.commit_known("runs/r/validate/positives/2026-03", tmp_path / "again"), "as its retry does"
    for ref in (own, *earlier):
        store.delete(ref.prefix)
        store.delete(ref.row_keys or "")
    if key is not None:
        store.delete(key)
    found = dataclasses.replace(asked, positives=written).open_committed()
    assert found is not None
    for one, other in zip(KnownPositives.open(found), expected, strict=True):
        assert len(np.asarray(one.queries)) > 3
        assert_same(one, other)


@pytest.mark.parametrize("shares", [[(0,), (1,)], [(0, 1)]])
def test_the_earlier_keys_that_a_window_meets_are_enough_for_its_known_pairs(
    spans: tuple[DirectoryStore, tuple[RowsRef, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shares: list[tuple[int, ...]],
):
    """However the earlier spans are shared; validate wrote no keys of one, and there is a golden set."""
    store, (first, second, own) = spans
    earlier = (first, *with_keys(store, CONFIG, second))
    (own,) = with_keys(store, CONFIG, own)
    monkeypatch.setattr(row_keys, "ROWS_AT_ONCE", 16)
    monkeypatch.setattr(row_keys, "_READ_RECORDS", 5)
    asked = keys_of(store, (own,), earlier, golden=write_golden(store, own))
    met = [tmp_path / f"met-{number}" for number in range(len(shares))]
    for folder, share in zip(met, shares, strict=True):
        folder.mkdir()
        (scratch := tmp_path / f"scratch-{folder.name}").mkdir()
        some = dataclasses.replace(asked, earlier=[earlier[number] for number in share], golden=None)
        some.write_met(folder, scratch)
    alone = asked.commit_known("runs/r/validate/positives/2026-03", tmp_path / "alone")
    for ref in earlier:
        store.delete(ref.prefix)
        store.delete(ref.row_keys or "none")
    assert asked.commit_known("runs/r/validate/positives/2026-03", tmp_path / "by-shares", met) == alone


@pytest.mark.parametrize("why", ["damaged", "pruned", "other rows", "another rule", "other own rows", "replay"])
def test_what_validate_found_is_refused_if_it_is_not_of_this_run(
    spans: tuple[DirectoryStore, tuple[RowsRef, ...]], tmp_path: Path, why: str, capsys: pytest.CaptureFixture[str]
):
    store, (*earlier, own) = spans
    (*earlier, own) = with_keys(store, CONFIG, *earlier, own)
    asked = keys_of(store, (own,), tuple(earlier))
    written = asked.commit_known("runs/r/validate/positives/2026-03", tmp_path / "written")
    asked = dataclasses.replace(asked, positives=written)
    assert asked.open_committed() is not None
    if why == "damaged":
        store.path(f"{written}/item_key.keys").write_bytes(b"damaged!")
    elif why == "pruned":
        store.delete(written)
    elif why == "other rows":
        asked = dataclasses.replace(asked, earlier=earlier[1:])
    elif why == "other own rows":
        asked = dataclasses.replace(asked, own=(*earlier[1:], own), earlier=earlier[:1])
    elif why == "another rule":
        asked = dataclasses.replace(asked, heads=tiny_config().heads)
    else:
        asked = dataclasses.replace(asked, replayed=ReplayedRows.of(store, AGAIN, (own,), earlier, None))
    assert asked.open_committed() is None
    assert written in capsys.readouterr().out


def write_golden(store: DirectoryStore, like: RowsRef) -> str:
    """A golden set: known queries with new items."""
    (file,) = store.path(like.prefix).glob("*.parquet")
    rows = _new_items(pq.read_table(file).slice(0, 5))
    buffer = io.BytesIO()
    pq.write_table(rows, buffer)
    store.write("golden/k.parquet", buffer.getvalue())
    return "golden/k.parquet"


def _new_items(rows: pa.Table) -> pa.Table:
    for name in ("item", "item_id"):
        values = pa.array([f"golden {value}" for value in rows[name].to_pylist()])
        rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows


@settings(max_examples=40)
@given(st.lists(st.lists(st.integers(0, 2**63 - 1), max_size=30), min_size=1, max_size=3))
def test_files_are_read_range_by_range_to_their_last_record(
    tmp_path_factory: pytest.TempPathFactory, queries: list[list[int]]
):
    folder, files = tmp_path_factory.mktemp("keys"), []
    for number, some in enumerate(queries):
        keys = np.zeros(len(some), dtype=ROW_KEYS)
        keys["query_key"] = some
        (folder / str(number)).mkdir()
        write_keys(folder / str(number), [keys], len(keys))
        files.append(SortedFile(folder / str(number), OTHERS))
    before = row_keys.ROWS_AT_ONCE, row_keys._READ_RECORDS
    row_keys.ROWS_AT_ONCE, row_keys._READ_RECORDS = 4, 3
    try:
        found = [[file.until(last).ravel().tolist() for file in files] for last in ranges_of_keys(files)]
    finally:
        row_keys.ROWS_AT_ONCE, row_keys._READ_RECORDS = before
    for number, some in enumerate(queries):
        assert [key for each in found for key in each[number]] == sorted(set(some))
    ranges = [[key for some in each for key in some] for each in found if any(each)]
    assert all(max(one) < min(other) for one, other in itertools.pairwise(ranges)), "none overlaps"
