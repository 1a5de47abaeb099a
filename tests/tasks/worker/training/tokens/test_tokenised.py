"""The token cache: made once, found by its inputs, made again if it is damaged."""

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
from tasks.worker.process import cores
from tasks.worker.training import tokenised
from tasks.worker.training.tokenised import ROW, Recipe, open_tokens
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


def test_a_training_starts_no_other_process_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each worker of a machine may make some, on the cores that all of them share."""
    store, rows = make_workspace(tmp_path, rows=60, distinct=12)
    monkeypatch.setattr(cores, "MANY_ROWS", 1)
    monkeypatch.setattr(cores, "own_cores", lambda: {0, 1})
    monkeypatch.setattr(cores, "ProcessPoolExecutor", never_called)
    assert open_tokens(store, TrainingSpan(store, rows, RULE, []), RECIPE)[1].facts["rows"]


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
    assert "its checksum" in capsys.readouterr().out
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
