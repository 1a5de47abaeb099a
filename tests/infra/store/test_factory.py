"""Names of workspaces that can be none: an error that names the way out, before anything is written."""

from pathlib import Path

import pytest

from infra.store import factory
from infra.store.factory import open_store
from tasks.foundation.errors import ConfigError, StoreError


@pytest.mark.parametrize("below", ["", "/workspace", "/a/b"])
def test_a_file_is_no_workspace_and_holds_none(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    for uri in (f"{tmp_path}/file{below}", f"file://{tmp_path}/file{below}"):
        with pytest.raises(ConfigError, match=rf"{tmp_path}/file is a file; .* name another"):
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


def test_a_folder_that_must_not_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permissions do not bind the user that tests run as, so the system's answer is given here."""
    monkeypatch.setattr(factory.os, "access", lambda *_: False)
    with pytest.raises(StoreError, match=rf"may not read {tmp_path}; change its permissions"):
        open_store(str(tmp_path))
    with pytest.raises(StoreError, match=rf"may not write to {tmp_path}; change its permissions"):
        open_store(str(tmp_path / "new" / "er"))


def test_a_folder_that_is_not_there_yet_is_a_workspace(tmp_path: Path) -> None:
    assert open_store(f"file://{tmp_path}/new/er").uri == str(tmp_path / "new" / "er")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
def test_a_place_that_takes_no_folders_is_named() -> None:
    """The system says there that the folder is missing, not that it must not be made."""
    with pytest.raises(StoreError, match=r"/proc/x/a.json can't be written .* name another workspace"):
        open_store("/proc/x").write("a.json", b"")
    with pytest.raises(StoreError, match="can't be written"), open_store("/proc/x").lock("spans"):
        pass


def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path in (f"{tmp_path}/circle", f"{tmp_path}/circle/x", "~nobody-of-this-name/x"):
        with pytest.raises(ConfigError, match=r"(Symlink loop|home directory).*; mend that, or name another"):
            open_store(path)
    with pytest.raises(ConfigError, match=r"File name too long.* name another"):
        open_store(str(tmp_path / ("a" * 300)))
