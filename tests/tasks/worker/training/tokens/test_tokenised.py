"""The token cache, and its arrays in files."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from configs.schema.model import Prompts
from infra.store.base import Store
from infra.store.manifest import MANIFEST, commit
from tasks.contracts.references import HoldoutRule, RowsRef
from tasks.data import holdout
from tasks.data.holdout import TrainingSpan, split_holdout
from tasks.data.rows import ITEM, QUERY
from tasks.worker.model.tokens import tokenize, train_tokenizer
from tasks.worker.training import tokenised
from tasks.worker.training.tokenised import ROW, Column, Recipe, RecordFile, open_tokens
from tests.support.workspace.jobs import all_rows, make_workspace, tiny_config
from tests.support.workspace.stores import STORES

RULE = HoldoutRule(group="query_and_item", share=0.2, measured=0.2)


def a_tokenizer(words: Iterable[str] = ("want a red shoe please now", "blue lamp model 3")) -> Tokenizer:
    return train_tokenizer(iter(words), 120)


RECIPE = Recipe(a_tokenizer(), 7, 5)


@pytest.fixture
def rows(tmp_path: Path) -> RowsRef:
    return make_workspace(tmp_path, rows=60, distinct=12)[1]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path, rows: RowsRef) -> Store:
    """Each kind of store, with the rows of one span."""
    store = STORES[request.param](request)
    directory = STORES["directory"](request)
    for key in directory.list(""):
        store.write(key, directory.read(key))
    return store


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != MANIFEST}


def never_called(*_: Any) -> None:
    raise AssertionError("tokenised again")


def test_the_tokens_are_those_of_the_training_rows(tmp_path: Path, rows: RowsRef):
    store = make_workspace(tmp_path / "again", rows=60, distinct=12)[0]
    prompted = RECIPE._replace(prompts=Prompts(query="want ", item="blue "))
    folder, manifest = open_tokens(store, TrainingSpan(store, rows, RULE, []), prompted)
    training = split_holdout(all_rows(store, [rows], tiny_config()), RULE).training
    records = np.fromfile(folder / tokenised.ROWS, ROW)
    assert manifest.facts["rows"] == training.num_rows == len(records) - 1
    assert manifest.facts["of"] == rows.prefix
    for column, side, most, prompt in ((QUERY, "query", 7, "want "), (ITEM, "item", 5, "blue ")):
        texts = training[column].to_pylist()
        expected = tokenize(RECIPE.tokenizer, texts, most, pad=0, prompt=prompt)
        assert np.fromfile(folder / f"{side}.int32", np.int32).tolist() == expected.ids.tolist()
        assert records[f"{side}_begin"].tolist() == expected.offsets.tolist()
    for key, column in (("query_key", QUERY), ("text_key", ITEM), ("item_key", "item_id")):
        found = dict(zip(records[key][:-1].tolist(), training[column].to_pylist(), strict=True))
        assert sorted(found.values()) == sorted(set(training[column].to_pylist())), "a key for each value"
        assert min(found) >= 0


def test_tokens_are_made_once(store: Store, rows: RowsRef, monkeypatch: pytest.MonkeyPatch):
    """And the texts are hashed once: who finds the tokens knows the training rows."""
    first = open_tokens(store, TrainingSpan(store, rows, RULE, []), RECIPE)
    before, expected = contents(first[0]), list(TrainingSpan(store, rows, RULE, []))
    monkeypatch.setattr(tokenised, "tokenise_rows", never_called)
    monkeypatch.setattr(holdout, "hold_places", never_called)
    again = open_tokens(store, span := TrainingSpan(store, rows, RULE, []), RECIPE)
    assert (contents(again[0]), again[1]) == (before, first[1])
    assert list(span) == expected


def test_rows_with_the_same_content_share_their_tokens(store: Store, rows: RowsRef, monkeypatch: pytest.MonkeyPatch):
    open_tokens(store, TrainingSpan(store, rows, RULE, []), RECIPE)
    other = rows.model_copy(update={"prefix": "runs/other/validate/rows/2026-01"})
    for key in store.list(rows.prefix):
        store.write(key.replace(rows.prefix, other.prefix), store.read(key))
    monkeypatch.setattr(tokenised, "tokenise_rows", never_called)
    open_tokens(store, TrainingSpan(store, other, RULE, []), RECIPE)


@pytest.mark.parametrize(
    ("rule", "recipe"),
    [
        (RULE, RECIPE._replace(tokenizer=a_tokenizer(["other words", "and more of them"]))),
        (RULE, RECIPE._replace(query_tokens=6)),
        (RULE, RECIPE._replace(item_tokens=4)),
        (RULE, RECIPE._replace(prompts=Prompts(query="want "))),
        (RULE, RECIPE._replace(prompts=Prompts(item="blue "))),
        (RULE.model_copy(update={"share": 0.4}), RECIPE),
    ],
    ids=["tokenizer", "query tokens", "item tokens", "query prompt", "item prompt", "holdout"],
)
def test_other_tokens_are_another_folder(tmp_path: Path, rule: HoldoutRule, recipe: Recipe):
    store, rows = make_workspace(tmp_path, rows=60, distinct=12)
    one = open_tokens(store, TrainingSpan(store, rows, RULE, []), RECIPE)[0]
    before = contents(one)
    other = open_tokens(store, TrainingSpan(store, rows, rule, []), recipe)[0]
    assert other != one
    assert contents(other) != before == contents(one)


def test_a_damaged_file_is_found_and_made_again(store: Store, rows: RowsRef, capsys: pytest.CaptureFixture[str]):
    before = contents(open_tokens(store, TrainingSpan(store, rows, RULE, []), RECIPE)[0])
    (key,) = [key for key in store.list("tokens") if key.endswith("item.int32")]
    store.write(key, bytes(len(before["item.int32"])))
    assert contents(open_tokens(store, TrainingSpan(store, rows, RULE, []), RECIPE)[0]) == before
    assert "does not match its checksum" in capsys.readouterr().out
    assert any(key.endswith("item.int32") for key in store.list("quarantine/tokens"))


@pytest.mark.parametrize("files", [0, 2])
def test_a_process_that_dies_while_it_makes_them_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
):
    store, rows = make_workspace(tmp_path, rows=60, distinct=12)
    upload, left = store.upload, files

    def dying(source: Path, key: str, instead_of: str | None = None) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        upload(source, key, instead_of)

    monkeypatch.setattr(store, "upload", dying)
    with pytest.raises(KeyboardInterrupt):
        open_tokens(store, TrainingSpan(store, rows, RULE, []), RECIPE)
    monkeypatch.undo()
    assert not [key for key in store.list("tokens") if key.endswith(MANIFEST)]
    folder, manifest = open_tokens(store, TrainingSpan(store, rows, RULE, []), RECIPE)
    assert (
        set(contents(folder))
        == {entry.name for entry in manifest.files}
        == {"rows.bin", "query.int32", "item.int32", "training.bits"}
    )


def test_two_that_need_them_at_once_make_them_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, rows = make_workspace(tmp_path, rows=60, distinct=12)
    begun, made, both = [], [], threading.Barrier(2)

    def slow(*arguments: Any) -> None:
        begun.append(threading.get_ident())
        commit(*arguments)
        made.append(threading.get_ident())

    def need() -> None:
        both.wait()
        open_tokens(store, TrainingSpan(store, rows, RULE, []), RECIPE)

    monkeypatch.setattr(tokenised, "commit", slow)
    monkeypatch.setattr(tokenised, "POLL_SECONDS", 0.05)
    others = [threading.Thread(target=need) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert len(begun) == len(made) == 1
    assert len([key for key in store.list("tokens") if key.endswith(MANIFEST)]) == 1


KIND = np.dtype([("key", "<i8"), ("pair", "<f4"), ("numbers", "<f4", (2,)), ("none", "<i8", (0,))], align=True)


@pytest.fixture
def records(tmp_path: Path) -> np.ndarray:
    """Forty records in the file `records`."""
    random = np.random.default_rng(3)
    values = np.zeros(40, KIND)
    values["key"], values["pair"], values["numbers"] = random.integers(0, 99, 40), np.arange(40), random.random((40, 2))
    values.tofile(tmp_path / "records")
    return values


@pytest.mark.parametrize("field", ["key", "pair", "numbers", "none"])
@pytest.mark.parametrize("part", [slice(None), slice(None, -1), slice(3, 30)])
def test_a_field_is_indexed_like_an_array(tmp_path: Path, records: np.ndarray, field: str, part: slice):
    column, array = Column(RecordFile(tmp_path / "records", KIND), field)[part], records[field][part]
    (tmp_path / "records").unlink()
    assert len(column) == len(array)
    for rows in (np.array([5, 0, 5, -1, 26]), np.array([], dtype=np.int64), np.arange(len(array)), np.array([0, 9, 9])):
        assert column[rows].dtype == array.dtype
        assert column[rows].tolist() == array[rows].tolist()
    assert np.asarray(column).tolist() == array.tolist()


def test_neighbours_of_a_file_of_numbers_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tokenised, "NEAR_BYTES", 40)
    values = np.arange(100, 200, dtype=np.int32)
    values.tofile(tmp_path / "ids")
    column, reads = Column(RecordFile(tmp_path / "ids", np.int32)), []
    read = tokenised.os.pread
    monkeypatch.setattr(tokenised.os, "pread", lambda *arguments: reads.append(arguments) or read(*arguments))
    rows = np.array([7, 8, 18, 50, 51, 3, 8])
    assert column[rows].tolist() == values[rows].tolist()
    assert len(reads) == 2


def test_the_fields_of_a_batch_are_read_at_once(tmp_path: Path, records: np.ndarray, monkeypatch: pytest.MonkeyPatch):
    file, rows = RecordFile(tmp_path / "records", KIND), np.array([4, 31])
    assert Column(file, "key")[rows].tolist() == records["key"][rows].tolist()
    monkeypatch.setattr(tokenised.os, "pread", never_read)
    assert Column(file, "pair")[rows].tolist() == records["pair"][rows].tolist()
    monkeypatch.undo()
    for others in range(tokenised.REMEMBERED):
        assert Column(file, "pair")[np.arange(others + 1)].tolist() == list(range(others + 1))
    monkeypatch.setattr(tokenised.os, "pread", never_read)
    with pytest.raises(AssertionError, match="read"):
        Column(file, "pair")[rows]


def never_read(*_: object) -> bytes:
    raise AssertionError("it was read")


@pytest.mark.parametrize("count", [0, 1, 7, 64])
def test_a_sorted_column_is_searched_like_an_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int):
    monkeypatch.setattr(tokenised, "INDEXED", 8)
    values = np.sort(np.random.default_rng(count).integers(0, 50, count))
    values.tofile(tmp_path / "sorted")
    wanted = np.arange(-1, 52)
    column = Column(RecordFile(tmp_path / "sorted", np.int64))
    assert np.searchsorted(column, wanted).tolist() == np.searchsorted(values, wanted).tolist()


def test_a_row_beyond_the_end_is_refused(tmp_path: Path, records: np.ndarray):
    with pytest.raises(IndexError, match="of a file of"):
        Column(RecordFile(tmp_path / "records", KIND), "key")[np.array([40])]


def test_what_is_read_does_not_stay_in_memory(tmp_path: Path):
    values = np.arange(2**23)
    values.tofile(tmp_path / "values")
    column = Column(RecordFile(tmp_path / "values", np.int64))
    before = resident_mib()
    for start in range(0, len(values), 2**16):
        assert int(column[np.arange(start, start + 2**16)].sum()) == int(values[start : start + 2**16].sum())
    assert resident_mib() < before + 16


def resident_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024
