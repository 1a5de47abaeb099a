"""Results that a simulation remembers: the same bytes, keys and settings are read and made ten thousand times."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel

import flows.pipeline
import flows.refresh
from configs.load import load_config
from configs.schema.config import Config
from infra.store import s3_store
from tasks.contracts.kinds import Kind
from tasks.foundation.records import Record

MOST_KNOWN = 20_000  # of each kind

_VALIDATE: Any = vars(BaseModel)["model_validate_json"].__func__
_KEY, _WITHIN, _MATCH = Kind.key, Kind.within, Kind.match


class _Known(dict[Any, Any]):
    """Results by their arguments."""

    def keep(self, arguments: Any, result: Any) -> Any:
        if len(self) >= MOST_KNOWN:
            self.clear()
        self[arguments] = result
        return result


_records, _keys, _folders, _matches = _Known(), _Known(), _Known(), _Known()
_unknown = object()


def _read_once(kind: type[Record], data: bytes) -> Record:
    """Return the record in some bytes; records never change, and reading the same ones takes most of the time."""
    found = _records.get((kind, data))
    return found if found is not None else _records.keep((kind, data), _VALIDATE(kind, data))


def _key(self: Kind, **fields: str | int) -> str:
    known = self.pattern, *fields.items()
    return _keys.get(known) or _keys.keep(known, _KEY(self, **fields))


def _within(self: Kind, **fields: str | int) -> str:
    known = self.pattern, *fields.items()
    return _folders.get(known) or _folders.keep(known, _WITHIN(self, **fields))


def _match(self: Kind, key: str) -> dict[str, Any] | None:
    known = self.pattern, key
    found = _matches.get(known, _unknown)
    return found if found is not _unknown else _matches.keep(known, _MATCH(self, key))


@functools.cache
def _settings(config_file: str, overrides: tuple[str, ...]) -> Config:
    return load_config(config_file, overrides)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Read and make each of these once inside the block."""
    with contextlib.ExitStack() as held:
        held.enter_context(patch.object(Record, "model_validate_json", classmethod(_read_once)))
        for name, stand_in in (("key", _key), ("within", _within), ("match", _match)):
            held.enter_context(patch.object(Kind, name, stand_in))
        paths = functools.lru_cache(MOST_KNOWN)(s3_store.PurePosixPath)
        held.enter_context(patch.object(s3_store, "PurePosixPath", paths))
        for module in (flows.pipeline, flows.refresh):
            load = lambda file, overrides: _settings(file or "", tuple(overrides))  # noqa: E731
            held.enter_context(patch.object(module, "load_config", load))
        yield
