"""This machine: its Python, the installed versions, the room on its disks."""

from __future__ import annotations

import platform
import re
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from infra.checkup.finding import Seen

CONSTRAINTS = Path(__file__).resolve().parents[2] / "constraints.txt"
GIB = 2.0**30
_AMPLE = 5  # times what is needed at the least: below that it is time to clean up
_PIN = re.compile(r"(?P<name>[\w.-]+)==(?P<version>\S+) +# (?P<reason>.+)")
# With other versions of these the server is broken, at times silently; of all others, work that was not tried.
_BREAKS = ("fastapi", "prefect", "sqlalchemy")


class Pin(NamedTuple):
    name: str
    version: str
    reason: str


def python() -> Seen:
    """The interpreter against what the package asks for."""
    here = platform.python_version()
    try:
        wanted = SpecifierSet(metadata.metadata("millrace")["Requires-Python"] or "")
    except (metadata.PackageNotFoundError, InvalidSpecifier):
        return Seen("warn", f"{here}; millrace itself is not installed here", "pip install -e . -c constraints.txt")
    if not wanted.contains(here, prereleases=True):
        return Seen("FAIL", f"{here}, and millrace needs {wanted}", "make the environment anew with such a Python")
    return Seen("ok", here)


def pins(constraints: Path = CONSTRAINTS) -> Seen:
    """The versions that somebody chose, each with a reason, against those that are installed."""
    if not constraints.is_file():
        return Seen(
            "warn",
            f"there is no {constraints}, so the installed versions were not compared",
            "install from a checkout, with its constraints.txt",
        )
    chosen = chosen_pins(constraints.read_text())
    others = [(pin, found) for pin in chosen if (found := _installed(pin.name)) is not None and not _same(pin, found)]
    if not others:
        return Seen("ok", f"the {len(chosen)} chosen versions of {constraints}, as far as they are installed")
    broken = any(_normal(pin.name) in _BREAKS for pin, _ in others)
    told = "; ".join(f"{pin.name} is {found}, chosen is {pin.version} ({pin.reason})" for pin, found in others)
    install = " ".join(f"{pin.name}=={pin.version}" for pin, _ in others)
    return Seen("FAIL" if broken else "warn", told, f"pip install {install} -c {constraints}")


def chosen_pins(text: str) -> list[Pin]:
    """The first block of a constraints file: pins that have a reason."""
    return [Pin(*found.groups()) for line in text.splitlines() if (found := _PIN.fullmatch(line.strip()))]


def disk(path: Path, least_gib: float) -> Seen:
    """Room where `path` lies, or will."""
    there = next(one for one in (path, *path.parents) if one.exists())
    usage = shutil.disk_usage(there)
    free = usage.free / GIB
    told = f"{free:.1f} of {usage.total / GIB:.1f} GiB free at {path}"
    if free < least_gib:
        return Seen("FAIL", told, f"at least {least_gib:g} GiB are needed; see the runbook, Disk is full")
    if free < _AMPLE * least_gib:
        return Seen("warn", told, "clean up soon; see the runbook, Disk is full")
    return Seen("ok", told)


def scratch() -> Path:
    """Where temporary files go: $TMPDIR, or what the system has in its place."""
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
