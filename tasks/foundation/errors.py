"""Failure classes and the errors that carry them; errors of disks explained.

One table, POLICIES, has for every class the exit code, the rules for retries and later restarts, the delay, and the
text for the user. Nothing else in the project decides to retry or to start again.

    StageError
      CapacityError  HostError  HangError  OutOfMemoryError  CompileError
      DataError  ConfigError  StoreError  CodeError  CancelledError  ServerError
        DiskError  SupersededError: StoreErrors that no retry fixes

Disks may be full or read-only, a temporary folder deleted by somebody, a path in letters that no library opens.
"""

import enum
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

RUNBOOK = "docs/runbook.md"  # has the remedy for each class


class FailureClass(enum.StrEnum):
    """The cause of an attempt's end without a result."""

    CAPACITY = "CAPACITY"
    HOST = "HOST"
    HANG = "HANG"
    OOM = "OOM"
    COMPILE = "COMPILE"
    DATA = "DATA"
    CONFIG = "CONFIG"
    STORE = "STORE"
    DISK = "DISK"
    SUPERSEDED = "SUPERSEDED"
    SERVER = "SERVER"
    CODE = "CODE"
    CANCELLED = "CANCELLED"


class Policy(NamedTuple):
    """The consequences of one failure class for the process, the retry and the reader."""

    exit_code: int
    transient: bool  # a retry within the run may help
    passes: bool  # goes away without a person, so the watch starts the run again later
    delay_seconds: float
    meaning: str

    @property
    def loses_work(self) -> bool:
        """True if a retry repeats work since the last checkpoint; without a machine nothing had begun."""
        return self.transient and self.exit_code != _CAPACITY


_CAPACITY = 69

POLICIES: dict[FailureClass, Policy] = {
    FailureClass.CAPACITY: Policy(_CAPACITY, True, True, 60.0, "no machine was available in time"),
    FailureClass.HOST: Policy(70, True, True, 10.0, "the machine or a worker process was lost"),
    FailureClass.HANG: Policy(71, True, True, 10.0, "the workers stopped making progress"),
    FailureClass.OOM: Policy(72, False, False, 0.0, "memory ran out; lower train.batch_rows or infer.batch_sequences"),
    FailureClass.COMPILE: Policy(73, False, False, 0.0, "a graph did not compile"),
    FailureClass.DATA: Policy(65, False, False, 0.0, "the input is not fit to train on"),
    FailureClass.CONFIG: Policy(78, False, False, 0.0, "the configuration or command is wrong"),
    FailureClass.STORE: Policy(74, True, True, 5.0, "the workspace could not be read or written"),
    FailureClass.DISK: Policy(77, False, True, 0.0, "a disk of this machine is full, or nothing may be written to it"),
    FailureClass.SUPERSEDED: Policy(67, False, True, 0.0, "another process took over this work, and goes on with it"),
    FailureClass.SERVER: Policy(68, False, True, 0.0, "the Prefect server did not answer; what was finished is kept"),
    FailureClass.CODE: Policy(75, False, False, 0.0, "a bug, ours or a library's"),
    FailureClass.CANCELLED: Policy(76, False, False, 0.0, "someone asked for this to stop"),
}


class StageError(Exception):
    """A failure with a class. Its message tells the person on call the problem, the place and the remedy."""

    failure = FailureClass.CODE

    @property
    def policy(self) -> Policy:
        return POLICIES[self.failure]


class CapacityError(StageError):
    failure = FailureClass.CAPACITY


class HostError(StageError):
    failure = FailureClass.HOST


class HangError(StageError):
    failure = FailureClass.HANG


class OutOfMemoryError(StageError):
    failure = FailureClass.OOM


class CompileError(StageError):
    failure = FailureClass.COMPILE


class DataError(StageError):
    failure = FailureClass.DATA


class ConfigError(StageError):
    failure = FailureClass.CONFIG


class StoreError(StageError):
    failure = FailureClass.STORE


class DiskError(StoreError):
    failure = FailureClass.DISK


class SupersededError(StoreError):
    failure = FailureClass.SUPERSEDED


class ServerError(StageError):
    failure = FailureClass.SERVER


class CodeError(StageError):
    failure = FailureClass.CODE


class CancelledError(StageError):
    failure = FailureClass.CANCELLED


ERRORS: dict[FailureClass, type[StageError]] = {
    error.failure: error
    for error in (
        CapacityError,
        HostError,
        HangError,
        OutOfMemoryError,
        CompileError,
        DataError,
        ConfigError,
        StoreError,
        DiskError,
        SupersededError,
        ServerError,
        CodeError,
        CancelledError,
    )
}

_NO_MEMORY = ("out of memory", "can't allocate memory")
_NO_SPACE = (  # safetensors' errors are not OSErrors
    "no space left on device",
    "disk quota exceeded",
    "read-only file system",
    "no usable temporary directory",
)
# A disk, or the server of a network's file system, that may answer again. Libraries give some of them as texts alone.
_UNREACHABLE = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOLCK, errno.EHOSTDOWN, errno.ENOTCONN)
_UNREACHABLE_SIGNS = ("stale file handle", "no locks available", "host is down", "endpoint is not connected")
# Messages of gloo and NCCL after the loss of another worker of the same stage.
_PEER_LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "remote process exit",
    "address already in use",  # or another process took its port before it was opened
)
_TIMED_OUT = ("timed out",)  # gloo's and the rendezvous's timeouts are RuntimeErrors

_BY_EXIT_CODE = {policy.exit_code: failure for failure, policy in POLICIES.items()}


def classify(error: BaseException) -> FailureClass:
    """Return the class of any exception; an unknown exception is CODE, so that it never uses up a retry."""
    if isinstance(error, StageError):
        return error.failure
    if not isinstance(error, Exception):  # an interruption: Ctrl-C, a signal, Prefect ending the run
        return FailureClass.CANCELLED
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY):
        return FailureClass.OOM
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return FailureClass.DISK
    if any(sign in text for sign in _NO_SPACE):
        return FailureClass.DISK
    if isinstance(error, PermissionError) or (isinstance(error, OSError) and error.errno in _UNREACHABLE):
        return FailureClass.STORE
    if any(sign in text for sign in _UNREACHABLE_SIGNS):
        return FailureClass.STORE
    if any(sign in text for sign in _PEER_LOST):
        return FailureClass.HOST
    if isinstance(error, TimeoutError | subprocess.TimeoutExpired) or any(sign in text for sign in _TIMED_OUT):
        return FailureClass.HANG
    return FailureClass.CODE


def from_exit_code(code: int) -> FailureClass:
    """Return the class of a worker's exit status; HOST if a signal killed it (negative, or 128 + n)."""
    if code in _BY_EXIT_CODE:
        return _BY_EXIT_CODE[code]
    if code < 0 or code > 128:
        return FailureClass.HOST
    return FailureClass.CODE


def names_a_class(code: int) -> bool:
    """Return True if an exit status is the code of a failure class, so our own process chose it."""
    return code in _BY_EXIT_CODE


def one_line(error: Exception) -> str:
    """Return the error's message without line breaks."""
    return " ".join(str(error).split())


LITTLE_BYTES = 16 * 2**20  # a disk with less free space counts as full
_GIB = 2**30


def message_of(error: BaseException, workspace: str = "") -> str:
    """Return an error's message; for an error of class DISK, or a missing permission, without a remedy, add a remedy.

    Args:
        workspace: URI; the disk of a workspace in a directory is checked too.
    """
    if isinstance(error, PermissionError) and error.filename is not None:
        return f"{error.filename}: this user may not read or write it; change its permissions, or use another folder"
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
