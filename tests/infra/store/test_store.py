"""What every store must do for one caller; `test_store_races.py` has several at once."""

import errno
import os
import shutil
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from infra.store.base import Conflict, Store, sha256_of
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tasks.foundation.errors import ConfigError, FailureClass, StoreError, classify
from tests.infra.store.conftest import no_links
from tests.support.workspace.stores import everything_below

WRITES: dict[str, Callable[[Store, Path], None]] = {
    "write": lambda store, source: store.write("a/b.json", source.read_bytes()),
    "create": lambda store, source: store.create("a/new.json", source.read_bytes()),
    "swap": lambda store, source: store.swap("a/b.json", source.read_bytes(), expected=b"old"),
    "upload": lambda store, source: store.upload(source, "a/new.json"),
    "upload over": lambda store, source: store.upload(source, "a/b.json", store.tags("a")["a/b.json"]),
}

USES: dict[str, Callable[[Store, str], object]] = {
    "read": lambda store, key: store.read(key),
    "exists": lambda store, key: store.exists(key),
    "list": lambda store, key: store.list(key),
    "write": lambda store, key: store.write(key, b""),
    "create": lambda store, key: store.create(key, b""),
    "swap": lambda store, key: store.swap(key, b"", None),
    "upload": lambda store, key: store.upload(Path(__file__), key),
    "local": lambda store, key: store.local(key),
    "move to": lambda store, key: store.move("a", key),
    "move from": lambda store, key: store.move(key, "b"),
    "copy to": lambda store, key: store.copy("a", key, ["b.json"]),
    "copy from": lambda store, key: store.copy(key, "b", ["b.json"]),
    "delete": lambda store, key: store.delete(key),
    "tags": lambda store, key: store.tags(key),
    "discard": lambda store, key: store.discard(key, {}),
}


def test_a_written_object_is_read_back(store):
    store.write("a/b/c.json", b"one")
    assert store.read("a/b/c.json") == b"one"
    store.write("a/b/c.json", b"")
    assert store.read("a/b/c.json") == b""


def test_an_absent_object_is_not_listed_and_cannot_be_read(store):
    assert not store.exists("a/b")
    assert store.list("a") == []
    store.delete("a")
    with pytest.raises(FileNotFoundError):
        store.read("a/b")


def test_a_folder_is_not_an_object(store):
    store.write("a/b", b"")
    assert store.exists("a/b")
    assert not store.exists("a")
    assert store.list("a/b") == []


def test_list_gives_all_keys_below_a_folder_in_order_and_no_neighbours(store):
    for key in ("runs/2/x", "runs/1/b/y", "runs/1/a", "runs/10/z"):
        store.write(key, b"")
    assert store.list("runs/1") == ["runs/1/a", "runs/1/b/y"]
    assert store.list("runs") == ["runs/1/a", "runs/1/b/y", "runs/10/z", "runs/2/x"]


def test_sizes_are_those_of_the_objects_of_a_folder(store):
    for key, data in (("runs/1/a", b"four"), ("runs/1/b/y", b""), ("runs/10/z", b"x")):
        store.write(key, data)
    assert store.sizes("runs/1") == {"runs/1/a": 4, "runs/1/b/y": 0}


def test_a_listing_goes_on_when_a_folder_is_deleted_during_it(tmp_path, monkeypatch):
    store = DirectoryStore(tmp_path)
    for key in ("a/1/x", "a/2/x", "a/3/x"):
        store.write(key, b"")

    def scan_and_delete(folder, real=os.scandir):
        if str(folder).endswith("/a/2"):
            store.delete("a/2")
        return real(folder)

    monkeypatch.setattr(os, "scandir", scan_and_delete)
    assert store.list("a") == ["a/1/x", "a/3/x"]


def test_upload_copies_and_local_reads(store, source):
    store.upload(source, "a/b.bin")
    assert store.local("a/b.bin").read_bytes() == b"new content"
    assert source.exists()
    assert (store.local("a") / "b.bin").read_bytes() == b"new content"


def test_an_upload_goes_only_where_nothing_is_or_in_place_of_what_was_seen(store, source):
    store.write("a/b", b"1")
    with pytest.raises(Conflict):
        store.upload(source, "a/b")
    seen = store.tags("a")["a/b"]
    store.write("a/b", b"2")
    with pytest.raises(Conflict):
        store.upload(source, "a/b", seen)
    assert store.read("a/b") == b"2"
    store.upload(source, "a/b", store.tags("a/b")["a/b"])
    assert store.read("a/b") == source.read_bytes()
    store.delete("a/b")
    with pytest.raises(Conflict):
        store.upload(source, "a/b", seen)
    assert not store.exists("a/b")


def test_only_what_was_seen_is_discarded(store):
    for key in ("a/1", "a/2", "ab"):
        store.write(key, b"old")
    seen = store.tags("a")
    assert sorted(seen) == ["a/1", "a/2"]
    store.write("a/2", b"new")
    store.write("a/3", b"new")
    store.discard("a", seen)
    assert store.list("a") == ["a/2", "a/3"]
    store.discard("a", seen)
    store.discard("a/2", store.tags("a/2"))
    assert store.list("a") == ["a/3"]
    store.discard("a", store.tags("a"))
    assert store.list("") == ["ab"]


def test_delete_removes_an_object_or_a_folder_and_nothing_else(store):
    for key in ("a/1", "a/2/x", "a/2/y", "ab"):
        store.write(key, b"")
    store.delete("a/2")
    assert store.list("") == ["a/1", "ab"]
    store.delete("a/1")
    assert store.list("") == ["ab"]


def test_move_moves_a_folder_or_an_object(store):
    store.write("a/1", b"one")
    store.write("a/b/2", b"two")
    store.move("a", "deep/down/z")
    assert store.list("") == ["deep/down/z/1", "deep/down/z/b/2"]
    store.move("deep/down/z/1", "one")
    assert store.read("one") == b"one"


def test_copies_of_a_folder_go_their_own_way(store):
    for name in ("1", "b/2", "b/3", "b/9.manifest"):
        store.write(f"a/{name}", name.encode())
    store.copy("a", "deep/z", ["b/9.manifest", "1", "b/2"])
    assert store.list("deep") == ["deep/z/1", "deep/z/b/2", "deep/z/b/9.manifest"]
    store.write("a/1", b"another")
    store.delete("a/b")
    assert [store.read(f"deep/z/{name}") for name in ("1", "b/2")] == [b"1", b"b/2"]
    with pytest.raises((FileNotFoundError, StoreError)):
        store.copy("a", "y", ["nothing", "b/9.manifest"])
    assert store.list("y") == []


@pytest.mark.parametrize("taken", ["z", "z/full"])
def test_move_replaces_nothing(store, taken):
    store.write("a/1", b"one")
    store.write(taken, b"there before")
    with pytest.raises(Conflict, match="z"):
        store.move("a", "z")
    assert store.list("") == sorted(["a/1", taken])
    assert store.read(taken) == b"there before"


def test_create_refuses_an_object_that_is_there(store):
    store.create("a", b"one")
    with pytest.raises(Conflict, match="/a exists already"):
        store.create("a", b"two")
    assert store.read("a") == b"one"


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EPERM])
def test_a_file_system_without_hard_links_will_do(directory, source, number, monkeypatch):
    monkeypatch.setattr(os, "link", no_links(number))
    directory.create("a/1", b"one")
    directory.upload(source, "a/2")
    for act in (lambda: directory.create("a/1", b"two"), lambda: directory.upload(source, "a/1")):
        with pytest.raises(Conflict):
            act()
    assert (directory.read("a/1"), directory.read("a/2")) == (b"one", source.read_bytes())
    assert directory.list("a") == sorted(everything_below(directory.local("")) - {".locks/create"})


def test_swap_replaces_only_the_expected_content(store):
    store.swap("CURRENT", b"1", expected=None)
    store.swap("CURRENT", b"2", expected=b"1")
    for stale in (b"1", None):
        with pytest.raises(Conflict, match="another process"):
            store.swap("CURRENT", b"3", expected=stale)
    assert store.read("CURRENT") == b"2"


def test_swap_of_an_absent_object_with_an_expectation_loses(store):
    with pytest.raises(Conflict):
        store.swap("CURRENT", b"1", expected=b"0")
    assert not store.exists("CURRENT")


@pytest.mark.parametrize("key", ["../outside", "a/../../outside", "/etc/hostname"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_key_never_leaves_the_workspace(store, tmp_path, key, use):
    store.write("a/1", b"")
    (tmp_path / "outside").write_bytes(b"mine")
    with pytest.raises(StoreError, match="leaves the workspace"):
        use(store, key)
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_a_lock_excludes_a_second_holder_until_it_is_left(store):
    with store.lock("lineages/main"):
        with pytest.raises(Conflict, match="lineages/main is in use"), store.lock("lineages/main"):
            pass
        with store.lock("lineages/other"):
            pass
    with store.lock("lineages/main"):
        pass


def test_a_lock_is_left_when_its_block_fails(store):
    with pytest.raises(ZeroDivisionError), store.lock("a"):
        _ = 1 / 0
    with store.lock("a"):
        pass


def test_a_look_at_a_lock_names_its_holder_and_changes_nothing(store):
    assert store.peek("lineages/main") is None
    assert store.list("") == []
    with store.lock("lineages/main") as lock:
        before = {key: store.read(key) for key in store.list(".locks")}
        holder = store.peek("lineages/main")
        assert holder is not None
        assert f"process {os.getpid()} on {socket.gethostname()}" in holder.name
        assert store.peek("lineages/other") is None
        assert {key: store.read(key) for key in store.list(".locks")} == before
        lock.confirm()
    assert store.peek("lineages/main") is None


def test_each_holder_of_a_lock_has_a_later_term(store):
    terms = []
    for _ in range(3):
        with store.lock("lineages/main") as lock:
            terms.append(lock.term)
    assert terms == sorted(set(terms))


def full_disk(*arguments: object) -> None:
    path = next(argument for argument in reversed(arguments) if isinstance(argument, Path))
    with path.open("wb") as handle:
        handle.write(b"new c")
    raise OSError(errno.ENOSPC, "No space left on device")


def failing_disk(handle: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("trouble", ["a full disk", "a failing disk"])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_that_the_disk_refuses_leaves_nothing_half_written(directory, source, write, trouble, monkeypatch):
    directory.write("a/b.json", b"old")
    if trouble == "a full disk":
        monkeypatch.setattr(Path, "write_bytes", lambda path, data: full_disk(path))
        monkeypatch.setattr(shutil, "copyfile", full_disk)
    else:
        monkeypatch.setattr(os, "fsync", failing_disk)
    with pytest.raises(OSError, match=r"No space|output error") as caught:
        write(directory, source)
    monkeypatch.undo()
    assert classify(caught.value) is (FailureClass.DISK if trouble == "a full disk" else FailureClass.STORE)
    assert {key for key in everything_below(directory.local("")) if not key.startswith(".locks/")} == {"a/b.json"}
    assert directory.read("a/b.json") == b"old"


ACTS = WRITES | {
    "move": lambda store, source: store.move("a", "b"),
    "copy": lambda store, source: store.copy("a", "b", ["b.json"]),
    "delete": lambda store, source: store.delete("a/b.json"),
    "discard": lambda store, source: store.discard("a", store.tags("a")),
    "lock": lambda store, source: store.lock("lineages/main").__enter__(),
}


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_a_workspace_that_is_read_only_asks_for_the_mount_or_the_rights(directory, source, act, number, monkeypatch):
    directory.write("a/b.json", b"old")

    def refuse(path, *arguments, **named):
        raise OSError(number, os.strerror(number), str(path))

    for name in ("mkdir", "open", "unlink"):
        original = getattr(Path, name)
        monkeypatch.setattr(
            Path, name, lambda path, *a, do=original, **n: (do if path == source else refuse)(path, *a, **n)
        )
    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(StoreError, match="mount the disk") as caught:
        act(directory, source)
    monkeypatch.undo()
    assert caught.value.failure is FailureClass.DISK
    assert directory.read("a/b.json") == b"old"


def test_a_source_that_may_not_be_read_is_not_the_workspaces_fault(directory, source, monkeypatch):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(shutil, "copyfile", refuse)
    with pytest.raises(PermissionError, match=str(source)):
        directory.upload(source, "a/new.json")


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_link_never_leads_out_of_the_workspace(directory, tmp_path, use):
    directory.write("a/1", b"")
    (tmp_path / "outside").write_bytes(b"mine")
    (directory.root / "link").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="leaves the workspace"):
        use(directory, "link/outside")
    assert (tmp_path / "outside").read_bytes() == b"mine"


def test_the_umask_decides_who_may_read_an_object(tmp_path, source):
    before = os.umask(0o022)
    try:
        store = DirectoryStore(tmp_path / "workspace")
        for write in WRITES.values():
            store.write("a/b.json", b"old")
            store.delete("a/new.json")
            write(store, source)
            key = "a/new.json" if store.exists("a/new.json") else "a/b.json"
            assert stat.S_IMODE(store.local(key).stat().st_mode) == 0o644
    finally:
        os.umask(before)


@pytest.mark.parametrize("uri", ["gs://bucket", "http://host/x", "s3n://bucket/prefix"])
def test_an_unknown_scheme_is_a_config_error(uri):
    with pytest.raises(ConfigError, match=f"unknown scheme '{uri.partition(':')[0]}'"):
        open_store(uri)


def test_a_workspace_is_opened_by_path_or_file_uri(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    uris = {open_store(name).uri for name in (f"{tmp_path}/w", f"file://{tmp_path}/w", "~/w", "w", "./x/../w")}
    assert uris == {str(tmp_path / "w")}


def test_opening_a_workspace_makes_no_folder(tmp_path):
    assert open_store(str(tmp_path / "w")).list("") == []
    assert list(tmp_path.iterdir()) == []


def test_sha256_of_a_file(source):
    assert sha256_of(source) == "fe32608c9ef5b6cf7e3f946480253ff76f24f4ec0678f3d0f07f9844cbff9601"
