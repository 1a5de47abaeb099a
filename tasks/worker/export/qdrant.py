"""Releases in Qdrant: one collection per release, and an alias with the target's name, moved in one request.

A folder instead of an address selects Qdrant's local mode: exact search, one process at a time.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
from qdrant_client import QdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from configs.schema.stages import QdrantTarget
from tasks.data.rows import ITEM_ID, MODEL_VERSION, TEXT, VECTOR
from tasks.foundation.errors import ConfigError, StoreError
from tasks.worker.export.secrets import secret_of
from tasks.worker.export.target import PARTITION, Index, Owner, Row, Shape, is_table_of

BATCH_ITEMS = 256  # per request: well below the server's limit of 32 MiB
SCROLL_ITEMS = 10_000
TIMEOUT_SECONDS = 60
INDEX_POLL_SECONDS = 1.0
_REFUSED = (400, 401, 403, 404)


class Qdrant:
    """Implements `Target`."""

    def __init__(self, target: QdrantTarget) -> None:
        self._name, self._local = target.name, target.is_folder
        self.where = f"qdrant {target.name} ({target.url})"
        key = secret_of(target.api_key_env, self.where)
        with self._speaking():
            if self._local:
                self._client = QdrantClient(path=target.url)
            else:
                self._client = QdrantClient(url=target.url, api_key=key, timeout=TIMEOUT_SECONDS)

    def serving(self) -> str | None:
        with self._speaking():
            aliases = self._client.get_aliases().aliases
            return next((each.collection_name for each in aliases if each.alias_name == self._name), None)

    def owner(self) -> Owner | None:
        """Return the owner in the metadata of the served collection, since an alias has none."""
        if (table := self.serving()) is None:
            return None
        with self._speaking():
            found = self._client.get_collection(table).config.metadata or {}
        return Owner(found["workspace"], found["lineage"]) if {"workspace", "lineage"} <= found.keys() else None

    def tables(self) -> list[str]:
        with self._speaking():
            names = [each.name for each in self._client.get_collections().collections]
            return sorted(name for name in names if is_table_of(self._name, name))

    def create(self, table: str, shape: Shape) -> None:
        with self._speaking():
            if not self._client.collection_exists(table):
                kind = models.Datatype.FLOAT16 if shape.fp16 else models.Datatype.FLOAT32
                vectors = models.VectorParams(size=shape.width, distance=models.Distance.COSINE, datatype=kind)
                self._client.create_collection(table, vectors_config=vectors)
            if not self._local:
                self._client.create_payload_index(table, PARTITION, models.PayloadSchemaType.INTEGER)
                self._client.create_payload_index(table, MODEL_VERSION, models.PayloadSchemaType.KEYWORD)

    def rows_by_partition(self, table: str, partitions: int) -> dict[int, int]:
        with self._speaking():
            counts = {number: self._count(table, _of_partition(number)) for number in range(partitions)}
            return {number: count for number, count in counts.items() if count}

    def load(self, table: str, partition: int, rows: pa.Table, again: bool) -> None:
        """Insert the rows; point ids are derived from item ids, so loading twice changes nothing."""
        with self._speaking():
            if again:
                self._client.delete(table, models.FilterSelector(filter=_of_partition(partition)), wait=True)
            for batch in rows.to_batches(max_chunksize=BATCH_ITEMS):
                column = batch.column(VECTOR)
                vectors = column.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
                payloads = batch.select([ITEM_ID, TEXT, MODEL_VERSION, PARTITION]).to_pylist()
                points = [
                    models.PointStruct(id=_point(payload[ITEM_ID]), vector=vector.tolist(), payload=payload)
                    for payload, vector in zip(payloads, vectors.reshape(-1, column.type.list_size), strict=True)
                ]
                self._client.upsert(table, points, wait=True)

    def index(self, table: str) -> Index | None:
        """Wait until the server has built its index, which it does by itself; it has none for a small collection."""
        with self._speaking():
            while (found := self._client.get_collection(table)).status is models.CollectionStatus.YELLOW:
                time.sleep(INDEX_POLL_SECONDS)
            return Index("hnsw", found.indexed_vectors_count) if found.indexed_vectors_count else None

    def count(self, table: str) -> int:
        with self._speaking():
            return self._count(table, None)

    def item_ids(self, table: str, partition: int) -> list[str]:
        found: list[str] = []
        place: Any = None
        with self._speaking():
            while True:
                points, place = self._client.scroll(
                    table, _of_partition(partition), limit=SCROLL_ITEMS, offset=place, with_payload=[ITEM_ID]
                )
                found += [(point.payload or {})[ITEM_ID] for point in points]
                if place is None:
                    return found

    def rows_of(self, table: str, item_ids: list[str]) -> dict[str, Row]:
        with self._speaking():
            ids = [_point(item_id) for item_id in item_ids]
            points = self._client.retrieve(table, ids, with_payload=[ITEM_ID, TEXT], with_vectors=True)
            payloads = [point.payload or {} for point in points]
            vectors = [np.asarray(point.vector, dtype=np.float32) for point in points]
            return {
                payload[ITEM_ID]: Row(payload[TEXT], vector)
                for payload, vector in zip(payloads, vectors, strict=True)
                if {ITEM_ID, TEXT} <= payload.keys()
            }

    def count_other_models(self, table: str, model_version: str) -> int:
        ours = models.FieldCondition(key=MODEL_VERSION, match=models.MatchValue(value=model_version))
        with self._speaking():
            return self._count(table, models.Filter(must_not=[ours]))

    def nearest(self, table: str, query: np.ndarray, k: int) -> list[str]:
        with self._speaking():
            points = self._client.query_points(table, query.tolist(), limit=k, with_payload=[ITEM_ID]).points
            return [(point.payload or {})[ITEM_ID] for point in points]

    def serve(self, table: str, owner: Owner) -> None:
        """Move the alias; the server applies all operations of one request at once."""
        there = self.serving() is not None
        gone = [models.DeleteAliasOperation(delete_alias=models.DeleteAlias(alias_name=self._name))] if there else []
        made = models.CreateAlias(collection_name=table, alias_name=self._name)
        with self._speaking():
            self._client.update_collection(table, metadata=owner._asdict())
            self._client.update_collection_aliases([*gone, models.CreateAliasOperation(create_alias=made)])

    def erase(self, table: str, item_ids: list[str]) -> None:
        """Delete the points; the server takes them out of its segments when it next optimises these."""
        with self._speaking():
            ids: list[Any] = [_point(item_id) for item_id in item_ids]
            self._client.delete(table, models.PointIdsList(points=ids), wait=True)

    def drop(self, table: str) -> None:
        with self._speaking():
            self._client.delete_collection(table)

    def close(self) -> None:
        self._client.close()

    def _count(self, table: str, where: models.Filter | None) -> int:
        return self._client.count(table, count_filter=where, exact=True).count

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except UnexpectedResponse as error:
            kind = ConfigError if error.status_code in _REFUSED else StoreError
            raise kind(f"{self.where}: {error}") from error
        except (ApiException, ResponseHandlingException, QdrantException, httpx.HTTPError, OSError) as error:
            raise StoreError(f"{self.where}: {error}") from error
        except (RuntimeError, ValueError) as error:  # raised in local mode
            if not self._local:
                raise
            raise StoreError(f"{self.where}: {error}") from error


def _of_partition(number: int) -> models.Filter:
    return models.Filter(must=[models.FieldCondition(key=PARTITION, match=models.MatchValue(value=number))])


def _point(item_id: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, item_id))
