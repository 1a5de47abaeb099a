"""Format an error message; for a full disk, add which one is full."""

import shutil
import tempfile
from pathlib import Path

from tasks.foundation.errors import FailureClass, StageError, classify

LITTLE_BYTES = 16 * 2**20  # a disk with less free space counts as full
_GIB = 2**30


def message_of(error: BaseException, workspace: str = "") -> str:
    """Return an error's message; for an error of class DISK without a remedy, add the full disk and a remedy.

    Args:
        workspace: URI; the disk of a workspace in a directory is checked too.
    """
    if isinstance(error, StageError) or classify(error) is not FailureClass.DISK:
        return str(error)
    folders = [Path(tempfile.gettempdir())]
    if workspace and "://" not in workspace:
        folders.append(Path(workspace))
    found = [_sentence(folder, number > 0) for number, folder in enumerate(folders) if _is_full(folder)]
    said = " ".join(str(error).split())
    if not found:
        found = [
            f"the temporary folder {folders[0]} has space again, so look at what else was written; free some space"
        ]
    return f"{said}: {'; '.join(found)}. Then run the same command again; finished stages are kept"


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < LITTLE_BYTES
    except OSError:
        return False


def _sentence(folder: Path, is_workspace: bool) -> str:
    use = shutil.disk_usage(folder)
    what = "the workspace" if is_workspace else "the temporary folder"
    way_out = "free some space" if is_workspace else "free some space, or set TMPDIR to a folder on another disk"
    return f"{what} {folder} is on a disk of {use.total / _GIB:.1f} GiB that is full; {way_out}"
