"""Releases in OpenSearch or Elasticsearch: an index per release, and an alias with the target's name, moved at once.

Each document has the text beside its vector, so that one search can join BM25 and nearest vectors. Both services are
spoken to with OpenSearch's client; they differ in the mapping of a vector and in its query. Both copy an index by hard
links on their own disks, while it takes no writes.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from opensearchpy import OpenSearch
from opensearchpy.exceptions import (
    ImproperlyConfigured,
    NotFoundError,
    OpenSearchException,
    RequestError,
    TransportError,
)

from configs.schema.stages import Form, OpensearchTarget
from tasks.data.rows import ITEM_ID, MODEL_VERSION, TEXT, VECTOR
from tasks.foundation.clock import sleep
from tasks.foundation.errors import ConfigError, StoreError
from tasks.worker.export.secrets import secret_of
from tasks.worker.export.target import PARTITION, DamagedTable, Index, Owner, Row, Shape, is_table_of, name_of_copy

BATCH_BYTES = 8 * 2**20  # per request; a server refuses more than 100 MB
PAGE_ITEMS = 10_000  # the most that a server gives at once, index.max_result_window
TIMEOUT_SECONDS = 120
CANDIDATES = 100  # vectors that a query compares, at least: with as few as the hits, HNSW misses near ones
_REFUSED = (400, 401, 403)
_NOT_READY = 503
WAIT_SECONDS = 1800  # for a copy: hard links take a moment, a file system without them copies all bytes
POLL_SECONDS = 1.0
_WRITE_BLOCK = "index.blocks.write"
_REPLICAS = ("index.number_of_replicas", "index.auto_expand_replicas")  # settings that no copy has by itself
_FLOAT_BYTES = 24  # at most, of a number in JSON with its comma
_COMPRESSED: dict[Form, str] = {"int8": "4x", "binary": "32x"}  # OpenSearch's levels
_QUANTISED: dict[Form, str] = {"int8": "int8_hnsw", "binary": "bbq_hnsw"}  # Elasticsearch's kinds of index
_OVERSAMPLED = 3.0  # candidates for each hit that Elasticsearch compares again; OpenSearch's own default for 32x
_KEPT_VECTORS = (9, 2)  # Elasticsearch from this version on leaves vectors out of _source unless told


class Opensearch:
    """Implements `Target`."""

    def __init__(self, target: OpensearchTarget) -> None:
        self._name = target.name
        self._form: Form | None = target.form
        self.where = f"opensearch {target.name} ({target.url})"
        secret = secret_of(target.password_env, self.where)
        proof = (target.user, secret) if target.user is not None and secret is not None else None
        with self._speaking():
            self._client: Any = OpenSearch([target.url], http_auth=proof, timeout=TIMEOUT_SECONDS)
            about = self._client.info()["version"]
        self._elastic = about.get("distribution") != "opensearch"
        self._version = tuple(int(part) for part in about["number"].split(".")[:2])

    def serving(self) -> str | None:
        with self._speaking():
            try:
                return next(iter(self._client.indices.get_alias(name=self._name)), None)
            except NotFoundError:
                return None

    def owner(self) -> Owner | None:
        """Return the owner in the served index's own metadata, since an alias has none."""
        if (table := self.serving()) is None:
            return None
        with self._speaking():
            found = self._client.indices.get_mapping(index=table)[table]["mappings"].get("_meta", {})
        return Owner(found["workspace"], found["lineage"]) if {"workspace", "lineage"} <= found.keys() else None

    def tables(self) -> list[str]:
        with self._speaking():
            found = self._client.cat.indices(index=f"{self._name}_r*", params={"format": "json", "h": "index"})
            return sorted(each["index"] for each in found if is_table_of(self._name, each["index"]))

    def create(self, table: str, shape: Shape) -> None:
        fields = {
            ITEM_ID: {"type": "keyword"},
            TEXT: {"type": "text"},
            MODEL_VERSION: {"type": "keyword"},
            PARTITION: {"type": "integer"},
            VECTOR: self._vector(shape),
        }
        settings: dict[str, Any] = {} if self._elastic else {"index.knn": True}
        if self._elastic and self._version >= _KEPT_VECTORS:
            settings["index.mapping.exclude_source_vectors"] = False
        with self._speaking():
            if self._client.indices.exists(index=table):
                self._await(table, seconds=10)  # a copy, if a publication was killed after it asked for one
            else:
                body = {"settings": settings, "mappings": {"dynamic": "strict", "properties": fields}}
                self._client.indices.create(index=table, body=body)

    def _vector(self, shape: Shape) -> dict[str, Any]:
        """Return the mapping of a field; of a form, it asks the service to compare again by the vectors themselves."""
        if self._elastic:
            field = {"type": "dense_vector", "dims": shape.width, "index": True, "similarity": "cosine"}
            if self._form is None:
                return field
            again = {"oversample": _OVERSAMPLED}
            return {**field, "index_options": {"type": _QUANTISED[self._form], "rescore_vector": again}}
        field = {"type": "knn_vector", "dimension": shape.width}
        if self._form is None:
            return {**field, "method": {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil"}}
        level = _COMPRESSED[self._form]
        return {**field, "space_type": "cosinesimil", "mode": "on_disk", "compression_level": level}

    def _has_form(self, field: dict[str, Any]) -> bool:
        """Return True if the mapping of the vectors is of the target's form."""
        if self._form is None:
            return True
        if self._elastic:
            return field.get("index_options", {}).get("type") == _QUANTISED[self._form]
        return field.get("compression_level") == _COMPRESSED[self._form]

    def rows_by_partition(self, table: str, partitions: int) -> dict[int, int]:
        counted = {"partitions": {"terms": {"field": PARTITION, "size": partitions}}}
        with self._speaking():
            found = self._client.search(index=table, body={"size": 0, "aggs": counted})
            return {each["key"]: each["doc_count"] for each in found["aggregations"]["partitions"]["buckets"]}

    def load(self, table: str, partition: int, rows: pa.Table, again: bool) -> None:
        """Insert the rows; ids of documents are derived from item ids, so loading twice changes nothing."""
        with self._speaking():
            if again:
                self._delete(table, _of_partition(partition))
            self._insert(table, rows)
            self._client.indices.refresh(index=table)

    def _insert(self, table: str, rows: pa.Table) -> None:
        waiting: list[dict[str, Any]] = []
        size = 0
        for batch in rows.to_batches(max_chunksize=256):
            width = batch.schema.field(VECTOR).type.list_size
            vectors = batch.column(VECTOR).flatten().to_numpy(zero_copy_only=False).astype(np.float32)
            others = batch.select([ITEM_ID, TEXT, MODEL_VERSION, PARTITION]).to_pylist()
            for document, vector in zip(others, vectors.reshape(-1, width), strict=True):
                waiting += [{"index": {"_id": _document(document[ITEM_ID])}}, {**document, VECTOR: vector.tolist()}]
                size += len(document[TEXT].encode()) + _FLOAT_BYTES * width
                if size > BATCH_BYTES:
                    self._send(table, waiting)
                    waiting, size = [], 0
        if waiting:
            self._send(table, waiting)

    def _send(self, table: str, actions: list[dict[str, Any]]) -> None:
        """Send documents. Raises ConfigError, StoreError: the service refuses one; names its reason."""
        answer = self._client.bulk(index=table, body=actions)
        if answer["errors"]:
            results = (result for each in answer["items"] for result in each.values())
            first = next(result for result in results if "error" in result)
            kind = ConfigError if first["status"] in _REFUSED else StoreError
            raise kind(f"{self.where}, index {table}: {first['error']['type']}: {first['error']['reason']}")

    def index(self, table: str) -> Index:
        """Return the vectors' HNSW, which the service makes of each document as it takes it in."""
        with self._speaking():
            self._client.indices.refresh(index=table)
            field = self._client.indices.get_mapping(index=table)[table]["mappings"]["properties"][VECTOR]
        indexed = field["type"] in ("knn_vector", "dense_vector") and field.get("index") is not False
        if not indexed or not self._has_form(field):
            of = f" of form {self._form}" if self._form is not None else ""
            raise DamagedTable(f"{self.where}, index {table}: its field {VECTOR} is no index of vectors{of}: {field}")
        return Index("hnsw", self.count(table))

    def count(self, table: str) -> int:
        with self._speaking():
            return self._client.count(index=table)["count"]

    def item_ids(self, table: str, partition: int) -> list[str]:
        found: list[str] = []
        asked: dict[str, Any] = {"query": _of_partition(partition), "size": PAGE_ITEMS, "sort": [{ITEM_ID: "asc"}]}
        asked["_source"] = [ITEM_ID]
        with self._speaking():
            while hits := self._client.search(index=table, body=asked)["hits"]["hits"]:
                found += [hit["_source"][ITEM_ID] for hit in hits]
                asked["search_after"] = hits[-1]["sort"]
        return found

    def rows_of(self, table: str, item_ids: list[str]) -> dict[str, Row]:
        with self._speaking():
            found = self._client.mget(index=table, body={"ids": [_document(item_id) for item_id in item_ids]})
            rows = [each["_source"] for each in found["docs"] if each.get("found")]
            return {row[ITEM_ID]: Row(row[TEXT], np.asarray(row[VECTOR], dtype=np.float32)) for row in rows}

    def count_other_models(self, table: str, model_version: str) -> int:
        others = {"bool": {"must_not": [{"term": {MODEL_VERSION: model_version}}]}}
        with self._speaking():
            return self._client.count(index=table, body={"query": others})["count"]

    def nearest(self, table: str, query: np.ndarray, k: int) -> list[str]:
        body: dict[str, Any] = {"size": k, "_source": [ITEM_ID]}
        vector, most = query.tolist(), max(k, CANDIDATES)
        if self._elastic:
            body["knn"] = {"field": VECTOR, "query_vector": vector, "k": k, "num_candidates": most}
        else:
            body["query"] = {"knn": {VECTOR: {"vector": vector, "k": most}}}
        with self._speaking():
            hits = self._client.search(index=table, body=body)["hits"]["hits"]
            return [hit["_source"][ITEM_ID] for hit in hits]

    def serve(self, table: str, owner: Owner) -> None:
        """Move the alias; the service applies all actions of one request at once."""
        before = self.serving()
        gone = [{"remove": {"index": before, "alias": self._name}}] if before not in (None, table) else []
        made = {"add": {"index": table, "alias": self._name}}
        with self._speaking():
            self._client.indices.put_mapping(index=table, body={"_meta": owner._asdict()})
            self._client.indices.update_aliases(body={"actions": [*gone, made]})

    @contextlib.contextmanager
    def changing(self, table: str, into: str) -> Iterator[str]:
        """Give a copy without replicas; a copy of that gets the name `into` in the end, since no index is renamed.

        Whoever finds an index of that name finds all its changes, also after a kill between any two requests.
        """
        copy = name_of_copy(into)
        with self._speaking():
            found = self._client.indices.get_settings(index=table, params={"flat_settings": "true"})[table]["settings"]
        try:
            self._clone(table, copy, {"index.number_of_replicas": 0, "index.auto_expand_replicas": "false"})
            yield copy
            self._clone(copy, into, {name: found[name] for name in _REPLICAS if name in found})
        finally:
            with contextlib.suppress(StoreError):  # else the next publication drops it
                self.drop(copy)

    def _clone(self, table: str, into: str, settings: dict[str, Any]) -> None:
        """Copy an index, which takes no writes meanwhile; wait until the copy can be searched.

        Raises:
            DamagedTable: the service refuses to copy it, or doesn't come to an end.
        """
        try:
            self._client.indices.put_settings(index=table, body={_WRITE_BLOCK: True})
            try:
                asked = {"settings": {**settings, _WRITE_BLOCK: None}}
                self._client.indices.clone(index=table, target=into, body=asked)
                self._await(into)
            finally:
                self._client.indices.put_settings(index=table, body={_WRITE_BLOCK: None})
        except TransportError as error:
            if not isinstance(error.status_code, int):  # no answer
                raise StoreError(f"{self.where}: {_reason(error)}") from error
            raise DamagedTable(f"{self.where}, index {table}: it can't be copied: {_reason(error)}") from error

    def _await(self, table: str, seconds: int = WAIT_SECONDS) -> None:
        """Wait until all shards of a copy can be searched; asks for no right beyond that of a search."""
        for left in range(seconds, -1, -1):
            try:
                shards = self._client.count(index=table)["_shards"]
                if shards["successful"] == shards["total"]:
                    return
            except TransportError as error:
                if error.status_code != _NOT_READY or not left:
                    raise
            sleep(POLL_SECONDS)
        raise StoreError(f"{self.where}, index {table}: some of its shards don't answer")

    def change(self, table: str, rows: pa.Table, gone: list[str]) -> None:
        with self._speaking():
            if gone:
                self._send(table, [{"delete": {"_id": _document(item_id)}} for item_id in gone])
            self._insert(table, rows)
            self._client.indices.refresh(index=table)

    def erase(self, table: str, item_ids: list[str]) -> None:
        """Delete the documents, and have their segments written again without them."""
        with self._speaking():
            self._delete(table, {"ids": {"values": [_document(item_id) for item_id in item_ids]}})
            self._client.indices.put_settings(index=table, body={"index.merge.policy.expunge_deletes_allowed": 0})
            self._client.indices.forcemerge(index=table, params={"only_expunge_deletes": "true"})

    def drop(self, table: str) -> None:
        with self._speaking(), contextlib.suppress(NotFoundError):
            self._client.indices.delete(index=table)

    def close(self) -> None:
        self._client.close()

    def _delete(self, table: str, query: dict[str, Any]) -> None:
        self._client.indices.put_settings(index=table, body={_WRITE_BLOCK: None})  # left by a kill while it was copied
        self._client.indices.refresh(index=table)  # a query finds only documents from before the last refresh
        self._client.delete_by_query(index=table, body={"query": query}, params={"refresh": "true"})

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except NotFoundError as error:
            raise DamagedTable(f"{self.where}: {_reason(error)}") from error
        except (RequestError, TransportError) as error:
            kind = ConfigError if error.status_code in _REFUSED else StoreError
            raise kind(f"{self.where}: {_reason(error)}") from error
        except ImproperlyConfigured as error:
            raise ConfigError(f"{self.where}: {error}") from error
        except (OpenSearchException, OSError) as error:
            raise StoreError(f"{self.where}: {error}") from error


def _reason(error: TransportError) -> str:
    """Return the service's own sentence, or the client's if no service answered."""
    info = error.info
    found = info.get("error") if isinstance(info, dict) else None
    if isinstance(found, dict):
        return f"{error.status_code}, {found.get('type')}: {found.get('reason')}"
    return f"{error.status_code}, {error.error}: {info}"


def _of_partition(number: int) -> dict[str, Any]:
    return {"term": {PARTITION: number}}


def _document(item_id: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, item_id))
