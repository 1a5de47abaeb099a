"""Python imports this by itself where PYTHONPATH names its folder: what it changes in a workspace is noted.

`MILLRACE_CHAOS_WORKSPACE` is the folder that a reader must leave alone, `MILLRACE_CHAOS_CHANGES` the file that names
each operation on it that would change it.
"""

import os
import sys
from typing import Any

_FOLDER = os.environ.get("MILLRACE_CHAOS_WORKSPACE", "")
_CHANGES = os.environ.get("MILLRACE_CHAOS_CHANGES", "")
_CHANGING = {"os.mkdir", "os.rename", "os.link", "os.remove", "os.rmdir", "os.symlink", "os.truncate", "os.utime"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _write_down(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _CHANGING and not (event == "open" and (arguments[2] or 0) & _WRITING):
        return
    for path in arguments[:2]:
        if isinstance(path, str | os.PathLike) and os.path.abspath(str(os.fspath(path))).startswith(_FOLDER + os.sep):  # noqa: PTH100
            line = f"{event} {os.fspath(path)}: {' '.join(sys.argv)}\n"
            file = os.open(_CHANGES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(file, line.encode())
            os.close(file)


if _FOLDER:
    sys.addaudithook(_write_down)
