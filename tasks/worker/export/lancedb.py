"""Releases in a LanceDB database: a folder or bucket that applications read directly.

LanceDB has no alias. So the table with the target's name has one row, the name of the table to read, which is replaced
in one commit. A table may name the encoder of its queries in its metadata; LanceDB's clients then ask it by themselves.

A table is a folder of files that are never written again, so a copy of it costs names alone in a folder, and no byte on
the way in a bucket. Changes add small files to the copy.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.compute
from lancedb.index import HnswFlat, HnswSq, IvfRq

from configs.schema.stages import Form, LancedbTarget
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.data.rows import ITEM_ID, MODEL_VERSION, TEXT, VECTOR
from tasks.foundation.errors import ConfigError, StoreError
from tasks.worker.catalogue.reuse import as_matrix
from tasks.worker.export.target import (
    CANDIDATES,
    PARTITION,
    DamagedTable,
    Index,
    Owner,
    Row,
    Shape,
    is_copy,
    is_table_of,
    name_of_copy,
    release_of,
)

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

_POINTER = pa.schema(
    {
        "table": pa.string(),
        "release": pa.int64(),
        MODEL_VERSION: pa.string(),
        "workspace": pa.string(),
        "lineage": pa.string(),
    }
)
ENCODER, TOKEN = "millrace_encoder", "millrace_token"  # variables in the registry of LanceDB's embedding functions
_INDEXES: dict[Form | None, tuple[Any, str]] = {  # its settings, and its name in the service
    None: (HnswFlat, "IvfHnswFlat"),
    "int8": (HnswSq, "IvfHnswSq"),
    "binary": (IvfRq, "IvfRq"),
}
_BYTE = 8  # bits: of a binary vector, LanceDB takes whole bytes alone
_MOST_TABLES = 10_000
_NEWEST = 2**64 - 1  # less the version, it is the name of a version's manifest
# Each search reads new rows one by one until they are in the index, and each part of the index apart from the others.
UNINDEXED_ROWS, UNINDEXED_FILES, INDEX_PARTS = 10_000, 4, 4  # at most, beside one file and one part for all others
_DISTANCE = "_distance"


class Lancedb:
    """Implements `Target`."""

    def __init__(self, target: LancedbTarget) -> None:
        self._name, self._encoder, self._width, self._form = target.name, target.encoder, target.width, target.form
        self._settings, self._kind = _INDEXES[target.form]
        self._uri = target.uri
        self._searched: Any = None  # the last searched table
        self.where = f"lancedb {target.name} ({target.uri})"
        with self._speaking():
            self._db = lancedb.connect(target.uri, storage_options=_storage_options(target.uri))

    def serving(self) -> str | None:
        row = self._pointer()
        return row["table"] if row is not None else None

    def owner(self) -> Owner | None:
        row = self._pointer()
        return Owner(row["workspace"], row["lineage"]) if row is not None else None

    def _pointer(self) -> dict[str, Any] | None:
        with self._speaking():
            if self._name not in self._names():
                return None
            pointer = self._db.open_table(self._name)
            if pointer.schema.names != _POINTER.names:
                raise ConfigError(f"{self.where}: it has a table of its own under that name; give the target another")
            rows = pointer.to_arrow().to_pylist()
            return rows[0] if rows else None

    def tables(self) -> list[str]:
        with self._speaking():
            return [name for name in self._names() if is_table_of(self._name, name)]

    def create(self, table: str, shape: Shape) -> None:
        columns = {
            ITEM_ID: pa.string(),
            TEXT: pa.string(),
            VECTOR: pa.list_(pa.float16() if shape.fp16 else pa.float32(), shape.width),
            MODEL_VERSION: pa.string(),
            PARTITION: pa.int32(),
        }
        if self._form == "binary" and shape.width % _BYTE:
            raise ConfigError(
                f"{self.where}: LanceDB makes binary vectors of a multiple of {_BYTE} numbers, and these have "
                f"{shape.width}; take form int8, or another width"
            )
        of_text = _query_encoder(self._encoder, shape.of_queries, self._width) if self._encoder else None
        schema = pa.schema(columns, of_text)
        with self._speaking():
            if table not in self._names():  # one that names another encoder has another schema
                self._db.create_table(table, schema=schema, exist_ok=True)

    def rows_by_partition(self, table: str, partitions: int) -> dict[int, int]:
        with self._speaking():
            found = pc.value_counts(self._column(table, PARTITION))
            return {each["values"]: each["counts"] for each in found.to_pylist()}

    def load(self, table: str, partition: int, rows: pa.Table, again: bool) -> None:
        with self._speaking():
            there = self._db.open_table(table)
            if again:
                there.delete(f"{PARTITION} = {partition}")
            there.add(rows)

    def index(self, table: str) -> Index:
        """Build an index of all rows unless there is one; LanceDB scans a few new rows beside it."""
        with self._speaking():
            there = self._db.open_table(table)
            found = _described(there, self._kind)
            behind = found is not None and (
                found.unindexed_rows > UNINDEXED_ROWS or found.unindexed_files > UNINDEXED_FILES
            )
            if found is None or (behind and found.parts > INDEX_PARTS):
                for name in [each.name for each in there.list_indices() if VECTOR in each.columns]:
                    there.drop_index(name)
                self._tidy(table)  # first: rows that are moved later would be indexed again
                self._db.open_table(table).create_index(
                    VECTOR, config=self._settings(distance_type="cosine"), replace=True
                )
            elif behind:
                self._tidy(table)
            found = _described(self._db.open_table(table), self._kind)
        if found is None or found.unindexed_rows > UNINDEXED_ROWS:
            raise StoreError(f"{self.where}, table {table}: it has no whole index, although one was built just now")
        return Index(found.name, found.rows)

    def _tidy(self, table: str) -> None:
        """Merge small files, index new rows, and delete what earlier versions alone have, unless consumers read it."""
        self._searched = None
        there = self._db.open_table(table)
        if table == self.serving():
            there.optimize()
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # another publication that loads this table may fail
            there.optimize(cleanup_older_than=dt.timedelta(0), delete_unverified=is_copy(table))

    def count(self, table: str) -> int:
        with self._speaking():
            return self._db.open_table(table).count_rows()

    def item_ids(self, table: str, partition: int) -> list[str]:
        with self._speaking():
            return self._column(table, ITEM_ID, f"{PARTITION} = {partition}").to_pylist()

    def rows_of(self, table: str, item_ids: list[str]) -> dict[str, Row]:
        listed = ", ".join(_quoted(item_id) for item_id in item_ids)
        with self._speaking():
            asked = self._db.open_table(table).search().where(f"{ITEM_ID} IN ({listed})")
            found = asked.select([ITEM_ID, TEXT, VECTOR]).to_arrow()
            vectors = as_matrix(found[VECTOR]).astype(np.float32)
            ids, texts = found[ITEM_ID].to_pylist(), found[TEXT].to_pylist()
            return {each: Row(text, vector) for each, text, vector in zip(ids, texts, vectors, strict=True)}

    def count_other_models(self, table: str, model_version: str) -> int:
        with self._speaking():
            return self._db.open_table(table).count_rows(f"{MODEL_VERSION} <> {_quoted(model_version)}")

    def nearest(self, table: str, query: np.ndarray, k: int) -> list[str]:
        with self._speaking():
            if self._searched is None or self._searched.name != table:
                self._searched = self._db.open_table(table)  # once, as this reads the table's manifest
            asked = self._searched.search(query, vector_column_name=VECTOR).distance_type("cosine")
            if self._form is not None:
                asked = asked.refine_factor(CANDIDATES)
            return asked.select([ITEM_ID, _DISTANCE]).limit(k).to_arrow()[ITEM_ID].to_pylist()

    def serve(self, table: str, owner: Owner) -> None:
        with self._speaking():
            version = self._db.open_table(table).search().select([MODEL_VERSION]).limit(1).to_arrow()[MODEL_VERSION]
            row = {"table": table, "release": release_of(table), MODEL_VERSION: version[0].as_py(), **owner._asdict()}
            pointer = self._db.create_table(self._name, schema=_POINTER, exist_ok=True)
            pointer.add([row], mode="overwrite")

    @contextlib.contextmanager
    def changing(self, table: str, into: str) -> Iterator[str]:
        """Give a copy, which gets the name `into` in the end."""
        copy = name_of_copy(into)
        try:
            self._copy(table, copy)
            yield copy
            with self._speaking():
                self._files().move(f"{copy}.lance", f"{into}.lance")
        except BaseException:
            with contextlib.suppress(StoreError):
                self.drop(copy)
            raise

    def _copy(self, table: str, into: str) -> None:
        """Copy the newest version of a table, its manifest last.

        Raises:
            DamagedTable: the table was changed meanwhile, so that some of its files may be gone.
        """
        with self._speaking():
            files, version = self._files(), self._db.open_table(table).version
            listed = (key.removeprefix(f"{table}.lance/") for key in files.list(f"{table}.lance"))
            names = [name for name in listed if not name.startswith("_versions/")]
            files.copy(f"{table}.lance", f"{into}.lance", [*names, f"_versions/{_NEWEST - version:020}.manifest"])
            if self._db.open_table(table).version != version:
                raise DamagedTable(f"{self.where}, table {table}: it was changed while it was copied")

    def _files(self) -> Store:
        return open_store(self._uri)

    def change(self, table: str, rows: pa.Table, gone: list[str]) -> None:
        listed = ", ".join(_quoted(item_id) for item_id in [*gone, *rows[ITEM_ID].to_pylist()])
        with self._speaking():
            self._searched = None
            there = self._db.open_table(table)
            there.delete(f"{ITEM_ID} IN ({listed})")
            if rows.num_rows:
                there.add(rows)

    def erase(self, table: str, item_ids: list[str]) -> None:
        """Write the table again without the items, and delete its earlier versions: LanceDB else keeps deleted rows."""
        listed = ", ".join(_quoted(item_id) for item_id in item_ids)
        with self._speaking():
            there = self._db.open_table(table)
            indexed, schema = bool(there.list_indices()), there.schema
            left = there.search().where(f"{ITEM_ID} NOT IN ({listed})").select(schema.names).to_batches()
            with tempfile.TemporaryFile() as kept:  # the rows are read before their table is written
                with pa.ipc.new_stream(kept, schema) as writer:
                    for batch in filter(len, left):  # LanceDB would ask the encoder for the vectors of an empty one
                        writer.write_table(pa.Table.from_batches([batch]).select(schema.names).cast(schema))
                kept.seek(0)
                with pa.ipc.open_stream(kept) as reader:
                    self._db.create_table(table, data=reader, schema=schema, mode="overwrite")
            self._searched = None
        if indexed:
            self.index(table)
        with self._speaking(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a query that began before, on an older version, may fail
            self._db.open_table(table).optimize(cleanup_older_than=dt.timedelta(0), delete_unverified=True)

    def drop(self, table: str) -> None:
        with self._speaking():
            self._db.drop_table(table)

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    def _names(self) -> list[str]:
        return list(self._db.list_tables(limit=_MOST_TABLES).tables)

    def _column(self, table: str, name: str, where: str | None = None) -> pa.ChunkedArray:
        asked = self._db.open_table(table).search().select([name])
        return (asked.where(where) if where else asked).to_arrow()[name]

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except (OSError, RuntimeError, ValueError) as error:  # raised by LanceDB for its files
            kind = DamagedTable if "not found" in str(error).lower() else StoreError
            raise kind(f"{self.where}: {error}") from error


class _Described(NamedTuple):
    """An index and the rows that a search finds; files beside one with most rows are taken for small ones."""

    name: str
    parts: int
    rows: int
    unindexed_rows: int
    unindexed_files: int


def _described(table: Any, kind: str) -> _Described | None:
    """Return the cosine index of this kind; None if the table has none."""
    for index in table.list_indices():
        stats = table.index_stats(index.name)
        if VECTOR not in index.columns or index.index_type != kind:
            continue
        if stats is None or stats.distance_type != "cosine":
            continue
        rows, unindexed = stats.num_indexed_rows + stats.num_unindexed_rows, stats.num_unindexed_rows
        small = table.stats()["fragment_stats"]["num_small_fragments"]
        return _Described(index.name, stats.num_indices, rows, unindexed, small - stats.num_indices)
    return None


def _query_encoder(address: str, model_version: str, width: int | None) -> dict[str, str]:
    """Return a table's metadata by which `search(text)` asks `millrace serve --online` for the vector.

    It is LanceDB's own function for OpenAI's interface. A reader may set both variables, as docs/publish.md says.
    """
    model = {
        "name": model_version,
        **({"dim": width} if width is not None else {}),
        "base_url": f"$var:{ENCODER}:{address.rstrip('/')}/v1",
        "api_key": f"$var:{TOKEN}:none",
        "max_retries": 0,  # beyond the two of its client: a model that no server has any more is an error at once
    }
    function = {"name": "openai", "model": model, "source_column": TEXT, "vector_column": VECTOR}
    return {"embedding_functions": json.dumps([function])}


def _quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"


def _storage_options(uri: str) -> dict[str, str] | None:
    """Return the S3 endpoint if it is not AWS's; LanceDB finds all other settings as boto3 does."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if not uri.startswith("s3://") or not endpoint:
        return None
    return {"aws_endpoint": endpoint, "allow_http": str(endpoint.startswith("http://")).lower()}
