"""A real target whose calls are recorded, and that a test can let fail at any of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from configs.schema.stages import AnyTarget
from tasks.worker import publish
from tasks.worker.export.targets import open_target


class Watched:
    """Passes all calls on to the targets that it opens. `before` and `after` hold what to do around a method."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.before: dict[str, Callable[[], Any]] = {}
        self.after: dict[str, Callable[[], Any]] = {}
        self.answers: Callable[[list[str]], list[str]] = list
        self._target: Any = None

    @classmethod
    def instead_of_targets(cls, monkeypatch: pytest.MonkeyPatch) -> Watched:
        watched = cls()
        monkeypatch.setattr(publish, "open_target", watched.open)
        return watched

    def open(self, settings: AnyTarget) -> Any:
        self._target = open_target(settings)
        return self

    @property
    def where(self) -> str:
        return self._target.where

    def nearest(self, *arguments: Any) -> list[str]:
        return self.answers(self._target.nearest(*arguments))

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.calls.append(name)
            self.before.get(name, lambda: None)()
            value = getattr(self._target, name)(*arguments, **named)
            self.after.get(name, lambda: None)()
            return value

        return call
