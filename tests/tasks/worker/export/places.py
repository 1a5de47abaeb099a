"""A place for each kind of target, and what a consumer reads there, as docs/publish.md tells consumers to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lancedb
import numpy as np
import psycopg
import pytest
from opensearchpy import OpenSearch
from qdrant_client import QdrantClient

from configs.schema.config import Config
from tests.support.fakes.fake_runner import small_config


class Hit(NamedTuple):
    item_id: str
    text: str
    model_version: str


class Place(NamedTuple):
    """`setting` is the target in YAML; `search` reads as a consumer does, and None means that nothing is served."""

    setting: str
    search: Callable[[np.ndarray, int], list[Hit] | None]

    def config(self, *overrides: str) -> Config:
        return small_config(f"publish.targets=[{self.setting}]", *overrides)


def lancedb_place(folder: Path) -> Place:
    def search(query: np.ndarray, k: int) -> list[Hit] | None:
        database = lancedb.connect(str(folder))
        if "look" not in database.list_tables().tables:
            return None
        now = database.open_table("look").to_arrow().to_pylist()[0]
        asked: Any = database.open_table(now["table"]).search(query)
        columns = ["item_id", "text", "model_version", "_distance"]
        asked = asked.distance_type("cosine").refine_factor(10)  # a narrow form alone has equal distances
        rows = asked.limit(k).select(columns).to_list()
        return [Hit(row["item_id"], row["text"], row["model_version"]) for row in rows]

    return Place(f"{{kind: lancedb, name: look, uri: {folder}}}", search)


def pgvector_place(dsn: str) -> Place:
    def search(query: np.ndarray, k: int) -> list[Hit] | None:
        with psycopg.connect(dsn) as connection:
            if connection.execute("SELECT to_regclass('look')").fetchone() == (None,):
                return None
            vector = "[" + ",".join(map(str, query.tolist())) + "]"
            asked = "SELECT item_id, text, model_version FROM look ORDER BY vector <=> %s LIMIT %s"
            connection.execute("SET enable_indexscan = off")  # all items are asked for, and an index gives only some
            return [Hit(*row) for row in connection.execute(asked, (vector, k))]

    return Place(f"{{kind: pgvector, name: look, dsn: '{dsn}'}}", search)


def qdrant_place(folder: Path) -> Place:
    def search(query: np.ndarray, k: int) -> list[Hit] | None:
        client = QdrantClient(path=str(folder))  # the local mode lets one in at a time
        try:
            if "look" not in [each.alias_name for each in client.get_aliases().aliases]:
                return None
            points = client.query_points("look", query.tolist(), limit=k).points
        finally:
            client.close()
        columns = ("item_id", "text", "model_version")
        return [Hit(*((point.payload or {})[name] for name in columns)) for point in points]

    return Place(f"{{kind: qdrant, name: look, url: {folder}}}", search)


def opensearch_place(url: str) -> Place:
    def search(query: np.ndarray, k: int) -> list[Hit] | None:
        client: Any = OpenSearch([url])
        try:
            if not client.indices.exists_alias(name="look"):
                return None
            vectors = {"knn": {"vector": {"vector": query.tolist(), "k": k}}}
            hits = client.search(index="look", body={"size": k, "query": vectors})["hits"]["hits"]
        finally:
            client.close()
        columns = ("item_id", "text", "model_version")
        return [Hit(*(hit["_source"][name] for name in columns)) for hit in hits]

    return Place(f"{{kind: opensearch, name: look, url: '{url}'}}", search)


def empty_place(kind: str, request: pytest.FixtureRequest, folder: Path) -> Place:
    """A place of a kind without any table; a server is that of the session."""
    match kind:
        case "lancedb":
            return lancedb_place(folder)
        case "opensearch":
            return opensearch_place(request.getfixturevalue("opensearch").empty())
        case "pgvector":
            return pgvector_place(request.getfixturevalue("postgres").empty_database())
        case "qdrant":
            return qdrant_place(folder)
        case _:
            raise AssertionError(f"make a place for {kind}")
