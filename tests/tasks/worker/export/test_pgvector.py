"""What only Postgres has: passwords, transactions of readers, a view."""

from __future__ import annotations

import socket
import threading

import psycopg
import pytest
from psycopg.sql import SQL

from configs.schema.stages import PgvectorTarget
from tasks.foundation.errors import ConfigError, StoreError
from tasks.worker import publish
from tasks.worker.export import pgvector
from tasks.worker.export.targets import open_target
from tests.support.processes.postgres import Postgres
from tests.support.workspace.publications import publish_job
from tests.support.workspace.releases import write_release
from tests.tasks.worker.export.places import pgvector_place
from tests.tasks.worker.export.reading import served


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.empty_database()


def target(dsn: str, **more: str) -> PgvectorTarget:
    return PgvectorTarget.model_validate({"kind": "pgvector", "name": "look", "dsn": dsn, **more})


def test_a_reader_in_a_long_transaction_delays_no_other_reader(store, dsn, monkeypatch):
    """It holds the view, so the swap can't be made; the swap gives up, instead of holding up all later readers."""
    monkeypatch.setattr(pgvector, "LOCK_TIMEOUT", "200ms")
    place, old, new = pgvector_place(dsn), write_release(store, 1), write_release(store, 2)
    publish.run(publish_job(store, place.config(), old, only_current=False))
    with psycopg.connect(dsn) as reader:
        reader.execute("SELECT count(*) FROM look")
        with pytest.raises(StoreError, match="lock timeout"):
            publish.run(publish_job(store, place.config(), new))
        assert served(store, place, old)
    assert publish.run(publish_job(store, place.config(), new)).loaded == 0
    assert served(store, place, new)


@pytest.mark.parametrize(
    "damage", ["DROP INDEX {}", "UPDATE pg_index SET indisvalid = false WHERE indexrelid = '{}'::regclass"]
)
def test_an_index_that_is_lost_or_invalid_is_built_again_in_the_served_table(store, dsn, damage):
    """Postgres scans all rows without one, which has a recall of 1 and takes seconds at a million rows."""
    config, release = pgvector_place(dsn).config(), write_release(store, 1)
    first = publish.run(publish_job(store, config, release))
    state = SQL("SELECT indisvalid, indexrelid FROM pg_index WHERE indexrelid = to_regclass({})").format(first.index)
    with psycopg.connect(dsn, autocommit=True) as owner:
        built = owner.execute(state).fetchone()
        publish.run(publish_job(store, config, release))
        assert owner.execute(state).fetchone() == built, "a valid index is not built again"
        owner.execute(SQL(damage.format(first.index)))  # pyright: ignore[reportArgumentType]
        again = publish.run(publish_job(store, config, release))
        assert (again.table, again.loaded, again.index) == (first.table, 0, first.index)
        now = owner.execute(state).fetchone()
        assert now is not None
        assert now[0]
        assert now != built


def test_a_view_of_somebody_else_is_not_replaced(store, dsn):
    place, release = pgvector_place(dsn), write_release(store, 1)
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("CREATE TABLE theirs (item_id text); CREATE VIEW look AS SELECT * FROM theirs")
        for comment in ("NULL", "'the look-up'", "'[1]'"):
            owner.execute(SQL("COMMENT ON VIEW look IS " + comment))  # pyright: ignore[reportArgumentType]
            with pytest.raises(ConfigError, match=r"names no workspace"):
                publish.run(publish_job(store, place.config(), release))
        assert owner.execute("SELECT count(*) FROM look").fetchone() == (0,)


def test_readers_need_the_view_alone_and_keep_their_right(store, dsn):
    place = pgvector_place(dsn)
    publish.run(publish_job(store, place.config(), write_release(store, 1)))
    with psycopg.connect(dsn) as owner:
        owner.execute("DROP ROLE IF EXISTS reader")
        owner.execute("CREATE ROLE reader")
        owner.execute("GRANT USAGE ON SCHEMA public TO reader")
        owner.execute("GRANT SELECT ON look TO reader")
    publish.run(publish_job(store, place.config(), write_release(store, 2)))
    with psycopg.connect(dsn) as reader:
        reader.execute("SET ROLE reader")
        assert reader.execute("SELECT count(*), min(model_version) FROM look").fetchone() == (24, "main-00000002")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            reader.execute("DELETE FROM look")


def test_a_query_of_a_consumer_uses_the_index(store, dsn):
    publish.run(publish_job(store, pgvector_place(dsn).config(), write_release(store, 1)))
    with psycopg.connect(dsn) as reader:
        reader.execute("SET enable_seqscan = off")  # which would be faster over so few rows
        vector = str([1.0] * 16)
        plan = reader.execute("EXPLAIN SELECT item_id FROM look ORDER BY vector <=> %s LIMIT 3", (vector,)).fetchall()
    assert "_nearest on look_r1_" in str(plan)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"password_env": "NO_SUCH_VARIABLE"}, ConfigError, "NO_SUCH_VARIABLE is not set"),
        ({"dsn": "postgresql://nobody@127.0.0.1:9/shop"}, StoreError, r"pgvector look .*refused"),
        ({"dsn": "{dsn}&user=nobody"}, ConfigError, 'role "nobody" does not exist'),
    ],
)
def test_a_database_that_lets_nobody_in_is_named(dsn, settings, error, message):
    settings = {"dsn": dsn} | {name: value.format(dsn=dsn) for name, value in settings.items()}
    with pytest.raises(error, match=message):
        open_target(target(**settings))


class Listening(threading.Thread):
    """A server at a port of this machine that asks whoever comes for a password in clear text."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.got = b""
        self.start()

    def run(self) -> None:
        with self._socket, self._socket.accept()[0] as client:
            client.settimeout(5)
            while len(said := client.recv(1024)) == 8:  # may it be encrypted? no
                client.sendall(b"N")
            assert b"writer" in said
            client.sendall(b"R\x00\x00\x00\x08\x00\x00\x00\x03")
            self.got = client.recv(1024)


def test_no_password_goes_to_a_server_in_clear_text(monkeypatch):
    monkeypatch.setenv("SHOP_PASSWORD", "geheim")
    server = Listening()
    with pytest.raises(ConfigError, match=r"scram-.*docs/publish\.md"):
        open_target(target(f"postgresql://writer@127.0.0.1:{server.port}/shop", password_env="SHOP_PASSWORD"))
    server.join(10)
    assert server.got == b""


def test_another_way_to_log_in_is_used_where_the_address_names_it(monkeypatch):
    monkeypatch.setenv("SHOP_PASSWORD", "geheim")
    server = Listening()
    dsn = f"postgresql://writer@127.0.0.1:{server.port}/shop?require_auth=password"
    with pytest.raises(StoreError):  # it hangs up
        open_target(target(dsn, password_env="SHOP_PASSWORD"))
    server.join(10)
    assert b"geheim" in server.got


def test_the_password_comes_from_the_environment(dsn, monkeypatch):
    given = {}
    monkeypatch.setenv("SHOP_PASSWORD", "geheim")
    real = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", lambda *args, **named: given.update(named) or real(*args, **named))
    opened = open_target(target(dsn, password_env="SHOP_PASSWORD"))
    opened.close()
    assert given["password"] == "geheim"
    assert "geheim" not in opened.where
