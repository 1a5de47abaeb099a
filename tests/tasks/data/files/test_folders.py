"""All files below a folder are read, each once, or the one that can't be is named: no row is lost in silence."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.data.files.sources import SourceReader
from tasks.foundation.errors import ConfigError, DataError

READ = """
import sys
from pathlib import Path
from tasks.data.files.sources import SourceReader
from tasks.foundation.errors import ConfigError
try:
    print([row.values["a"] for row in SourceReader(Path(sys.argv[1]))])
except ConfigError as error:
    print(error)
"""


def write(path: Path, *values: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{value},x\n" for value in ("a", *values)))
    return path


def read(folder: Path) -> list[str]:
    return [row.values["a"] for row in SourceReader(folder)]


def read_without_rights(folder: Path) -> str:
    """Read as a user does; root without the rights that open closed folders."""
    command = [sys.executable, "-c", READ, str(folder)]
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root opens closed folders, and setpriv is not here to take that right away")
        command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", *command]
    return subprocess.run(command, text=True, capture_output=True, check=True).stdout


def test_a_folder_that_cant_be_opened_is_named_and_not_left_out(tmp_path: Path) -> None:
    write(tmp_path / "in/2026-10/a.csv", "1")
    closed = write(tmp_path / "in/2026-11/b.csv", "2").parent
    closed.chmod(0)
    try:
        said = read_without_rights(tmp_path / "in")
    finally:
        closed.chmod(0o755)
    assert "in/2026-11: " in said


@pytest.mark.parametrize("name", ["lost+found", ".cache", "_temporary"])
def test_a_closed_folder_that_no_reader_enters_is_no_matter(tmp_path: Path, name: str) -> None:
    write(tmp_path / "in/a.csv", "1")
    closed = write(tmp_path / "in" / name / "b.csv", "2").parent
    closed.chmod(0)
    try:
        assert read_without_rights(tmp_path / "in") == "['1']\n"
    finally:
        closed.chmod(0o755)


def test_folders_and_files_behind_links_are_read_with_the_columns_of_their_path(tmp_path: Path) -> None:
    write(tmp_path / "in/day=1/a.csv", "1")
    (tmp_path / "in/day=2").symlink_to(write(tmp_path / "elsewhere/b.csv", "2").parent)
    rows = [(row.values["a"], row.values["day"]) for row in SourceReader(tmp_path / "in")]
    assert rows == [("1", 1), ("2", 2)]


def test_what_two_names_lead_to_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "in/2026-10/a.csv", "1")
    write(tmp_path / "in/2026-11/b.csv", "2")
    (tmp_path / "in/0-latest").symlink_to("2026-11")
    (tmp_path / "in/0-latest.csv").symlink_to("2026-11/b.csv")
    (tmp_path / "in/2026-10/up").symlink_to("..")
    assert read(tmp_path / "in") == ["1", "2"]
    (tmp_path / "link").symlink_to("in")
    assert read(tmp_path / "link") == ["1", "2"]


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    write(tmp_path / "in/a.csv", "1")
    (tmp_path / "in/.#b.csv").symlink_to("user@host.1")  # an editor's lock
    assert read(tmp_path / "in") == ["1"]
    (tmp_path / "in/b.csv").symlink_to("/nowhere/b.csv")
    with pytest.raises(ConfigError, match=r"in/b\.csv: a link to"):
        read(tmp_path / "in")


@pytest.mark.parametrize("late", ["2026-10-02,2", "2026-10-02,25\n"])
def test_a_file_that_grows_while_it_is_read_is_refused(tmp_path: Path, late: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text("at,a\n" + "2026-10-01,1\n" * 20_000)
    rows = iter(SourceReader(path))
    next(rows)
    with path.open("a") as writer:
        writer.write(late)
    with pytest.raises(DataError, match=r"log\.csv: .*changed"):
        list(rows)
