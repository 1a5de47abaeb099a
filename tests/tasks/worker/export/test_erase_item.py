"""An item deleted from all tables of a target: of the release that serves, and of the one that a rollback goes to."""

from __future__ import annotations

from pathlib import Path

from infra.store.directory import DirectoryStore
from tasks.contracts.erasing import EraseItem
from tasks.worker import publish
from tasks.worker.export.erase_item import erase_item
from tests.support.workspace.publications import publish_job
from tests.support.workspace.releases import make_current, write_release
from tests.tasks.worker.export.places import lancedb_place


def test_an_item_goes_from_the_served_table_and_from_the_one_before(store: DirectoryStore, tmp_path: Path) -> None:
    place = lancedb_place(tmp_path / "target")
    for number in (1, 2):
        release = write_release(store, number)
        make_current(store, release)
        publish.run(publish_job(store, place.config(), release))
    (settings,) = place.config().publish.targets
    asked = EraseItem(target=settings, item_ids=("i0007", "another form of it"), dry_run=True)
    looked = erase_item(asked).tables
    assert [(line.table[:7], line.serving) for line in looked] == [("look_r1", False), ("look_r2", True)]
    assert erase_item(asked.model_copy(update={"dry_run": False})).tables == looked
    assert erase_item(asked).tables == ()
