"""Reads the records of a workspace for pages and sums: one listing, many reads at once, and no record twice."""

import functools
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pydantic import ValidationError

from infra.store.base import Store
from infra.store.records import first_problem
from tasks.contracts.runs import Release
from tasks.contracts.workspace import NUMBER, RELEASE
from tasks.foundation.records import Record
from tasks.monitoring.packs import read_all, unpacked
from tasks.runs.releases import Numbered

R = TypeVar("R", bound=Record)


class Reader:
    """The records of a workspace as they are at the first request. Those that can't be read are left out."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._raw: dict[str, bytes | None] = {}
        self._listed: Mapping[str, int] | None = None  # what lies below runs/, once that is known
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """One sentence for each record that could not be read so far."""
        return list(self._problems.values())

    @functools.cached_property
    def runs(self) -> Mapping[str, list[str]]:
        """The keys below `runs/`, by run key. What packs hold of them is read at once."""
        listed = self.store.sizes("runs")
        self._raw |= unpacked(self.store, listed)
        self._listed = listed
        found: dict[str, list[str]] = {}
        for key in sorted(listed):
            found.setdefault(key.split("/")[1], []).append(key)
        return found

    @functools.cached_property
    def releases_of_runs(self) -> Mapping[str, Release]:
        """The releases of runs, by run key; those of refreshes are not read."""
        return self.read_releases(key for key, files in self.runs.items() if NUMBER.key(run=key) in files)

    def read_releases(self, run_keys: Iterable[str]) -> Mapping[str, Release]:
        """Return the releases of these runs that have one, by run key."""
        numbered = [NUMBER.key(run=key) for key in run_keys]
        self.fetch(numbered)
        made = [RELEASE.key(number=one.number) for key in numbered if (one := self.read(key, Numbered)) is not None]
        self.fetch(made)
        found = [release for key in made if (release := self.read(key, Release)) is not None]
        return {release.run_key: release for release in found}

    @functools.cached_property
    def releases(self) -> list[Release]:
        """All releases, by number."""
        keys = [key for key in self.store.list("releases") if RELEASE.match(key)]
        self.fetch(keys)
        found = [release for key in keys if (release := self.read(key, Release)) is not None]
        return sorted(found, key=lambda release: release.number)

    def fetch(self, keys: Iterable[str]) -> None:
        """Read objects, many at once, so that `read` need not go to the store for them."""
        wanted = (key for key in keys if key not in self._raw)
        there = self._listed
        if there is not None:
            wanted = (key for key in wanted if key in there or not key.startswith("runs/"))
        self._raw |= read_all(self.store, wanted)

    def read(self, key: str, kind: type[R]) -> R | None:
        """Return the record under a key that was fetched; None where there is none or it can't be read."""
        raw = self._raw.get(key)
        if raw is None:
            return None
        try:
            return kind.model_validate_json(raw)
        except ValidationError as invalid:
            self._problems[key] = f"{self.store.uri}/{key} is not readable: {first_problem(invalid)}"
            return None
