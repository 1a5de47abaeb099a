"""A shop whose refreshes are published, and what consumers then get."""

from __future__ import annotations

from configs.schema.config import Config
from tasks.contracts.outcomes import PublishOutcome
from tasks.contracts.runs import Release
from tasks.worker import publish
from tests.support.workspace.changing_shop import Shop, vector_of
from tests.support.workspace.publications import publish_job
from tests.tasks.worker.export.places import Place

WIDTH, ITEMS, PARTITIONS = 16, 160, 4
IN_PLACE = ("pgvector",)  # kinds whose served table itself is changed, so the release before has no table
COPIED = ("lancedb", "opensearch")  # a copy of their served table is changed
CHANGEABLE = (*COPIED, *IN_PLACE)


class Interrupted(BaseException):
    pass


def interrupt() -> None:
    raise Interrupted


def refreshed(shop: Shop, changed: int, gone: int = 0, new: int = 0) -> Release:
    before = shop.releases[-1]
    shop.change(changed, gone, new)
    shop.refresh(before)
    return shop.releases[-1]


def bring(shop: Shop, place: Place, release: Release, *overrides: str, **inputs: bool) -> PublishOutcome:
    config: Config = place.config(*overrides)
    return publish.run(publish_job(shop.store, config, release, **inputs))


def in_place(place: Place) -> bool:
    return place.config().publish.targets[0].kind in IN_PLACE


def serves(shop: Shop, place: Place, release: Release) -> bool:
    """Return True if consumers find all items of the release, each with its own text, and no other."""
    found = place.search(vector_of("anything", WIDTH), 2 * ITEMS) or []
    return sorted((hit.item_id, hit.text) for hit in found) == sorted(shop.of[release.number].items())
