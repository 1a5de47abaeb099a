"""Explain errors of disks: full or read-only ones, a temporary folder that somebody deleted, paths no library opens."""

import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tasks.foundation.errors import FailureClass, HostError, StageError, classify

LITTLE_BYTES = 16 * 2**20  # a disk with less free space counts as full
_GIB = 2**30


def message_of(error: BaseException, workspace: str = "") -> str:
    """Return an error's message; for an error of class DISK without a remedy, add the disk and a remedy.

    Args:
        workspace: URI; the disk of a workspace in a directory is checked too.
    """
    if isinstance(error, StageError) or classify(error) is not FailureClass.DISK:
        return str(error)
    said = " ".join(str(error).split())
    found = _found(error, Path(workspace) if workspace and "://" not in workspace else None)
    return f"{said}: {found}. Then run the same command again; finished stages are kept"


def cause_of(error: BaseException, temporary: Path) -> BaseException:
    """Return the error to report: a HostError if somebody deleted the `temporary` folder of the work, else `error`."""
    if not isinstance(error, Exception) or isinstance(error, StageError) or temporary.is_dir():
        return error
    said = " ".join(str(error).split())
    return HostError(
        f"somebody deleted the temporary folder {temporary} during the work ({type(error).__name__}: {said}): keep "
        "programs that clean up away from it, or set TMPDIR to another folder; then run the same command again"
    )


def not_utf8(path: Path) -> str:
    """Return the reason and the way out for a path that Arrow, DuckDB and safetensors can't open, or an empty text."""
    try:
        if os.fsencode(path) == str(path).encode():
            return ""
    except UnicodeEncodeError:  # bytes that are no letters in this locale
        pass
    return (
        f"the libraries that read Parquet files and weights take paths in UTF-8 alone, and in this process's locale "
        f"({sys.getfilesystemencoding()}) {path} is none; set LC_ALL=C.UTF-8, or name a folder in ASCII letters"
    )


def _found(error: BaseException, workspace: Path | None) -> str:
    """Return the disk with its remedy: the disk of the file in the error, else each disk that is full now."""
    temporary = Path(tempfile.gettempdir())
    named = _folder_of(error)
    if named is None:
        full = [folder for folder in (temporary, workspace) if folder is not None and _is_full(folder)]
        if not full:
            return "the disks have space again, so look at what else was written; free some space"
        return "; ".join(_sentence(folder, temporary, workspace) for folder in full)
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EROFS:
        return f"the disk of {named} is mounted for reading only; mount it for writing"
    if number == errno.EDQUOT:
        return f"the quota of this user on the disk of {named} is used up; free some space there, or raise the quota"
    if _is_full(named):
        return _sentence(named, temporary, workspace)
    return f"the disk of {named} has space again, so look at what else was written there; free some space"


def _folder_of(error: BaseException) -> Path | None:
    """Return the folder, which exists, of the file that could not be written; None if the error names none."""
    name = (error.filename2 or error.filename) if isinstance(error, OSError) else None
    if not isinstance(name, str | os.PathLike):  # a number of a handle, or bytes
        return None
    return next(folder for folder in Path(name).absolute().parents if folder.is_dir())


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < LITTLE_BYTES
    except OSError:
        return False


def _sentence(folder: Path, temporary: Path, workspace: Path | None) -> str:
    gib, way_out = shutil.disk_usage(folder).total / _GIB, "free some space"
    what = "the folder"
    if workspace is not None and folder.is_relative_to(workspace):
        folder, what = workspace, "the workspace"
    elif folder.is_relative_to(temporary):
        folder, what = temporary, "the temporary folder"
        way_out += ", or set TMPDIR to a folder on another disk"
    return f"{what} {folder} is on a disk of {gib:.1f} GiB that is full; {way_out}"
