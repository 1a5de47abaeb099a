"""Places that can't hold a workspace are refused before the first stage, with one sentence."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.fitness import require_fit
from tasks.foundation.errors import FailureClass, classify
from tests.infra.store.conftest import no_links


def failing(number: int, when: Callable[..., bool] = lambda *_: True) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        if when(*arguments):
            raise OSError(number, os.strerror(number))

    return fail


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
    with pytest.raises(Exception, match=rf"{link} is a link.*mount --bind {tmp_path}/other {link}") as caught:
        require_fit(DirectoryStore(tmp_path / "workspace"))
    assert classify(caught.value) is FailureClass.CONFIG
