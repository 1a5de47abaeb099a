"""OpenSearch's own: Elasticsearch's other forms, a password, a refused document, and a search by words and vector."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError, StoreError
from tasks.worker import publish
from tasks.worker.export.target import Changeable, DamagedTable, Index, Shape
from tasks.worker.export.targets import open_target
from tests.support.fakes.fake_runner import small_config
from tests.support.fakes.opensearch_server import OpensearchServer
from tests.support.processes.online_consumer import code_below
from tests.support.workspace.publications import publish_job
from tests.support.workspace.releases import write_release
from tests.tasks.worker.export.places import opensearch_place
from tests.tasks.worker.export.reading import vector_of


@pytest.fixture
def elastic() -> Iterator[OpensearchServer]:
    server = OpensearchServer(elastic=True)
    yield server
    server.close()


def test_elasticsearch_gets_its_own_mapping_and_query(store: DirectoryStore, elastic: OpensearchServer) -> None:
    release = write_release(store, 1)
    config = opensearch_place(elastic.url).config()
    outcome = publish.run(publish_job(store, config, release))
    assert (outcome.recall, outcome.loaded) == (1.0, 24)
    again = publish.run(publish_job(store, config, release))
    assert (again.loaded, again.table) == (0, outcome.table), "vectors are read back from the source"
    with contextlib.closing(open_target(config.publish.targets[0])) as target:
        assert target.nearest(str(outcome.table), vector_of(store, release, "i0007"), 1) == ["i0007"]
        assert target.serving() == outcome.table


@pytest.mark.parametrize("form", ["int8", "binary"])
@pytest.mark.parametrize("elastic_too", [False, True])
def test_a_form_is_asked_of_the_service_as_its_documents_say(form: str, elastic_too: bool) -> None:
    server = OpensearchServer(elastic=elastic_too)
    target, plain = (
        open_target(small_config(f"publish.targets=[{{kind: opensearch, name: look, url: '{server.url}'{more}}}]")
                    .publish.targets[0])
        for more in (f", form: {form}", "")
    )  # fmt: skip
    with contextlib.closing(server), contextlib.closing(target), contextlib.closing(plain):
        target.create("look_r1_00000000", Shape(64, False, "m"))
        assert target.index("look_r1_00000000") == Index("hnsw", 0)
        plain.create("look_r2_00000000", Shape(64, False, "m"))
        with pytest.raises(DamagedTable, match=f"vectors of form {form}"):
            target.index("look_r2_00000000")
        if elastic_too and form == "binary":
            with pytest.raises(ConfigError, match="dimensions fewer than 64"):
                target.create("look_r3_00000000", Shape(32, False, "m"))


def test_a_wrong_password_is_refused_and_the_right_one_taken_from_its_variable(monkeypatch):
    server = OpensearchServer(user=("writer", "geheim"))
    setting = f"{{kind: opensearch, name: look, url: '{server.url}', user: writer, password_env: LOOK_PASSWORD}}"
    (target,) = small_config(f"publish.targets=[{setting}]").publish.targets
    try:
        with pytest.raises(ConfigError, match="LOOK_PASSWORD is not set"):
            open_target(target)
        monkeypatch.setenv("LOOK_PASSWORD", "falsch")
        with pytest.raises(ConfigError, match="401, security_exception"):
            open_target(target)
        monkeypatch.setenv("LOOK_PASSWORD", "geheim")
        open_target(target).close()
    finally:
        server.close()
    with pytest.raises(StoreError, match="opensearch look"):
        open_target(target)


def test_a_user_without_a_password_is_no_setting():
    with pytest.raises(ConfigError, match="user and password_env"):
        small_config("publish.targets=[{kind: opensearch, name: look, url: 'http://a:9200', user: writer}]")


def test_a_name_that_is_an_index_of_somebody_else_is_refused(store, opensearch):
    place = opensearch_place(opensearch.empty())
    release = write_release(store, 1)
    with contextlib.closing(open_target(place.config().publish.targets[0])) as target:
        publish.run(publish_job(store, place.config(), release))
        opensearch.indices["look"] = opensearch.indices[str(target.serving())]
        opensearch.aliases.clear()
    with pytest.raises(ConfigError, match="invalid_alias_name_exception"):
        publish.run(publish_job(store, place.config(), release))


def test_the_hybrid_search_of_the_page_joins_words_and_vector(store, opensearch):
    place = opensearch_place(opensearch.empty())
    release = write_release(store, 1, texts={"a": "red lamp", "b": "blue scarf", "c": "green kettle"})
    publish.run(publish_job(store, place.config(), release))
    code = code_below("opensearch").replace("https://search.internal:9200", opensearch.url)
    names: dict[str, Any] = {"embed": lambda text, version: vector_of(store, release, text).tolist()}
    exec(compile(code, "docs/publish.md", "exec"), names)
    with contextlib.closing(names["client"]):
        assert names["search"]("a")[0]["_source"]["item_id"] == "a"
        alone, joined = (
            {hit["_source"]["item_id"]: hit["_score"] for hit in hits}
            for hits in (names["search"]("a"), names["hybrid"]("a", "kettle"))
        )
    assert joined["c"] > alone["c"] + 0.1
    assert (joined["a"], joined["b"]) == (alone["a"], alone["b"])


def test_a_copy_has_the_replicas_of_its_index_and_leaves_that_ready_for_writes(store, opensearch):
    """Also if a kill left the index without the right to write; a copy that is refused is a table to be loaded."""
    place = opensearch_place(opensearch.empty())
    table = str(publish.run(publish_job(store, place.config(), write_release(store, 1))).table)
    opensearch.indices[table].settings["index.number_of_replicas"] = 2
    (settings,) = place.config().publish.targets
    with contextlib.closing(open_target(settings)) as target:
        assert isinstance(target, Changeable)
        with target.changing(table, "look_r2_00000000") as copy:
            assert opensearch.indices[copy].settings["index.number_of_replicas"] == 0
        assert opensearch.indices["look_r2_00000000"].settings["index.number_of_replicas"] == "2"
        assert sorted(opensearch.indices) == [table, "look_r2_00000000"]
        with pytest.raises(DamagedTable, match="already exists"), target.changing(table, "look_r2_00000000"):
            pass
        opensearch.indices[table].settings["index.blocks.write"] = True
        target.erase(table, ["i0007"])
        assert target.count(table) == 23
