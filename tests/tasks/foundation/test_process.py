"""The version of the running code."""

import re
import shutil
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


def test_the_images_of_workers_have_what_it_reads() -> None:
    for image in ("worker", "worker-neuron"):
        text = (ROOT / "infra" / "images" / f"{image}.Dockerfile").read_text()
        copied = {name for line in re.findall(r"^COPY (.*) \S+$", text, re.M) for name in line.split()}
        assert copied >= set(IN_A_WORKERS_IMAGE), image
