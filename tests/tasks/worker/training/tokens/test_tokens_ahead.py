"""Validate makes the tokens that train would make: the same folder, found by the hash of all that they are made of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from infra.store.manifest import MANIFEST
from tasks.contracts.references import CheckpointRef, RowsRef
from tasks.foundation.errors import StoreError
from tasks.worker.process.cores import Cores
from tasks.worker.training import tokenised
from tasks.worker.training.tokens_ahead import tokenise_ahead
from tests.support.models.pretrained import KINDS, write_pretrained
from tests.support.workspace.jobs import FEATURES, make_workspace, tiny_config, train_model, write_rows


def made(store: DirectoryStore) -> list[str]:
    return [key for key in store.list("tokens") if key.endswith(MANIFEST)]


def ahead(store: DirectoryStore, config: Config, rows: RowsRef, parent: CheckpointRef | None) -> None:
    tokenise_ahead(store, config, (rows,), (), parent, Cores(()))


def never_called(*_: Any) -> None:
    raise AssertionError("tokenised again")


PROMPTS = "model.prompts={query: 'want ', item: ''}"


@pytest.mark.parametrize("start", ["parent", "pretrained", "lower-casing"])
def test_train_tokenises_no_row_again(tmp_path: Path, start: str, monkeypatch: pytest.MonkeyPatch):
    store, rows = make_workspace(tmp_path, rows=120, distinct=40)
    if start == "parent":
        config, parent = tiny_config(*FEATURES, PROMPTS), None
        parent = train_model(store, config, rows).checkpoint
        rows = write_rows(store, "2026-02", 120, tmp_path)
    else:
        kind = KINDS["distilbert" if start == "lower-casing" else "cls"]
        folder = write_pretrained(kind, tmp_path / "pretrained")
        config, parent = tiny_config(f"model.pretrained={folder}", "model.scratch=null"), None
    before = made(store)
    ahead(store, config, rows, parent)
    assert len(made(store)) == len(before) + 1
    monkeypatch.setattr(tokenised, "_split_and_tokenise", never_called)
    train_model(store, config, rows, parent, run_key="next")
    assert len(made(store)) == len(before) + 1


def test_a_lineage_without_a_tokenizer_begins_as_before(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=60)
    ahead(store, tiny_config(), rows, None)
    assert made(store) == []


def test_a_parent_that_is_gone_is_named(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=60)
    gone = CheckpointRef(prefix="lineages/main/step-00000010", step=10, sha256="0" * 64)
    with pytest.raises(StoreError, match="parent checkpoint"):
        ahead(store, tiny_config(), rows, gone)
