"""Releases in Postgres with the extension `vector`: one table per release, and a view with the target's name.

Consumers read the view, which is replaced in one transaction.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pgvector.psycopg
import psycopg
import pyarrow as pa
from pgvector import HalfVector, Vector
from psycopg.conninfo import conninfo_to_dict
from psycopg.sql import SQL, Composed, Identifier, Literal

from configs.schema.stages import PgvectorTarget
from tasks.data.rows import ITEM_ID, MODEL_VERSION, TEXT, VECTOR
from tasks.foundation.errors import ConfigError, StageError, StoreError
from tasks.worker.export.secrets import secret_of
from tasks.worker.export.target import CANDIDATES, PARTITION, DamagedTable, Index, Owner, Row, Shape, is_table_of

_COLUMNS = (ITEM_ID, TEXT, VECTOR, MODEL_VERSION, PARTITION)
_INDEX, _PARTITIONS = "_nearest", "_partition"  # suffixes of the indexes' names after the table's name
HNSW_DEFAULT, HNSW_MOST = 40, 1000  # hnsw.ef_search: rows that a search of the index gives, unless told, and at most
LOCK_TIMEOUT = "5s"  # a swap that waits for a reader's transaction blocks all later readers
_DAMAGED = (
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedColumn,
    psycopg.errors.DataCorrupted,
)
_REFUSED = (  # errors that only a person can repair
    psycopg.errors.InvalidPassword,
    psycopg.errors.InvalidAuthorizationSpecification,
    psycopg.errors.InvalidCatalogName,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.UndefinedFile,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.ProgrammingError,
)
# Text of login errors, which have no class of their own.
_NOT_LET_IN = ("password", "authentication", "pg_hba.conf", "does not exist", "permission denied")


class Pgvector:
    """Implements `Target`."""

    def __init__(self, target: PgvectorTarget) -> None:
        self._name, self._binary = target.name, target.form == "binary"
        self._searching: int | None = HNSW_DEFAULT  # hnsw.ef_search as set; None: unknown
        self.where = f"pgvector {target.name} ({target.dsn})"
        secret = secret_of(target.password_env, self.where)
        password = {"password": secret} if secret is not None else {}
        with self._speaking():
            self._connection = psycopg.connect(target.dsn, autocommit=True, **password, **_proof(target.dsn))  # pyright: ignore[reportArgumentType]
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self) -> None:
        with self._speaking():
            if not self._one(SQL("SELECT count(*) FROM pg_extension WHERE extname = 'vector'")):
                self._do(SQL("CREATE EXTENSION IF NOT EXISTS vector"))
            pgvector.psycopg.register_vector(self._connection)
            self._do(SQL("SET lock_timeout = {}").format(Literal(LOCK_TIMEOUT)))

    def serving(self) -> str | None:
        query = SQL(
            "SELECT DISTINCT used.relname FROM pg_rewrite JOIN pg_depend ON pg_depend.objid = pg_rewrite.oid"
            " JOIN pg_class used ON used.oid = pg_depend.refobjid WHERE used.relkind = 'r'"
            " AND pg_rewrite.ev_class = to_regclass({name})"
        )
        with self._speaking():
            found = self._connection.execute(query.format(name=self._quoted(self._name))).fetchone()
            return found[0] if found else None

    def owner(self) -> Owner | None:
        """Return the owner in the comment of the view."""
        query = SQL("SELECT obj_description(to_regclass({name}), 'pg_class')").format(name=self._quoted(self._name))
        with self._speaking():
            comment = self._one(query)
        try:
            found = json.loads(comment or "null")
            return Owner(found["workspace"], found["lineage"])
        except (ValueError, TypeError, KeyError):  # somebody else's comment
            return None

    def tables(self) -> list[str]:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename"
        with self._speaking():
            return [name for (name,) in self._connection.execute(query) if is_table_of(self._name, name)]

    def create(self, table: str, shape: Shape) -> None:
        query = SQL(
            "CREATE TABLE IF NOT EXISTS {table} (item_id text PRIMARY KEY, text text NOT NULL, vector {kind} NOT NULL,"
            " model_version text NOT NULL, partition integer NOT NULL)"
        )
        kind = SQL(f"{'halfvec' if shape.fp16 else 'vector'}({shape.width})")  # pyright: ignore[reportArgumentType]
        with self._speaking():
            self._do(query.format(table=Identifier(table), kind=kind))
            self._do(
                SQL("CREATE INDEX IF NOT EXISTS {name} ON {table} (partition)").format(
                    name=Identifier(f"{table}{_PARTITIONS}"), table=Identifier(table)
                )
            )

    def rows_by_partition(self, table: str, partitions: int) -> dict[int, int]:
        query = SQL("SELECT partition, count(*) FROM {table} GROUP BY partition").format(table=Identifier(table))
        with self._speaking():
            return dict(self._connection.execute(query).fetchall())

    def load(self, table: str, partition: int, rows: pa.Table, again: bool) -> None:
        gone = SQL("DELETE FROM {table} WHERE partition = {partition}")
        with self._speaking(), self._connection.transaction():
            if again:
                self._do(gone.format(table=Identifier(table), partition=Literal(partition)))
            self._copy(table, rows)

    def _copy(self, table: str, rows: pa.Table) -> None:
        names = SQL(", ").join(map(Identifier, _COLUMNS))
        copy = SQL("COPY {table} ({names}) FROM STDIN WITH (FORMAT BINARY)").format(
            table=Identifier(table), names=names
        )
        half = rows.schema.field(VECTOR).type.value_type == pa.float16()
        kind, as_vector = ("halfvec", HalfVector) if half else ("vector", Vector)
        with self._connection.cursor() as cursor, cursor.copy(copy) as into:
            into.set_types(["text", "text", kind, "text", "int4"])
            for batch in rows.to_batches(max_chunksize=1024):
                columns = [batch.column(name) for name in _COLUMNS]
                width = columns[2].type.list_size
                vectors = columns[2].flatten().to_numpy(zero_copy_only=False).reshape(-1, width)
                others = [column.to_pylist() for column in (*columns[:2], *columns[3:])]
                for item_id, text, version, number, vector in zip(*others, vectors, strict=True):
                    into.write_row((item_id, text, as_vector(vector), version, number))

    def index(self, table: str) -> Index:
        """Build an HNSW index, for the cosine or of bits, in one statement, unless it has a valid one.

        An index that Postgres calls invalid, as after an interrupted CONCURRENTLY, is never used by it.
        """
        with self._speaking():
            if (name := self._valid_index(table)) is None:
                kind, width = self._connection.execute(
                    SQL("SELECT format_type(atttypid, NULL), atttypmod FROM pg_attribute"
                        " WHERE attrelid = to_regclass({table}) AND attname = 'vector'")
                    .format(table=self._quoted(table))).fetchone() or ("vector", 0)  # fmt: skip
                indexed = _bits(width) if self._binary else SQL("vector")
                operators = Identifier("bit_hamming_ops" if self._binary else f"{kind}_cosine_ops")
                own, on = Identifier(f"{table}{_INDEX}"), Identifier(table)
                self._do(SQL("DROP INDEX IF EXISTS {own}").format(own=own))
                query = SQL("CREATE INDEX {own} ON {on} USING hnsw ({indexed} {operators})")
                self._do(query.format(own=own, on=on, indexed=indexed, operators=operators))
                self._do(SQL("ANALYZE {on}").format(on=on))
                name = self._valid_index(table)
        if name is None:
            raise StoreError(f"{self.where}, table {table}: it has no valid index, although one was built just now")
        return Index(name, self.count(table))

    def _valid_index(self, table: str) -> str | None:
        """Return the name of an index over all rows that Postgres may use for the cosine, or for bits."""
        query = SQL(
            "SELECT index.relname FROM pg_index JOIN pg_class index ON index.oid = indexrelid"
            " JOIN pg_am ON pg_am.oid = index.relam JOIN pg_opclass ON pg_opclass.oid = indclass[0]"
            " WHERE indrelid = to_regclass({table}) AND amname = 'hnsw' AND opcname LIKE {operators}"
            " AND indisvalid AND indisready AND indpred IS NULL"
        )
        operators = Literal("bit_hamming_ops" if self._binary else "%cosine_ops")
        return self._one(query.format(table=self._quoted(table), operators=operators))

    def count(self, table: str) -> int:
        with self._speaking():
            return self._one(SQL("SELECT count(*) FROM {table}").format(table=Identifier(table)))

    def item_ids(self, table: str, partition: int) -> list[str]:
        query = SQL("SELECT item_id FROM {table} WHERE partition = {partition}")
        with self._speaking():
            rows = self._connection.execute(query.format(table=Identifier(table), partition=Literal(partition)))
            return [item_id for (item_id,) in rows]

    def rows_of(self, table: str, item_ids: list[str]) -> dict[str, Row]:
        query = SQL("SELECT item_id, text, vector::vector FROM {table} WHERE item_id = ANY(%s)")
        with self._speaking():
            rows = self._connection.execute(query.format(table=Identifier(table)), (item_ids,))
            return {item_id: Row(text, vector.to_numpy()) for item_id, text, vector in rows}

    def count_other_models(self, table: str, model_version: str) -> int:
        query = SQL("SELECT count(*) FROM {table} WHERE model_version <> {version}")
        with self._speaking():
            return self._one(query.format(table=Identifier(table), version=Literal(model_version)))

    def nearest(self, table: str, query: np.ndarray, k: int) -> list[str]:
        asked = SQL("SELECT item_id FROM {source} ORDER BY vector <=> {vector} LIMIT {k}")
        near = SQL("(SELECT * FROM {table} ORDER BY {bits} <~> binary_quantize({vector}::vector) LIMIT {first}) near")
        source, vector, first = Identifier(table), Literal(Vector(query).to_text()), k
        if self._binary:
            first = min(k * CANDIDATES, HNSW_MOST)
            source = near.format(table=source, bits=_bits(len(query)), vector=vector, first=Literal(first))
        with self._speaking():
            if (most := min(max(first, HNSW_DEFAULT), HNSW_MOST)) != self._searching:
                self._do(SQL("SET hnsw.ef_search = {most}").format(most=Literal(most)))
                self._searching = most
            rows = self._connection.execute(asked.format(source=source, vector=vector, k=Literal(k)))
            return [item_id for (item_id,) in rows]

    def serve(self, table: str, owner: Owner) -> None:
        """Replace the view; if the vectors' width or type changed, drop and create it in one transaction."""
        name, source = Identifier(self._name), SQL("SELECT * FROM {table}").format(table=Identifier(table))
        comment = Literal(json.dumps(owner._asdict()))
        with self._speaking(), self._connection.transaction():
            try:
                with self._connection.transaction():
                    self._do(SQL("CREATE OR REPLACE VIEW {name} AS {source}").format(name=name, source=source))
            except psycopg.errors.InvalidTableDefinition:  # the columns differ
                self._do(SQL("DROP VIEW {name}").format(name=name))
                self._do(SQL("CREATE VIEW {name} AS {source}").format(name=name, source=source))
            self._do(SQL("COMMENT ON VIEW {name} IS {comment}").format(name=name, comment=comment))

    @contextlib.contextmanager
    def changing(self, table: str, into: str) -> Iterator[str]:
        """Give the table itself, in a transaction that ends with its new name; the view goes on reading it."""
        try:
            with self._speaking(), self._connection.transaction():
                self._do(SQL("SET LOCAL idle_in_transaction_session_timeout = 0"))  # exact search takes a while
                # A second publication waits, if the lease has passed to it; readers do not.
                self._do(SQL("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE").format(table=Identifier(table)))
                yield table
                for suffix in (_INDEX, _PARTITIONS):  # or they would be in the way of a table with the name of before
                    name, new = Identifier(f"{table}{suffix}"), Identifier(f"{into}{suffix}")
                    self._do(SQL("ALTER INDEX IF EXISTS {name} RENAME TO {new}").format(name=name, new=new))
                self._do(
                    SQL("ALTER TABLE {table} RENAME TO {into}").format(table=Identifier(table), into=Identifier(into))
                )
        except BaseException:
            self._searching = None  # the rollback has undone it
            raise

    def change(self, table: str, rows: pa.Table, gone: list[str]) -> None:
        query = SQL("DELETE FROM {table} WHERE item_id = ANY({ids})")
        ids = [*gone, *rows[ITEM_ID].to_pylist()]
        with self._speaking(), self._connection.transaction():
            self._do(query.format(table=Identifier(table), ids=Literal(ids)))
            if rows.num_rows:
                self._copy(table, rows)

    def erase(self, table: str, item_ids: list[str]) -> None:
        """Delete the rows, and let Postgres clear their places in the table and in its indexes."""
        gone = SQL("DELETE FROM {table} WHERE item_id = ANY({ids})")
        with self._speaking():
            self._do(gone.format(table=Identifier(table), ids=Literal(item_ids)))
            self._do(SQL("VACUUM (INDEX_CLEANUP ON) {table}").format(table=Identifier(table)))

    def drop(self, table: str) -> None:
        with self._speaking():
            self._do(SQL("DROP TABLE IF EXISTS {table}").format(table=Identifier(table)))

    def close(self) -> None:
        self._connection.close()

    def _do(self, query: SQL | Composed) -> None:
        self._connection.execute(query)

    def _one(self, query: SQL | Composed) -> Any:
        found = self._connection.execute(query).fetchone()
        return found[0] if found else None

    def _quoted(self, name: str) -> Literal:
        return Literal(f'"{name}"')

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except StageError:
            raise
        except _DAMAGED as error:
            raise DamagedTable(f"{self.where}: {_said(error)}") from error
        except _REFUSED as error:
            raise ConfigError(f"{self.where}: {_said(error)}") from error
        except psycopg.Error as error:
            if "auth" in str(error) and "requirement" in str(error):
                raise ConfigError(
                    f"{self.where}: {_said(error)}. A password is sent by scram-sha-256 alone; docs/publish.md says "
                    "how an address asks for another way"
                ) from error
            refused = any(sign in str(error) for sign in _NOT_LET_IN)
            raise (ConfigError if refused else StoreError)(f"{self.where}: {_said(error)}") from error


def _bits(width: int) -> SQL:
    """Return the expression of a vector's signs, which its index and its queries must share."""
    return SQL(f"(binary_quantize(vector)::bit({width}))")  # pyright: ignore[reportArgumentType]


def _proof(dsn: str) -> dict[str, str]:
    """Return the required login method, scram-sha-256, which hides the password from the server.

    The address may choose another method; a server on this machine's own socket may use any.
    """
    given = conninfo_to_dict(dsn)
    hosts = str(given.get("host") or os.environ.get("PGHOST") or "/").split(",")
    if given.keys() & {"require_auth", "service"}:
        return {}
    here = "hostaddr" not in given and all(host.startswith(("/", "@")) for host in hosts)
    return {} if here else {"require_auth": "scram-sha-256"}


def _said(error: psycopg.Error) -> str:
    return " ".join(str(error).split())
