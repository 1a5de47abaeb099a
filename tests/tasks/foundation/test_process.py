"""The version of the running code, and its streams."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tasks.foundation.process import ROOT, code_version

IN_A_WORKERS_IMAGE = ("pyproject.toml", "configs", "infra", "tasks")


def test_a_copy_has_the_same_version_until_a_line_of_it_changes(tmp_path: Path) -> None:
    for name in IN_A_WORKERS_IMAGE:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    assert re.fullmatch(r"\d+\.\d+\.\d+\+[0-9a-f]{12}", code_version())
    assert code_version(tmp_path) == code_version()
    (tmp_path / "tasks" / "release.py").write_text("")
    assert code_version(tmp_path) != code_version()


ECHO = "from tasks.foundation.process import speak_utf8; speak_utf8(); print(input())"


def test_a_locale_does_not_change_the_words_between_two_processes() -> None:
    """In Latin-1 a question for the Japanese chair would end its search worker."""
    for encoding in ("latin-1", "ascii"):
        done = subprocess.run(
            [sys.executable, "-c", ECHO],
            input="緑の 椅子, übergroß\n".encode(),
            capture_output=True,
            env={**os.environ, "PYTHONIOENCODING": encoding},
            cwd=ROOT,
            check=True,
        )
        assert done.stdout.decode() == "緑の 椅子, übergroß\n"


def test_a_stream_that_has_become_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    """A forked worker's standard output is a pipe in the place of the file that its parent had."""
    swap = "import os; read, write = os.pipe(); os.dup2(write, 1); " + ECHO
    with (tmp_path / "out").open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-c", swap],
            input=b"a\n",
            stdout=file,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
            cwd=ROOT,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_images_of_workers_have_what_it_reads() -> None:
    for image in ("worker", "worker-neuron"):
        text = (ROOT / "infra" / "images" / f"{image}.Dockerfile").read_text()
        copied = {name for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for name in line.split()}
        assert copied >= set(IN_A_WORKERS_IMAGE), image
