"""Reads the records of a workspace for pages and sums: one listing, many reads at once, and no record twice."""

import functools
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from pydantic import ValidationError

from infra.store.base import Store
from infra.store.records import first_problem
from tasks.contracts.runs import Release
from tasks.foundation.records import Record

READERS = 16  # objects that are read at once, which counts where the workspace is a bucket

R = TypeVar("R", bound=Record)

_RELEASE = re.compile(r"releases/\d+\.json")


class Reader:
    """The records of a workspace as they are at the first request. Those that can't be read are left out."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._raw: dict[str, bytes | None] = {}
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> list[str]:
        """One sentence for each record that could not be read so far."""
        return list(self._problems.values())

    @functools.cached_property
    def runs(self) -> Mapping[str, list[str]]:
        """The keys below `runs/`, by run key."""
        found: dict[str, list[str]] = {}
        for key in self.store.list("runs"):
            found.setdefault(key.split("/")[1], []).append(key)
        return found

    @functools.cached_property
    def releases(self) -> list[Release]:
        """All releases, by number."""
        keys = [key for key in self.store.list("releases") if _RELEASE.fullmatch(key)]
        self.fetch(keys)
        found = [release for key in keys if (release := self.read(key, Release)) is not None]
        return sorted(found, key=lambda release: release.number)

    def fetch(self, keys: Iterable[str]) -> None:
        """Read objects, many at once, so that `read` need not go to the store for them."""

        def read(key: str) -> bytes | None:
            try:
                return self.store.read(key)
            except FileNotFoundError:
                return None

        wanted = [key for key in dict.fromkeys(keys) if key not in self._raw]
        with ThreadPoolExecutor(READERS) as readers:
            self._raw.update(zip(wanted, readers.map(read, wanted), strict=True))

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
