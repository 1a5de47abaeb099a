"""Python imports this by itself where PYTHONPATH names its folder: file operations of the process fail on request.

Chaos alone does so, for the commands that it starts. `MILLRACE_CHAOS_FOLDER` names the folder whose files falter, below
which `workspace` is the workspace. A symbolic link `faltering` in that folder says how, by its target, for as long as
it is there: `store-errors`, `store-delays` or `disk-full`.
"""

import errno
import os
import sys
import time
from typing import Any

DELAY_SECONDS = 0.05

_FOLDER = os.environ.get("MILLRACE_CHAOS_FOLDER", "")
_WORKSPACE = os.path.join(_FOLDER, "workspace", "")  # noqa: PTH118
_SWITCH = os.path.join(_FOLDER, "faltering")  # noqa: PTH118
_WITH_A_PATH = {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.listdir", "os.scandir"}
_NEW = {"os.mkdir", "os.link"}


def _falter(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: what it raises is raised by the operation."""
    if event not in _WITH_A_PATH or not isinstance(arguments[0], str | os.PathLike):
        return
    path = os.path.abspath(os.fspath(arguments[0]))  # noqa: PTH100
    if not isinstance(path, str) or not path.startswith(_FOLDER + os.sep):
        return
    try:
        how = os.readlink(_SWITCH)  # noqa: PTH115
    except OSError:
        return
    if how == "disk-full":
        created = event == "open" and arguments[2] & os.O_CREAT and not os.path.lexists(path)
        if created or event in _NEW:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    elif path.startswith(_WORKSPACE):
        if how == "store-errors":
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        time.sleep(DELAY_SECONDS)


if _FOLDER:
    sys.addaudithook(_falter)
