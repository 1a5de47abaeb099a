"""What a container has for itself: a home and a folder for temporary files, gone with it; and its user.

The code and the Python are the checkout's; another user can read them and not write there, as in the image.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple


class User(NamedTuple):
    """Whom a definition's `user` names, and a Python that this user may run."""

    uid: int
    gid: int
    python: str
    packages: str  # for PYTHONPATH, where it is not the Python of the tests


class Folder(NamedTuple):
    """The two folders of one container."""

    path: Path
    user: User | None

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.path / "home"), "TMPDIR": str(self.path / "tmp")}

    def make(self) -> None:
        for path in (self.path, self.path / "home", self.path / "tmp"):
            path.mkdir(mode=0o755)
            if self.user:
                os.chown(path, self.user.uid, self.user.gid)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def user_named(name: str | None) -> User | None:
    """The user of `uid:gid`; None: the emulator's own, because none is named, or it can't become another.

    Only root becomes another user, and only where that one may run a Python of the same version.
    """
    python = next((one for one in (sys.executable, _of_the_system()) if _for_everybody(Path(one))), None)
    if not name or os.geteuid() != 0 or python is None:
        return None
    uid, _, gid = name.partition(":")
    packages = "" if python == sys.executable else sysconfig.get_paths()["purelib"]
    return User(int(uid), int(gid or uid), python, packages)


def _of_the_system() -> str:
    return f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"


def _for_everybody(program: Path) -> bool:
    """Whether any user may run it."""
    found = [program, program.resolve()]
    folders = [folder for one in found for folder in one.parents]
    return program.exists() and all(path.stat().st_mode & 0o001 for path in (*found, *folders))
