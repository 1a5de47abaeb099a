"""A process that has loaded what commands load, and forks one for each request of `tests.support.processes.forked`.

`python -m tests.support.processes.command_server FD`: FD is the socket of the tests, and its end is the end of this
process. A forked command is as one in a new interpreter: Prefect reads its settings from the environment at the moment
when the command imports it, and so do this project's modules that use Prefect.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import logging
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, NoReturn

from tasks.worker.process.fork_server import serve
from tests.support.fakes.replacing import STAND_INS

OURS = ("configs", "flows", "infra", "tasks", "tests")
LOADED = ("flows.pipeline", "flows.backfill", "flows.refresh", "flows.cli.running", "flows.cli.backfilling")


def main(channel: socket.socket) -> NoReturn:
    """Load everything, then fork a command for each request until the tests end."""
    gc.disable()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in handlers:  # sent to the whole group; the tests decide when their commands end
        signal.signal(number, signal.SIG_IGN)
    _forget(_users_of_prefect(_import_and_note(LOADED)))
    sys.meta_path.insert(0, _Prefect(_forget({name for name in sys.modules if _top(name) == "prefect"})))
    _forget_loggers_of_prefect()
    gc.freeze()  # a collection in a forked process would copy all pages
    gc.enable()
    serve(channel, _be, handlers)


def _be(words: Sequence[str], environment: Mapping[str, str], folder: str, output: str, errors: str) -> NoReturn:
    """Be `millrace ARGUMENTS` or `python -m MODULE ARGUMENTS` in a folder, with output and errors in two files."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    tempfile.tempdir = None
    for number, path in ((1, output), (2, errors)):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator has a new seed after each fork
    _end(_code_of(words))


def _code_of(words: Sequence[str]) -> int:
    try:
        if words[0] == "-m":
            sys.argv = list(words[1:])
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(words)
            importlib.import_module("flows.cli").main()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """End as the interpreter does: threads, then functions that were registered, then the streams."""
    threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


class _Prefect(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Brings the loaded modules of Prefect back at the first import of one, and lets them read the environment."""

    def __init__(self, modules: Mapping[str, ModuleType]) -> None:
        self._modules = modules

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "prefect":  # Python imports it before any module in it
            return None
        sys.meta_path.remove(self)
        return importlib.machinery.ModuleSpec(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        self._spec = self._modules["prefect"].__spec__
        return self._modules["prefect"]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        sys.modules.update(self._modules)
        from prefect.context import refresh_global_settings_context
        from prefect.logging import configuration

        refresh_global_settings_context()
        configuration.PROCESS_LOGGING_CONFIG.clear()  # else only levels are set
        configuration.setup_logging()


def _import_and_note(names: Sequence[str]) -> dict[str, set[str]]:
    """Import modules; return the names that each module of the project imported."""
    imported = defaultdict[str, set[str]](set)
    really = builtins.__import__

    def noting(name: str, names: Any = None, local: Any = None, fromlist: Any = (), level: int = 0) -> ModuleType:
        found = really(name, names, local, fromlist, level)
        imported[(names or {}).get("__name__", "")] |= {name, *(f"{name}.{each}" for each in fromlist or ())}
        return found

    builtins.__import__ = noting
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        builtins.__import__ = really
    return {name: imported[name] for name in sys.modules if _top(name) in OURS}


def _users_of_prefect(imported: Mapping[str, set[str]]) -> set[str]:
    """Return the project's modules that import Prefect, a module that tests replace, or another one of these; and all
    of `flows` and `tests`, which register commands and stand-ins.
    """
    found = {name for name in imported if _top(name) in ("flows", "tests") or name in STAND_INS}
    found |= {name for name, names in imported.items() if "prefect" in map(_top, names)}
    while more := {name for name, names in imported.items() if name not in found and names & found}:
        found |= more
    return found


def _top(name: str) -> str:
    return name.partition(".")[0]


def _forget(names: set[str]) -> dict[str, ModuleType]:
    """Let modules be imported again; return them."""
    taken = {name: sys.modules.pop(name) for name in names}
    for name, module in taken.items():
        package, _, last = name.rpartition(".")
        if package in sys.modules and getattr(sys.modules[package], last, None) is module:
            delattr(sys.modules[package], last)
    return taken


def _forget_loggers_of_prefect() -> None:
    """Let no logger write to Prefect's handlers before Prefect is imported again."""
    known = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for logger in (logging.getLogger(), *known):
        own = [each for each in logger.handlers if type(each).__module__.startswith("prefect.")]
        for handler in own:
            logger.removeHandler(handler)
        if own or logger.name.startswith("prefect"):
            logger.setLevel(logging.NOTSET if logger.name != "root" else logging.WARNING)
            logger.propagate = True


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
