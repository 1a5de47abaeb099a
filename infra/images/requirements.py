"""The packages of an image: writes requirements.txt from pyproject.toml, and pins.txt from constraints.txt.

A base image with its own build of torch keeps it and its dependencies: their versions replace our pins.
Standard library only, since it runs before anything is installed.
"""

import argparse
import re
import tomllib
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path


def requirements(pyproject: str, extras: Sequence[str]) -> list[str]:
    """Return the dependencies of the project and of some extras. Raises KeyError for an unknown extra."""
    project = tomllib.loads(pyproject)["project"]
    return [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]


def pins(constraints: str, own: Sequence[str]) -> list[str]:
    """Return the constraints; the packages `own` and their dependencies keep the versions installed here.

    Raises:
        PackageNotFoundError: one of `own` is not installed.
    """
    kept = _with_needs(own)
    lines = (line.partition("#")[0].strip() for line in constraints.splitlines())
    ours = [line for line in lines if line and _canonical(line.partition("==")[0]) not in kept]
    return [*ours, *(f"{name}=={version}" for name, version in kept.items())]


def _with_needs(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of installed packages and of their installed dependencies, by name."""
    found = {_canonical(name): metadata.version(name) for name in names}
    waiting = list(found)
    while waiting:
        for needed in metadata.requires(waiting.pop()) or ():
            name = _canonical(re.split(r"[^A-Za-z0-9._-]", needed, maxsplit=1)[0])
            if "extra ==" in needed or name in found:
                continue
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:
                continue  # needed only on another system or by another Python
            waiting.append(name)
    return found


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.strip()).lower()


def main() -> None:
    """Write both files into the working directory, which holds pyproject.toml and constraints.txt."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml, besides the dependencies")
    parser.add_argument("--own", nargs="*", default=(), metavar="PACKAGE", help="packages of the base image that stay")
    arguments = parser.parse_args()
    wanted = requirements(Path("pyproject.toml").read_text(encoding="utf-8"), arguments.extras)
    pinned = pins(Path("constraints.txt").read_text(encoding="utf-8"), arguments.own)
    Path("requirements.txt").write_text("\n".join(wanted) + "\n", encoding="utf-8")
    Path("pins.txt").write_text("\n".join(pinned) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
