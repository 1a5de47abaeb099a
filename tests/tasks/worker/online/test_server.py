"""The online application in this process: what it answers, and whom and what it refuses."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import shutil
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from configs.schema.stages import LancedbTarget
from infra.store.directory import DirectoryStore
from tasks.foundation.clock import now
from tasks.runs import releases, served_targets
from tasks.runs.served_targets import Served, publication
from tasks.worker.model.features import Side
from tasks.worker.online import batches, nearest, requests, server
from tasks.worker.online import follower as follower_module
from tasks.worker.online.batches import Answered, Batcher, OtherModel, Question, QueueFull
from tasks.worker.online.export_folder import FOLDER
from tasks.worker.online.exported import Entry, Exported
from tasks.worker.online.follower import Follower
from tasks.worker.online.opened import Opened
from tasks.worker.online.server import Online
from tests.support.workspace.served import point_to

TEXTS = ("want a red shoe 3 please", "lamp")


@pytest.fixture
def client(store: DirectoryStore) -> Iterator[TestClient]:
    with TestClient(Online(Follower(store)).app, base_url="http://localhost") as client:
        yield client


def model_of(store: DirectoryStore, number: int) -> Exported:
    return Exported(store.local(releases.read(store, number).model_prefix) / FOLDER / "onnx")


def test_queries_and_items_get_the_vectors_of_the_release(client: TestClient, store: DirectoryStore) -> None:
    for side, of in (("queries", "query"), ("items", "item")):
        got = client.post("/embed", json={side: TEXTS}).json()
        assert (got["release"], got["model_version"]) == (4, releases.read(store, 4).model.version)
        expected = model_of(store, 4).embed(TEXTS, of)  # type: ignore[arg-type]
        assert np.allclose(got["vectors"], expected, atol=1e-5)


def test_a_search_gives_the_nearest_items(client: TestClient, store: DirectoryStore) -> None:
    got = client.post("/search", json={"query": "red shoe", "k": 3}).json()
    vectors = nearest.Vectors(store, releases.read(store, 4).ref)
    expected = vectors.nearest(model_of(store, 4).embed(["red shoe"], "query")[0], 3)
    assert [hit["item_id"] for hit in got["hits"]] == [hit.item_id for hit in expected]
    assert (got["release"], [hit["text"] for hit in got["hits"]]) == (4, [hit.text for hit in expected])


@pytest.mark.parametrize("form", ["float", "base64"])
def test_clients_of_openai_get_their_form(client: TestClient, store: DirectoryStore, form: str) -> None:
    got = client.post("/v1/embeddings", json={"input": TEXTS, "model": "current", "encoding_format": form}).json()
    assert [each["index"] for each in got["data"]] == [0, 1]
    given = [each["embedding"] for each in got["data"]]
    vectors = [np.frombuffer(base64.b64decode(each), "<f4") for each in given] if form == "base64" else given
    assert np.allclose(np.array(vectors), model_of(store, 4).embed(TEXTS, "query"), atol=1e-5)
    assert got["model"] == releases.read(store, 4).model.version
    one = client.post("/v1/embeddings", json={"input": TEXTS[0], "model": got["model"]}).json()
    assert len(one["data"]) == 1


def test_another_model_or_release_is_refused_with_both_names(client: TestClient, store: DirectoryStore) -> None:
    now, before = releases.read(store, 4).model.version, releases.read(store, 2).model.version
    for path, body in (
        ("/embed", {"queries": TEXTS, "model_version": before}),
        ("/search", {"query": "lamp", "model_version": before}),
        ("/v1/embeddings", {"input": "lamp", "model": before}),
    ):
        refused = client.post(path, json=body)
        error = refused.json()["error"]
        assert refused.status_code == 409
        assert before in error["message"]
        assert now in error["message"]
        assert error["serving"] == {"release": 4, "model_version": now}
    assert client.post("/embed", json={"queries": TEXTS, "release": 3}).status_code == 409
    assert client.post("/embed", json={"queries": TEXTS, "release": 4, "model_version": now}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/embed", {"queries": ["a"], "items": ["a"]}, "either queries or items"),
        ("/embed", {"queries": []}, "queries"),
        ("/embed", {"queries": [" "]}, "queries.0"),
        ("/embed", {"queries": ["a"], "colour": 1}, "colour"),
        ("/embed", {"queries": ["a"], "width": 7}, "of 32"),
        ("/embed", {"queries": ["a"] * (requests.MOST_TEXTS + 1)}, "queries"),
        ("/search", {"query": "a", "k": 0}, "k"),
        ("/v1/embeddings", {"input": [[1, 2]], "model": "current"}, "input"),
    ],
)
def test_a_wrong_body_is_refused_with_the_key(client: TestClient, path: str, body: Any, named: str) -> None:
    refused = client.post(path, json=body)
    assert refused.status_code == 400
    assert named in refused.json()["error"]["message"]


def test_what_is_no_json_or_too_large_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.post("/embed", content=b"{", headers={"content-type": "application/json"}).status_code == 400
    assert client.post("/embed", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    monkeypatch.setattr(server, "MOST_BODY_BYTES", 10)
    assert client.post("/embed", json={"queries": TEXTS}).status_code == 413


def test_names_that_only_lead_here_get_nothing_without_a_token(client: TestClient) -> None:
    assert client.post("/embed", json={"queries": TEXTS}, headers={"host": "evil.example"}).status_code == 421


def test_a_token_is_asked_for(store: DirectoryStore) -> None:
    with TestClient(Online(Follower(store), token="sesame").app, base_url="http://encoder.internal") as client:
        for given in ({}, {"authorization": "Bearer other"}, {"authorization": "sesame"}):
            refused = client.post("/embed", json={"queries": TEXTS}, headers=given)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        right = {"authorization": "Bearer sesame"}
        assert client.post("/embed", json={"queries": TEXTS}, headers=right).status_code == 200
        assert client.get("/healthz").json()["release"] == 4


def test_health_and_metrics_name_the_release(client: TestClient, store: DirectoryStore) -> None:
    health = client.get("/healthz").json()
    assert {name: health[name] for name in ("status", "release", "encoder", "current")} == {
        "status": "ok", "release": 4, "encoder": "onnx", "current": 4,
    }  # fmt: skip
    client.post("/embed", json={"queries": TEXTS})
    client.post("/embed", json={})
    metrics = client.get("/metrics").text
    assert 'millrace_online_requests_total{path="/embed",status="200"} 1.0' in metrics
    assert 'millrace_online_requests_total{path="/embed",status="400"} 1.0' in metrics
    assert "millrace_online_release 4.0" in metrics
    assert "millrace_online_batch_texts_sum 2.0" in metrics


def test_vectors_that_are_not_in_memory_are_searched_elsewhere(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearest, "MOST_BYTES", 1000)
    with TestClient(Online(Follower(store)).app, base_url="http://localhost") as client:
        refused = client.post("/search", json={"query": "lamp"})
        assert (refused.status_code, refused.json()["error"]["release"]) == (501, 4)
        assert client.post("/embed", json={"queries": ["lamp"]}).status_code == 200


class Held:
    """An encoder of a made-up model, which waits until it may go on. Its vectors say the number of the model."""

    kind, width = "onnx", 2

    def __init__(self, number: float) -> None:
        self.number, self.batches, self.widths = number, list[int](), tuple[int, ...]()
        self.begun, self.go_on = threading.Event(), threading.Event()

    def embed(self, entries: Sequence[Entry], side: str) -> np.ndarray:
        self.begun.set()
        assert self.go_on.wait(30)
        self.batches.append(len(entries))
        if "bad" in entries:
            raise ValueError("bad")
        return np.full((len(entries), self.width), self.number, dtype=np.float32)

    def opened(self) -> Opened:
        model = f"model-{self.number:.0f}"
        return Opened(int(self.number), model, model, self, None, 0.0)


def test_a_trained_width_is_cut_and_of_unit_length_again() -> None:
    encoder = Held(1)
    encoder.widths = (1,)
    vectors = np.array([[0.6, 0.8], [-0.6, 0.8]], dtype=np.float32)
    assert requests.narrowed(encoder.opened(), vectors, 1).tolist() == [[1.0], [-1.0]]
    assert requests.narrowed(encoder.opened(), vectors, 2) is vectors


def with_batcher(encoder: Held, talk: Any, answering: Any = None) -> Any:
    async def main() -> Any:
        batcher = Batcher(answering or (lambda: (encoder.opened(),)))
        batcher.start()
        try:
            return await talk(batcher)
        finally:
            encoder.go_on.set()
            await batcher.close()

    return asyncio.run(main())


def test_queries_trained_alone_answer_for_the_vectors_that_they_find_and_no_item_is_embedded() -> None:
    encoders = [Held(2), Held(1)]
    for each in encoders:
        each.go_on.set()
    serving, before = dataclasses.replace(encoders[0].opened(), vectors_by="model-1"), encoders[1].opened()

    def ask(side: Side, *answering: Opened) -> Any:
        question = Question(["a"], side, model_version="model-1")
        return with_batcher(encoders[0], lambda batcher: batcher.ask(question), lambda: answering)

    assert ask("query", serving).by.model_version == "model-2"
    assert ask("query", serving, before).by.model_version == "model-1", "the very model that was named, if it is open"
    with pytest.raises(batches.QueriesAlone, match=r"alone; .*model-1"):
        ask("item", serving)


def test_requests_of_the_same_moment_share_a_batch_and_keep_their_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "GATHER_SECONDS", 0.2)
    encoder = Held(1)
    encoder.go_on.set()

    async def talk(batcher: Batcher) -> list[Any]:
        asked = [batcher.ask(Question(["a"] * texts, "query")) for texts in (1, 3, 2)]
        return await asyncio.gather(*asked, batcher.ask(Question(["bad"], "query")), return_exceptions=True)

    *good, bad = with_batcher(encoder, talk)
    assert [len(each.vectors) for each in good] == [1, 3, 2]
    assert isinstance(bad, ValueError), "its own error, and nobody else's"
    assert encoder.batches[0] == 7


def test_a_request_too_many_is_refused_and_the_others_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_WAITING", 4)
    encoder = Held(1)

    async def talk(batcher: Batcher) -> Any:
        first = [asyncio.create_task(batcher.ask(Question(["a"] * 2, "query"))) for _ in range(2)]
        await asyncio.to_thread(encoder.begun.wait, 30)
        with pytest.raises(QueueFull):
            await batcher.ask(Question(["a"], "query"))
        encoder.go_on.set()
        answers = await asyncio.gather(*first)
        return [*answers, await batcher.ask(Question(["a"] * 9, "query"))]

    assert [len(each.vectors) for each in with_batcher(encoder, talk)] == [2, 2, 9]


def test_a_full_queue_is_429_with_a_time_to_try_again(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    async def full(batcher: Batcher, question: Question) -> Answered:
        raise QueueFull

    monkeypatch.setattr(Batcher, "ask", full)
    refused = client.post("/embed", json={"queries": TEXTS})
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")


def test_a_swap_between_two_batches_never_mixes_models(monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Held(1), Held(2)
    new.go_on.set()
    serving = [old]

    async def talk(batcher: Batcher) -> Any:
        first = asyncio.create_task(batcher.ask(Question(["a"], "query")))
        await asyncio.to_thread(old.begun.wait, 30)
        pinned = asyncio.create_task(batcher.ask(Question(["a"], "query", model_version="model-1")))
        second = asyncio.create_task(batcher.ask(Question(["a"], "query")))
        await asyncio.sleep(0)
        serving[0] = new  # while the first batch is computed
        old.go_on.set()
        return await asyncio.gather(first, second, pinned, return_exceptions=True)

    first, second, pinned = with_batcher(old, talk, lambda: (serving[0].opened(),))
    assert [(each.by.model_version, each.vectors[0, 0]) for each in (first, second)] == [("model-1", 1), ("model-2", 2)]
    assert isinstance(pinned, OtherModel), "it came for the model before"


def test_the_follower_swaps_and_says_so(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks.worker.online.follower.LOOK_SECONDS", 0.05)
    follower = Follower(store)
    with TestClient(Online(follower).app, base_url="http://localhost") as client:
        point_to(store, 2)
        for _ in range(600):
            if client.get("/healthz").json()["release"] == 2:
                break
            threading.Event().wait(0.05)
        got = client.post("/embed", json={"queries": TEXTS}).json()
    assert np.allclose(got["vectors"], model_of(store, 2).embed(TEXTS, "query"), atol=1e-5)
    assert (got["release"], follower.swaps) == (2, 1)
    assert "release 2 serves" in capfd.readouterr().err


def published(store: DirectoryStore, number: int) -> None:
    """Write the record of a target that serves a release, as a publication does."""
    release = releases.read(store, number)
    target = LancedbTarget(kind="lancedb", name="shop", uri="/nowhere")
    record = Served(
        target=target, release=number, table=f"shop-{number}", model_version=release.model.version,
        vectors=release.vectors, index=None, recall=1.0, query_ms=1.0, queries=10, at=now(),
        run_key=publication(number, "shop"),
    )  # fmt: skip
    served_targets.note(store, record)


def wait_for(client: TestClient, **expected: object) -> None:
    for _ in range(600):
        health = client.get("/healthz").json()
        if {name: health[name] for name in expected} == expected:
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"not within 30 s: {expected}")


def test_the_model_of_a_targets_vectors_answers_until_the_target_has_swapped(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(follower_module, "TARGETS_SECONDS", 0.05)
    monkeypatch.setattr(follower_module, "LINGER_SECONDS", 0.0)
    published(store, 4)
    before, current = (releases.read(store, number).model.version for number in (4, 2))
    pinned = {"queries": TEXTS, "model_version": before}
    with TestClient(Online(Follower(store)).app, base_url="http://localhost") as client:
        wait_for(client, release=4, also=[])
        point_to(store, 2)
        wait_for(client, release=2, also=[{"release": 4, "model_version": before}])
        got = client.post("/embed", json=pinned).json()
        assert (got["release"], got["model_version"]) == (4, before)
        assert np.allclose(got["vectors"], model_of(store, 4).embed(TEXTS, "query"), atol=1e-5)
        assert client.post("/embed", json={"queries": TEXTS}).json()["model_version"] == current
        searched = client.post("/search", json={"query": "lamp", "model_version": before})
        assert searched.status_code == 409, "its vectors are not in memory any more"
        published(store, 2)
        wait_for(client, release=2, also=[])
        assert client.post("/embed", json=pinned).status_code == 409


def test_a_target_that_swaps_before_the_server_has_looked_loses_no_search(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "LOOK_SECONDS", 600.0)
    published(store, 4)
    with TestClient(Online(Follower(store)).app, base_url="http://localhost") as client:
        point_to(store, 2)
        published(store, 2)  # as a rollback does
        for number in (2, 4):  # the row of the target was read after, and before it swapped
            version = releases.read(store, number).model.version
            got = client.post("/embed", json={"queries": TEXTS, "model_version": version})
            assert (got.status_code, got.json().get("model_version")) == (200, version)
        assert client.post("/search", json={"query": "lamp", "release": 2}).status_code == 200


def test_requests_for_other_models_do_not_open_a_damaged_release_again(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower_module, "LOOK_SECONDS", 0.05)
    release = releases.read(store, 2)
    shutil.rmtree(store.local(release.model_prefix))
    pinned = {"queries": TEXTS, "model_version": release.model.version}
    follower = Follower(store)
    with TestClient(Online(follower).app, base_url="http://localhost") as client:
        point_to(store, 2)
        wait_for(client, status="behind")
        for _ in range(3):
            assert client.post("/embed", json=pinned).status_code == 409
    assert follower.failures == 1


def test_a_server_of_one_release_refuses_all_others_at_once(store: DirectoryStore) -> None:
    with TestClient(Online(Follower(store, 1)).app, base_url="http://localhost") as client:
        version = releases.read(store, 4).model.version
        assert client.post("/embed", json={"queries": TEXTS, "model_version": version}).status_code == 409


def test_a_model_answers_from_the_moment_that_a_publication_announces_it(store: DirectoryStore) -> None:
    """A person publishes another release than the current one: the target swaps before its record says so."""
    published(store, 4)
    with TestClient(Online(Follower(store)).app, base_url="http://localhost") as client:
        version = releases.read(store, 2).model.version
        pinned = {"queries": TEXTS, "model_version": version}
        assert client.post("/embed", json=pinned).status_code == 409
        with served_targets.announced(store, "shop", releases.read(store, 2)):
            assert client.post("/embed", json=pinned).json()["model_version"] == version


def test_a_server_that_starts_between_release_and_publication_has_both_models(store: DirectoryStore) -> None:
    published(store, 2)
    with TestClient(Online(Follower(store)).app, base_url="http://localhost") as client:
        version = releases.read(store, 2).model.version
        got = client.post("/embed", json={"queries": TEXTS, "model_version": version}).json()
        assert np.allclose(got["vectors"], model_of(store, 2).embed(TEXTS, "query"), atol=1e-5)
        assert client.get("/healthz").json()["status"] == "ok"


def test_a_targets_release_that_is_gone_is_named_and_asked_for_once(
    store: DirectoryStore, capfd: pytest.CaptureFixture[str]
) -> None:
    published(store, 2)
    shutil.rmtree(store.local(releases.read(store, 2).model_prefix))
    follower = Follower(store)
    with TestClient(Online(follower).app, base_url="http://localhost") as client:
        follower.look_at_targets(server.told)
        assert client.get("/healthz").json()["also"] == []
        assert client.post("/embed", json={"queries": TEXTS}).status_code == 200
    assert capfd.readouterr().err.count("release 2 of a") == 1
