"""Page `/map` of `millrace serve`: a worker makes the map of a release, which is kept for the next requests."""

import re
import threading
from itertools import islice

from flows.cli.serving.search_page import parameters
from flows.cli.serving.search_worker import answered_once
from flows.presentation.release_map import Shown, map_html, nothing_html
from infra.store.base import Store
from tasks.contracts.maps import ReleaseMap
from tasks.contracts.runs import Release
from tasks.runs import releases
from tasks.runs.plan import read_plan

MOST_KEPT = 8  # maps, of about 1 MB each
MOST_OFFERED = 12  # releases to compare with, each a read of the store; an address may name any other
_NUMBER = re.compile(r"[1-9]\d{0,8}", re.ASCII)

_Key = tuple[int, int, int | None]  # numbers of the release, of the current one, and of the one compared with


class MapPages:
    """The maps of one workspace; several threads may ask at once, and one map is made at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._making = threading.Lock()
        self._made: dict[_Key, ReleaseMap] = {}  # releases never change

    def page(self, number: int | None, query: str) -> bytes | None:
        """Return the map of a release, by default of the current one; None if it does not exist.

        Args:
            query: such as `colour=category&with=3`; an unknown colour or release counts as not given.

        Raises:
            StageError: the worker failed, or a record is not readable; names the file.
        """
        current = releases.current(self._store)
        if current is None:
            return nothing_html(self._store.uri, "There is no release yet. To make one: millrace run")
        if number is not None and not releases.is_made(self._store, number):
            return None
        release = current if number is None else releases.read(self._store, number)
        if releases.is_pruned(self._store, release.number):
            return nothing_html(self._store.uri, f"millrace prune has deleted the vectors of release {release.number}.")
        given = parameters(query)
        before = self._before(release, given.get("with", ""))
        found = self._map(release, current, before)
        shown = Shown(release, before, given.get("colour", ""), self._others(release, before), current.number)
        return map_html(self._store.uri, found, shown)

    def _before(self, release: Release, asked: str) -> Release | None:
        """Return the release to compare with: the one asked for, else the one of another model before."""
        if _NUMBER.fullmatch(asked) and int(asked) != release.number and self._whole(int(asked)):
            return releases.read(self._store, int(asked))
        return releases.of_another_model_before(self._store, release)

    def _others(self, release: Release, before: Release | None) -> tuple[int, ...]:
        """Return the newest whole releases with new models, and the one compared with, the newest first."""
        newest = [each.number for each in islice(releases.with_new_models(self._store), MOST_OFFERED)]
        whole = {number for number in newest if number != release.number and self._whole(number)}
        return tuple(sorted(whole | ({before.number} if before is not None else set()), reverse=True))

    def _whole(self, number: int) -> bool:
        return releases.is_made(self._store, number) and not releases.is_pruned(self._store, number)

    def _map(self, release: Release, current: Release, before: Release | None) -> ReleaseMap:
        key = release.number, current.number, before.number if before is not None else None
        with self._making:
            if key not in self._made:
                config = read_plan(self._store, release.run_key).config
                line = answered_once("map", self._store, release, current, before, config)
                self._made = self._made if len(self._made) < MOST_KEPT else {}
                self._made[key] = ReleaseMap.model_validate_json(line)
            return self._made[key]
