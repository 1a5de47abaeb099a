"""Python imports this by itself where PYTHONPATH names its folder: there, stages run on workers without arithmetic.

It reaches the flow runs' processes, which a Prefect worker starts; no file of the product knows of it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType


class _Patched(importlib.abc.Loader):
    """Loads `infra.runner` as ever, and then puts another maker of runners into it."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)

        def make_runner(config: object, store: object, stage: object) -> object:
            from tests.browser.held_runner import HeldRunner

            return HeldRunner(store)  # pyright: ignore[reportArgumentType]

        module.__dict__["make_runner"] = make_runner


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "infra.runner":
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Patched(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
