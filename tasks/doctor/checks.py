"""Checks of this machine (Python, installed versions, free disk space) and of the workspace, which run in parallel.

An error inside a check becomes a finding, and a check that hangs is abandoned after a time limit. A workspace is
checked for readable records, and for the guarantees of its store with a scratch key.
"""

import contextlib
import contextvars
import platform
import re
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version
from pydantic import Field

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.factory import find_broken_guarantee, open_store, require_fit, succeeds
from tasks.data import span_versions
from tasks.foundation.errors import FailureClass, StageError, one_line
from tasks.foundation.nouns import plural
from tasks.foundation.process import code_version
from tasks.foundation.records import Record
from tasks.runs import host_records, releases

CHECK_SECONDS = 20.0  # a bucket or mount that does not answer must not hold up the other checks

Outcome = Literal["ok", "warn", "FAIL"]


class CheckResult(NamedTuple):
    """The result of a check, and the repair; `mend` is empty if none is needed."""

    outcome: Outcome
    found: str
    mend: str = ""


class Check(NamedTuple):
    """`run` is called once, in its own thread."""

    name: str
    run: Callable[[], CheckResult]


class Finding(Record):
    """One line of `millrace doctor`."""

    name: str = Field(description="name of the check")
    outcome: Outcome = Field(description="ok, warn or FAIL")
    found: str
    mend: str = Field(description="repair; empty: not needed, or in `found`")
    failure: FailureClass | None = Field(default=None, description="failure class of a deep check; null: it has none")


def run_checks(checks: Sequence[Check], seconds: float = CHECK_SECONDS) -> list[Finding]:
    """Run all checks in parallel; return their findings in order."""
    results: dict[int, CheckResult] = {}

    def run(number: int, check: Check) -> None:
        results[number] = _isolated(check.run)

    # Daemon threads: a check that hangs does not keep the process alive.
    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(run, number, check), daemon=True)
        for number, check in enumerate(checks)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    silent = CheckResult("FAIL", f"no answer within {seconds:.0f} s", "check the network, the mount and the address")
    return [Finding(name=check.name, **results.get(number, silent)._asdict()) for number, check in enumerate(checks)]


def run_check(check: Check) -> Finding:
    """Run one check, and wait for it."""
    return run_checks([check])[0]


def _isolated(run: Callable[[], CheckResult]) -> CheckResult:
    try:
        return run()
    except StageError as error:  # its message has the repair
        return CheckResult("FAIL", one_line(error))
    except Exception as error:
        return CheckResult(
            "FAIL", f"{type(error).__name__}: {one_line(error)}", "repair what this names, and run again"
        )


CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
GIB = 2.0**30
_AMPLE = 5  # times the required space; less is a warning
_PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>\S+) +# (?P<reason>.+)")
# Other versions of these packages break the server, sometimes silently. Other versions of the rest are untested.
_BREAKS = ("fastapi", "prefect", "sqlalchemy")


class Pin(NamedTuple):
    name: str
    version: str
    reason: str


def python() -> CheckResult:
    """Check the interpreter against the package's Requires-Python."""
    here = platform.python_version()
    try:
        wanted = SpecifierSet(metadata.metadata("millrace")["Requires-Python"] or "")
    except (metadata.PackageNotFoundError, InvalidSpecifier):
        return CheckResult(
            "warn", f"{here}; the package millrace is not installed", "pip install -e . -c constraints.txt"
        )
    if not wanted.contains(here, prereleases=True):
        return CheckResult(
            "FAIL", f"{here}, but millrace needs {wanted}", "create the environment again with such a Python"
        )
    return CheckResult("ok", f"{here}; it runs millrace {code_version()}")


def pins(constraints: Path = CONSTRAINTS) -> CheckResult:
    """Check the installed versions against the pins of constraints.txt that have a reason."""
    if not constraints.is_file():
        return CheckResult(
            "warn",
            f"{constraints} does not exist, so the installed versions were not compared",
            "install from a checkout, with its constraints.txt",
        )
    chosen = chosen_pins(constraints.read_text(encoding="utf-8"))
    others = [(pin, found) for pin in chosen if (found := _installed(pin.name)) is not None and not _same(pin, found)]
    if not others:
        return CheckResult("ok", f"all installed versions match the {len(chosen)} pins of {constraints}")
    broken = any(_normal(pin.name) in _BREAKS for pin, _ in others)
    differences = "; ".join(f"{pin.name} is {found}, pinned is {pin.version} ({pin.reason})" for pin, found in others)
    install = " ".join(f"{pin.name}=={pin.version}" for pin, _ in others)
    return CheckResult("FAIL" if broken else "warn", differences, f"pip install {install} -c {constraints}")


def chosen_pins(text: str) -> list[Pin]:
    """Return the pins of a constraints file that have a reason."""
    return [Pin(*found.groups()) for line in text.splitlines() if (found := _PIN.fullmatch(line.strip()))]


def disk(path: Path, least_gib: float) -> CheckResult:
    """Check the free space at `path`, which may not exist yet."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    usage = shutil.disk_usage(existing)
    free = usage.free / GIB
    found = f"{free:.1f} of {usage.total / GIB:.1f} GiB free at {path}"
    if free < least_gib:
        return CheckResult("FAIL", found, f"at least {least_gib:g} GiB are needed; see the runbook, Disk is full")
    if free < _AMPLE * least_gib:
        return CheckResult("warn", found, "clean up soon; see the runbook, Disk is full")
    return CheckResult("ok", found)


def scratch() -> Path:
    """Return the folder of temporary files: $TMPDIR, or the system's default."""
    return Path(tempfile.gettempdir())


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _same(pin: Pin, found: str) -> bool:
    return Version(found).public == Version(pin.version).public  # 2.9.1+cpu is 2.9.1


def _normal(name: str) -> str:
    return re.sub(r"[._-]+", "-", name).lower()


SCRATCH = "doctor"
_INGEST = "correct --workspace, or start with: millrace look FILE"


def opened(uri: str, found: list[Store], new: bool = False) -> CheckResult:
    """Open the store and append it to `found`. A missing folder fails, or is created if `new`.

    Raises the errors of `open_store`.
    """
    store = open_store(uri)
    if new and isinstance(store, DirectoryStore):
        store.root.mkdir(parents=True, exist_ok=True)
    if isinstance(store, DirectoryStore) and not store.root.is_dir():
        return CheckResult("FAIL", f"{store.uri} does not exist", _INGEST)
    found.append(store)
    return CheckResult("ok", store.uri)


def content(store: Store) -> CheckResult:
    """Check that spans and the current release are readable."""
    spans = span_versions.list_spans(store)
    if not spans:
        return CheckResult("warn", f"{store.uri} has no span yet", _INGEST)
    found = f"{store.uri}: {plural(len(spans), 'span')}, the newest {spans[-1].name} v{spans[-1].version}"
    current = releases.current(store)
    serves = f"release {current.number} of {current.span.name} serves" if current else "nothing is released yet"
    return CheckResult("ok", f"{found}; {serves}")


def guarantees(store: Store) -> CheckResult:
    """Check write, read, compare-and-swap, lock and delete. Everything written is deleted afterwards."""
    require_fit(store)
    name, started_at = uuid.uuid4().hex, time.monotonic()
    folder = f"{SCRATCH}/{name}"
    try:
        broken = _broken(store, f"{folder}/probe")
    finally:
        with contextlib.suppress(Exception):  # the first error is the one to report
            _remove(store, folder, name)
    if broken:
        return CheckResult(
            "FAIL",
            f"{store.uri}: {broken}",
            "use a file system with atomic renames, or an S3 server with conditional writes",
        )
    if left := store.list(folder):
        return CheckResult(
            "FAIL", f"{store.uri}/{left[0]} still exists after its deletion", "check the permission to delete"
        )
    return CheckResult(
        "ok", f"written, read, swapped, locked and deleted in {1000 * (time.monotonic() - started_at):.0f} ms"
    )


def excluded(store: Store) -> CheckResult:
    """Check for excluded hosts, which get no work for a while."""
    now = time.time()
    out = [record.host for record in host_records.known_hosts(store) if record.live(now).exclusion]
    if out:
        return CheckResult(
            "warn", f"excluded: {', '.join(out)}", "for the reason: millrace hosts; see the runbook, A host is bad"
        )
    return CheckResult("ok", "no host is excluded")


def _broken(store: Store, key: str) -> str:
    """Return the guarantee that the store breaks; empty if it keeps all."""
    if broken := find_broken_guarantee(store, key):
        return broken
    with store.lock(key):
        return "a lock was given twice at once" if succeeds(lambda: _lock(store, key)) else ""


def _lock(store: Store, key: str) -> None:
    with store.lock(key):
        pass


def _remove(store: Store, folder: str, name: str) -> None:
    store.delete(folder)
    for key in store.list(".locks"):
        if name in key:
            store.delete(key)
    if isinstance(store, DirectoryStore):
        with contextlib.suppress(OSError):  # another doctor's scratch key is below it
            store.path(SCRATCH).rmdir()
