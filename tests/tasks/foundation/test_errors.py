"""Classes of failures, their exit codes and texts; errors of disks in plain words."""

import errno
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

import tasks.foundation.errors
from infra.store.base import Conflict
from tasks.foundation.errors import (
    ERRORS,
    POLICIES,
    DataError,
    FailureClass,
    HostError,
    StageError,
    cause_of,
    classify,
    from_exit_code,
    message_of,
)

# --- the table --------------------------------------------------------------------------------------------------


def test_every_class_has_a_policy_and_an_error():
    assert set(POLICIES) == set(FailureClass)
    assert set(ERRORS) == set(FailureClass)
    for failure, error in ERRORS.items():
        assert (error.failure, error("x").policy) == (failure, POLICIES[failure])


def test_the_docstring_draws_the_whole_tree():
    assert all(error.__name__ in (tasks.foundation.errors.__doc__ or "") for error in [StageError, *ERRORS.values()])


def test_exit_codes_are_distinct_and_neither_success_nor_pythons_nor_the_shells():
    codes = [policy.exit_code for policy in POLICIES.values()]
    assert len(set(codes)) == len(codes)
    assert all(2 < code < 126 for code in codes)


def test_the_transient_classes_are_those_that_a_retry_can_help():
    transient = {failure.value for failure, policy in POLICIES.items() if policy.transient}
    assert transient == {"CAPACITY", "HOST", "HANG", "STORE"}


def test_a_transient_class_waits_before_the_retry_and_no_other_does():
    assert all((policy.delay_seconds > 0) == policy.transient for policy in POLICIES.values())


def test_every_class_has_its_own_meaning():
    meanings = {policy.meaning for policy in POLICIES.values()}
    assert len(meanings) == len(POLICIES)
    assert all(meanings)


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (DataError("row 7"), FailureClass.DATA),
        (Conflict("CURRENT"), FailureClass.STORE),
        (DataError("out of memory is what this text says"), FailureClass.DATA),
        (KeyboardInterrupt(), FailureClass.CANCELLED),
        (SystemExit(1), FailureClass.CANCELLED),
        (GeneratorExit(), FailureClass.CANCELLED),
        (MemoryError(), FailureClass.OOM),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), FailureClass.OOM),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), FailureClass.OOM),
        (OSError(errno.ENOSPC, "No space left on device"), FailureClass.DISK),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), FailureClass.DISK),
        (OSError(errno.EROFS, "Read-only file system"), FailureClass.DISK),
        (OSError(errno.EIO, "Input/output error"), FailureClass.STORE),
        (PermissionError(errno.EACCES, "Permission denied", "/tmp/scratch"), FailureClass.STORE),
        (PermissionError(errno.EPERM, "Operation not permitted", "/w/immutable"), FailureClass.STORE),
        (OSError(errno.ESTALE, "Stale file handle"), FailureClass.STORE),
        (OSError(errno.ETIMEDOUT, "Connection timed out", "/w/releases/CURRENT"), FailureClass.STORE),
        (OSError(errno.ENOLCK, "No locks available"), FailureClass.STORE),
        (OSError(errno.EHOSTDOWN, "Host is down"), FailureClass.STORE),
        (OSError(errno.ENOTCONN, "Transport endpoint is not connected"), FailureClass.STORE),
        (RuntimeError('Could not read from file "/w/items.parquet": Stale file handle'), FailureClass.STORE),
        (RuntimeError(GLOO + "pair.cc:537] Connection closed by peer [127.0.0.1]:4711"), FailureClass.HOST),
        (RuntimeError(GLOO + "pair.cc:534] Read error [127.0.0.1]:1: Connection reset by peer"), FailureClass.HOST),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), FailureClass.HOST),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), FailureClass.HOST),
        (RuntimeError("NCCL error: network error or a remote process exited prematurely"), FailureClass.HOST),
        (RuntimeError("The server socket has failed to listen: address already in use"), FailureClass.HOST),
        (RuntimeError(GLOO + "unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation"), FailureClass.HANG),
        (RuntimeError("Timed out after 601 seconds waiting for clients. 1/2 clients joined."), FailureClass.HANG),
        (TimeoutError(), FailureClass.HANG),
        (subprocess.TimeoutExpired("x", 1), FailureClass.HANG),
        (FileNotFoundError(errno.ENOENT, "No such file"), FailureClass.CODE),
        (ValueError("unknown"), FailureClass.CODE),
    ],
    ids=lambda value: None if isinstance(value, FailureClass) else f"{type(value).__name__}-{str(value)[-30:]}",
)
def test_classify(error, expected):
    assert classify(error) is expected


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_really_full_disk_is_disk():
    with pytest.raises(OSError, match="No space") as caught:
        Path("/dev/full").write_bytes(b"x")
    assert classify(caught.value) is FailureClass.DISK


@pytest.mark.parametrize("failure", FailureClass)
def test_an_exit_code_gives_its_class(failure):
    assert from_exit_code(POLICIES[failure].exit_code) is failure


@pytest.mark.parametrize("code", [-9, -15, -6, 137, 143])
def test_a_worker_killed_by_a_signal_is_host(code):
    assert from_exit_code(code) is FailureClass.HOST


@pytest.mark.parametrize("code", [1, 2, 3, 127])
def test_any_other_exit_code_is_code(code):
    assert from_exit_code(code) is FailureClass.CODE


class Usage(NamedTuple):
    total: int
    used: int
    free: int


NO_SPACE = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("full", "error", "said", "unsaid"),
    [
        (
            "/tmp",
            NO_SPACE,
            r"temporary folder /tmp is on a disk of 1\.0 GiB that is full; .*set TMPDIR",
            "workspace",
        ),
        (
            "/work",
            NO_SPACE,
            r"workspace /work is on a disk of 1\.0 GiB that is full; free some space\. T",
            "TMPDIR",
        ),
        ("", NO_SPACE, r"look at what else was written", "/tmp|that is full"),
        ("/", OSError(errno.ENOSPC, "No space", "/no/file"), r"folder / is on a disk of 1\.0 GiB that is full", "/tmp"),
        ("", OSError(errno.EDQUOT, "Quota", "/no/file"), r"the quota of this user on the disk of / ", "/tmp"),
        ("", OSError(errno.ENOSPC, "No space", "/a", None, "/no/b"), r"the disk of / has space again", "/tmp"),
        ("/tmp", OSError(errno.EROFS, "Read-only", "/no/file"), r"the disk of / is mounted for reading only", "/tmp"),
    ],
)
def test_the_disk_that_is_full_is_named(monkeypatch, full, error, said, unsaid):
    monkeypatch.setattr("tempfile.gettempdir", lambda: "/tmp")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(2**30, 2**30, 0 if str(folder) == full else 2**30))
    message = message_of(error, "/work")
    assert message.startswith(f"{error}: ")
    assert re.search(said, message)
    assert not re.search(unsaid, message)


def test_a_missing_permission_names_the_file_and_the_way_out():
    said = "/w/a: this user may not read or write it; change its permissions, or use another folder"
    assert message_of(PermissionError(errno.EACCES, "Permission denied", "/w/a")) == said


def test_an_error_after_somebody_deleted_the_temporary_folder_is_the_machines(tmp_path: Path) -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", str(tmp_path / "gone" / "events"))
    assert cause_of(missing, tmp_path) is missing
    found = cause_of(missing, tmp_path / "gone")
    assert (classify(found), str(tmp_path / "gone") in str(found)) == (FailureClass.HOST, True)
    known, stopped = HostError("a worker was killed"), KeyboardInterrupt()
    assert cause_of(known, tmp_path / "gone") is known
    assert cause_of(stopped, tmp_path / "gone") is stopped
