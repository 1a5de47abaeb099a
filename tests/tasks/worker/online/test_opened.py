"""A release opened to answer: by its export or its model, with the hits of `search`, and never a damaged one."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import CorruptFolder
from tasks.foundation.errors import ConfigError
from tasks.runs import releases
from tasks.worker.online import nearest, opened
from tasks.worker.online.export_folder import FOLDER
from tasks.worker.online.exported import Exported
from tasks.worker.online.follower import Follower
from tasks.worker.online.opened import ReleasedModel, open_release
from tasks.worker.search.index import Index
from tests.support.workspace.served import point_to


def test_the_hits_are_those_of_search(store: DirectoryStore) -> None:
    release = releases.read(store, 4)
    found = open_release(store, release.ref)
    index = Index(store, release.vectors_prefix, release.model.version)
    assert isinstance(found.encoder, Exported)
    assert found.vectors is not None
    assert len(found.vectors) == release.vectors
    for text in ("want a red shoe 3 please", "lamp"):
        (vector,) = found.encoder.embed([text], "query")
        assert found.vectors.nearest(vector, 7) == index.nearest(vector, 7)
    assert len(found.vectors.nearest(vector, 1000)) == release.vectors
    equal = np.zeros(found.encoder.width, dtype=np.float32)
    assert found.vectors.nearest(equal, 5) == index.nearest(equal, 5), "equal ones in the order of the vectors"


def test_a_release_without_exports_is_served_by_its_model(store: DirectoryStore) -> None:
    release = releases.read(store, 4)
    folder = store.local(release.model_prefix)
    with_export = Exported(folder / FOLDER / "onnx").embed(["red shoe"], "query")
    shutil.rmtree(folder / FOLDER)
    model = opened._encoder(folder)
    assert isinstance(model, ReleasedModel)
    assert (model.embed(["red shoe"], "query") * with_export).sum() > 0.9999


@pytest.mark.parametrize("file", ["model.onnx", "tokenizer.json", "export.json"])
def test_a_damaged_export_is_not_opened(store: DirectoryStore, file: str) -> None:
    release = releases.read(store, 4)
    path = store.local(release.model_prefix) / FOLDER / "onnx" / file
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    with pytest.raises(CorruptFolder, match=rf"release 4 is damaged.*{file}"):
        open_release(store, release.ref)


def test_an_export_of_another_release_is_not_opened(store: DirectoryStore) -> None:
    now, before = releases.read(store, 4), releases.read(store, 2)
    shutil.rmtree(store.local(now.model_prefix))
    shutil.copytree(store.local(before.model_prefix), store.local(now.model_prefix))
    with pytest.raises(CorruptFolder, match="that was released"):
        open_release(store, now.ref)


def test_too_many_vectors_for_memory_are_not_read(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearest, "MOST_BYTES", 1000)
    assert open_release(store, releases.read(store, 4).ref).vectors is None


def test_a_refresh_is_served_with_the_model_that_is_open(store: DirectoryStore) -> None:
    point_to(store, 3)
    follower = Follower(store)
    before = follower.serving
    point_to(store, 4)
    assert follower.look()
    now = follower.serving
    assert (before.release, now.release, now.encoder is before.encoder) == (3, 4, True)
    assert now.vectors is not before.vectors
    assert not follower.look()


def test_a_release_that_cannot_be_opened_leaves_the_one_before(store: DirectoryStore) -> None:
    follower = Follower(store)
    folder = store.local(releases.read(store, 2).model_prefix)
    (folder / FOLDER / "onnx" / "model.onnx").write_bytes(b"")
    point_to(store, 2)
    with pytest.raises(CorruptFolder, match="release 2 is damaged"):
        follower.look()
    assert (follower.serving.release, follower.current) == (4, 2)
    point_to(store, 1)
    with pytest.raises(CorruptFolder, match="release 1"):
        follower.look()
    point_to(store, 4)
    assert not follower.look()
    assert follower.serving.release == 4


def test_a_named_release_stays(store: DirectoryStore) -> None:
    assert Follower(store, 1).serving.release == 1
    with pytest.raises(ConfigError, match="there is no release 9"):
        Follower(store, 9)


def test_a_workspace_without_a_release_is_refused_with_the_way_out(tmp_path) -> None:
    with pytest.raises(ConfigError, match="millrace run"):
        Follower(DirectoryStore(tmp_path / "empty"))
