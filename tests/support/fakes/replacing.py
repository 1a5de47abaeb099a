"""Puts stand-ins into modules of the product as they are loaded, in processes that a test starts.

Workers do no arithmetic, and runs have no pages (drawing them takes longer than all else) unless a test looks at them
in a browser.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

HOLDS = "MILLRACE_TEST_HOLDS"  # in the environment of processes whose runs a browser looks at


def _make_runner(config: object, store: Any, stage: object) -> Any:
    from tests.support.fakes import millrace

    return millrace.make_runner(config, store, stage)  # pyright: ignore[reportArgumentType]


def _workers() -> dict[str, object]:
    return {"make_runner": _make_runner}


def _pages() -> dict[str, object]:
    if HOLDS in os.environ:
        return {}
    return {"make_stage_page": lambda *_: None, "write_run_report": lambda *_: None}


STAND_INS: dict[str, Callable[[], dict[str, object]]] = {
    "infra.compute.factory": _workers,
    "flows.orchestration.recorded_invocation": _pages,
}


class _Loader(importlib.abc.Loader):
    """Loads a module, then puts the stand-ins into it."""

    def __init__(self, real: importlib.abc.Loader) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        module.__dict__.update(STAND_INS[module.__name__]())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in STAND_INS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """To be called before any of these modules is loaded."""
    sys.meta_path.insert(0, _Finder())
