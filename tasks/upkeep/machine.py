"""Checks of this machine: its Python, the installed versions, the free disk space."""

import platform
import re
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from tasks.foundation.code_version import code_version
from tasks.upkeep.check import CheckResult

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
