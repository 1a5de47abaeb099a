"""Names and places that can't be workspaces: one sentence with the way out, before anything is written."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.store import factory
from infra.store.base import ReadOnlyError
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store, require_fit
from tasks.foundation.errors import ConfigError, FailureClass, StoreError, classify
from tests.infra.store.conftest import no_links


@pytest.mark.parametrize("below", ["", "/workspace", "/a/b"])
def test_a_file_is_no_workspace_and_holds_none(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    for uri in (f"{tmp_path}/file{below}", f"file://{tmp_path}/file{below}"):
        with pytest.raises(ConfigError, match=rf"{tmp_path}/file is .*name"):
            open_store(uri)


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("", "the name is empty"),
        (" ", "the name is empty"),
        ("s3:/bucket/prefix", r"two slashes .* s3://bucket/prefix"),
        ("gs://bucket", "unknown scheme 'gs'"),
        ("S3://bucket", "unknown scheme 'S3'"),
        ("s3://", "expected s3://bucket/prefix"),
        ("m\udcf6bel", r"paths in UTF-8 alone.*m.+bel is none; set LC_ALL=C.UTF-8, or name a folder in ASCII"),
    ],
)
def test_a_name_that_is_no_workspace_is_refused(uri: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store(uri)


def failing(number: int, when: Callable[..., bool] = lambda *_: True) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        if when(*arguments):
            raise OSError(number, os.strerror(number))

    return fail


def test_a_folder_that_must_not_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions do not bind the user that tests run as, so the system's answer is given here."""
    monkeypatch.setattr(factory.os, "access", lambda *_: False)
    with pytest.raises(StoreError, match=rf"read {tmp_path};"):
        open_store(str(tmp_path))
    with pytest.raises(ReadOnlyError, match=rf"{tmp_path} can't be written"):
        open_store(str(tmp_path / "new" / "er"))


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_workspace_that_is_read_only_is_named_as_by_the_first_write(tmp_path, monkeypatch, number):
    """`run` named a temporary file of class DISK, and `hold` the workspace, of class CONFIG."""
    monkeypatch.setattr(os, "open", failing(number))
    with pytest.raises(ReadOnlyError, match=rf"^{tmp_path} can't be written .*mount the disk") as probed:
        require_fit(DirectoryStore(tmp_path))
    with pytest.raises(ReadOnlyError) as written:
        DirectoryStore(tmp_path).write("a", b"")
    assert str(written.value) == str(probed.value).replace(f"{tmp_path} ", f"{tmp_path}/a ")
    assert classify(probed.value) is classify(written.value) is FailureClass.DISK


def test_a_folder_that_is_not_there_yet_is_a_workspace(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}/new/er").uri == str(tmp_path / "new" / "er")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
def test_a_place_that_takes_no_folders_is_named() -> None:
    """The system says there that the folder is missing, not that it must not be made."""
    with pytest.raises(StoreError, match=r"/proc/x/a.json .* name"):
        open_store("/proc/x").write("a.json", b"")
    with pytest.raises(StoreError, match="can't be written"), open_store("/proc/x").lock("spans"):
        pass


def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path in (f"{tmp_path}/circle", f"{tmp_path}/circle/x", "~nobody-of-this-name/x"):
        with pytest.raises(ConfigError, match=r"Symlink loop|home directory"):
            open_store(path)
    with pytest.raises(ConfigError, match=r"name too long.* name"):
        open_store(str(tmp_path / ("a" * 300)))


@pytest.mark.parametrize(
    ("module", "name", "fail", "failure", "said"),
    [
        (fcntl, "flock", failing(errno.ENOSYS), FailureClass.CONFIG, "lock a file"),
        (fcntl, "flock", failing(errno.ENOLCK), FailureClass.STORE, "lock a file"),
        (os, "fsync", failing(errno.EINVAL, lambda handle: stat.S_ISDIR(os.fstat(handle).st_mode)),
         FailureClass.CONFIG, "write a folder to the disk"),
        (os, "rename", failing(errno.EPERM), FailureClass.CONFIG, "rename a file"),
        (os, "rename", failing(errno.ESTALE), FailureClass.STORE, "rename a file"),
        (os, "fsync", failing(errno.ENOSPC), FailureClass.DISK, "No space left"),
    ],
)  # fmt: skip
def test_a_file_system_that_lacks_an_operation_is_refused(tmp_path, monkeypatch, module, name, fail, failure, said):
    monkeypatch.setattr(module, name, fail)
    with pytest.raises(Exception, match=said) as caught:
        require_fit(DirectoryStore(tmp_path))
    assert classify(caught.value) is failure
    assert [*tmp_path.iterdir()] == []
    monkeypatch.undo()
    require_fit(DirectoryStore(tmp_path))  # mended meanwhile


def test_a_fit_place_is_probed_once_and_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", no_links(errno.EPERM))
    for _ in range(2):
        require_fit(DirectoryStore(tmp_path))
        assert [*tmp_path.iterdir()] == []
        monkeypatch.setattr(fcntl, "flock", failing(errno.ENOSYS))
    require_fit(DirectoryStore(tmp_path / "not" / "there"))
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("place", ["vectors", "lineages/main"])
def test_a_folder_that_is_a_link_is_refused_before_it_costs_a_training(tmp_path, place):
    (tmp_path / "other").mkdir()
    link: Path = tmp_path / "workspace" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "other")
    with pytest.raises(Exception, match=rf"{link} .*{tmp_path}/other {link}") as caught:
        require_fit(DirectoryStore(tmp_path / "workspace"))
    assert classify(caught.value) is FailureClass.CONFIG
