"""The worker of a publication apart from what depends on the kind of target, which tests/tasks/worker/export has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lancedb
import pytest

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tasks.contracts.outcomes import PublishOutcome, StageResult
from tasks.foundation.errors import ConfigError, StoreError
from tasks.worker import publish
from tasks.worker.export.targets import open_target
from tests.support.cloud.s3 import S3Server
from tests.support.fakes.fake_runner import small_config
from tests.support.workspace.publications import publish_job, publish_spec
from tests.support.workspace.releases import write_release
from tests.support.workspace.served import point_to
from tests.tasks.worker.export.watched import Watched

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return config_of(f"{tmp_path}/lancedb")


def config_of(uri: str) -> Config:
    return small_config(f"publish.targets=[{{kind: lancedb, name: look, uri: '{uri}'}}]")


def test_the_one_door_publishes_without_torch(store: DirectoryStore, config: Config) -> None:
    spec = publish_spec(store, config, write_release(store, 1))
    store.create(f"{spec.attempt_prefix}/spec.json", spec.to_json())
    door = "import sys; sys.modules['torch'] = None; from tasks.worker.__main__ import main; sys.exit(main())"
    called = [sys.executable, "-c", door, "publish", "--spec", f"{store.uri}#{spec.attempt_prefix}/spec.json"]
    done = subprocess.run(called, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result = StageResult.model_validate_json(store.read(f"{spec.stage_prefix}/result.json"))
    assert isinstance(result.outcome, PublishOutcome)
    assert (result.outcome.vectors, result.outcome.loaded, result.outcome.recall) == (24, 24, 1.0)
    assert '"what":"publish","done":24,"total":24' in done.stdout


def test_a_database_on_s3_is_like_a_folder(s3: S3Server) -> None:
    store = open_store(s3.new_workspace())
    uri = s3.new_workspace()
    first, second = write_release(store, 1), write_release(store, 2)
    for release in (first, second):
        outcome = publish.run(publish_job(store, config_of(uri), release, only_current=False))
        options = {"aws_endpoint": s3.url, "allow_http": "true"}
        database = lancedb.connect(uri, storage_options=options)
        (now,) = database.open_table("look").to_arrow().to_pylist()
        assert (now["table"], now["model_version"]) == (outcome.table, release.model.version)
        assert database.open_table(now["table"]).count_rows() == 24


def test_a_folder_with_vectors_by_another_model_is_refused(store, config):
    release = write_release(store, 1)
    other = release.model.model_copy(update={"version": "main-00000009"})
    with pytest.raises(StoreError, match=r"-00000001, .*-00000009"):
        publish.run(publish_job(store, config, release.model_copy(update={"model": other})))


def test_an_old_table_that_can_not_be_dropped_does_not_undo_the_swap(store, config, monkeypatch, capsys):
    releases = [write_release(store, number) for number in (1, 2, 3)]
    for release in releases[:2]:
        publish.run(publish_job(store, config, release, only_current=False))
    watched = Watched.instead_of_targets(monkeypatch)

    def busy() -> None:
        raise StoreError("a reader holds it")

    watched.before["drop"] = busy
    outcome = publish.run(publish_job(store, config, releases[2]))
    assert (outcome.table or "").startswith("look_r3_")
    assert outcome.dropped == ()
    assert "a reader holds it" in capsys.readouterr().out


@pytest.mark.parametrize("later", [4, 1], ids=["a new table", "back to an old one"])
def test_a_publication_that_stood_still_after_its_swap_drops_nothing_that_a_later_one_serves(
    store, config, tmp_path, monkeypatch, later
):
    releases = [write_release(store, number) for number in (1, 2, 3, 4)]
    for release in releases[:2]:
        publish.run(publish_job(store, config, release, only_current=False))
    watched = Watched.instead_of_targets(monkeypatch)

    def meanwhile() -> None:
        monkeypatch.setattr(publish, "open_target", open_target)
        publish.run(publish_job(store, config, releases[later - 1], only_current=False))

    watched.after["serve"] = meanwhile
    publish.run(publish_job(store, config, releases[2], only_current=False))
    database = lancedb.connect(tmp_path / "lancedb")
    (now,) = database.open_table("look").to_arrow().to_pylist()
    assert now["table"].startswith(f"look_r{later}_")
    assert database.open_table(now["table"]).count_rows() == 24


def test_a_table_that_is_served_when_it_is_dropped_gives_way_to_the_one_before(
    store, config, tmp_path, monkeypatch, capsys
):
    """The publication stood still between its look at the target and the drop, and another one went back meanwhile."""
    releases = [write_release(store, number) for number in (1, 2, 3)]
    for release in releases[:2]:
        publish.run(publish_job(store, config, release, only_current=False))
    watched = Watched.instead_of_targets(monkeypatch)

    def meanwhile() -> None:
        del watched.before["drop"]
        monkeypatch.setattr(publish, "open_target", open_target)
        publish.run(publish_job(store, config, releases[0], only_current=False))

    watched.before["drop"] = meanwhile
    publish.run(publish_job(store, config, releases[2], only_current=False))
    database = lancedb.connect(tmp_path / "lancedb")
    (now,) = database.open_table("look").to_arrow().to_pylist()
    assert now["table"].startswith("look_r3_")
    assert database.open_table(now["table"]).count_rows() == 24
    assert "another publication served look_r1_" in capsys.readouterr().out


@pytest.mark.parametrize("when", ["before it begins", "while it loads"])
def test_a_release_that_was_left_and_pruned_is_left_alone(store, config, tmp_path, monkeypatch, when):
    """As after a rollback and a prune, while the publication waits for its turn, or reads the vectors."""
    first, second = write_release(store, 1), write_release(store, 2)
    publish.run(publish_job(store, config, first, only_current=False))
    job = publish_job(store, config, second, only_current=True)

    def leave_and_prune() -> None:
        point_to(store, 1)
        for key in store.list(second.vectors_prefix):
            store.delete(key)

    if when == "before it begins":
        leave_and_prune()
    else:
        Watched.instead_of_targets(monkeypatch).before["load"] = leave_and_prune
    assert publish.run(job).table is None
    (now,) = lancedb.connect(tmp_path / "lancedb").open_table("look").to_arrow().to_pylist()
    assert now["table"].startswith("look_r1_")


def test_items_that_are_equally_near_are_equally_right(store, config):
    """Items at eight places: exact search and the index need not name the same ones of them."""
    release = write_release(store, 1, spread=0.0)
    assert publish.run(publish_job(store, config, release)).recall == 1.0


def test_a_lost_index_is_built_again_in_the_served_table(store, config, tmp_path):
    release = write_release(store, 1)
    first = publish.run(publish_job(store, config, release))
    assert first.table is not None
    table = lancedb.connect(tmp_path / "lancedb").open_table(first.table)

    def ids_now() -> list[str | None]:
        table.checkout_latest()
        return [index.index_uuid for index in table.list_indices()]

    before = ids_now()
    assert publish.run(publish_job(store, config, release)).index == first.index == "vector_idx"
    assert ids_now() == before, "a whole index is not built again"
    table.drop_index("vector_idx")
    again = publish.run(publish_job(store, config, release))
    assert (again.table, again.loaded, again.index) == (first.table, 0, "vector_idx")
    assert len(ids_now()) == 1
    assert [index.num_indexed_rows for index in table.list_indices()] == [24]


@pytest.mark.parametrize("lost", ["table", "data files"])
def test_a_served_table_that_is_gone_is_loaded_again(store, config, tmp_path, lost):
    """In LanceDB consumers are still sent to it; so nothing is loaded under that name, where they would read a part."""
    release = write_release(store, 1)
    first = publish.run(publish_job(store, config, release)).table
    assert first is not None
    database = lancedb.connect(tmp_path / "lancedb")
    if lost == "table":
        database.drop_table(first)
    else:
        for file in (tmp_path / "lancedb" / f"{first}.lance" / "data").iterdir():
            file.unlink()
    again = publish.run(publish_job(store, config, release))
    assert (again.table, again.served_before, again.loaded) == (f"{first}_b", first, 24)
    assert sorted(database.list_tables().tables) == ["look", f"{first}_b"]


def test_a_table_of_somebody_else_under_the_targets_name_is_left_alone(store, config, tmp_path):
    database = lancedb.connect(tmp_path / "lancedb")
    database.create_table("look", data=[{"theirs": 1}])
    with pytest.raises(ConfigError, match="under that name"):
        publish.run(publish_job(store, config, write_release(store, 1)))
    assert database.open_table("look").to_arrow().to_pylist() == [{"theirs": 1}]
    assert database.list_tables().tables == ["look"]
