"""`make check-neuron`, as far as it can be tried without Docker and neuronx-cc."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from infra.images import requirements
from tests.neuron import imports
from tests.planes.source import ROOT, TOPS, module_name, source_files

SCRIPT = ROOT / "tests/neuron/check.sh"

# Writes down how it was called. As neuronx-cc it makes its output, but fails for what FAIL names.
TOOL = """#!/bin/sh
printf '%s ' "$(basename "$0")" "$@" | tr '\\n' ' ' >> "$CALLS"
echo >> "$CALLS"
case "$*" in *"$FAIL"*) exit 3;; esac
"""


def call(folder: Path, fail: str = "nothing") -> tuple[int, list[str], str]:
    """Exit code and output of the script with a docker that only writes down its calls, and those calls."""
    (folder / "bin").mkdir()
    for name, text in {"docker": TOOL, "uname": "#!/bin/sh\necho x86_64\n"}.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    copy = folder / "copy"
    (copy / "tests/neuron").mkdir(parents=True)
    (copy / "tests/neuron/check.sh").write_text(SCRIPT.read_text())
    (copy / ".venv/bin").mkdir(parents=True)
    (copy / ".venv/bin/python").write_text(TOOL)
    (copy / ".venv/bin/python").chmod(0o755)
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "CALLS": str(folder / "calls"), "FAIL": fail}
    (folder / "calls").touch()
    done = subprocess.run(
        ["sh", copy / "tests/neuron/check.sh"], env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, [line.rstrip() for line in (folder / "calls").read_text().splitlines()], done.stdout


@pytest.mark.shows("check-neuron")
def test_every_image_is_built_and_checked_as_the_workers_user_and_each_level_is_compiled(tmp_path: Path) -> None:
    code, calls, output = call(tmp_path)
    assert (code, output.splitlines()[-1].split(";")[0]) == (0, "== all of it passed")
    images = {path.name.removesuffix(".Dockerfile") for path in (ROOT / "infra/images").glob("*.Dockerfile")}
    runs = [line for line in calls if line.startswith("docker run")]
    for image in images:
        assert any(
            re.search(rf"docker build --file \S+/{image}\.Dockerfile --tag millrace-{image}:check", line)
            for line in calls
        )
        own = [line for line in runs if f" millrace-{image}:check python" in line]
        assert [line.rpartition(" python ")[2] for line in own] == ["-m pip check", "/tmp/imports.py"]
    assert all("--read-only --user 10001:10001" in line for line in runs)
    assert [re.findall(r"LEVEL=(\d)", line) for line in runs if "LEVEL=" in line] == [["1"], ["2"]]
    assert calls.index("python -m tests.neuron.graphs build/neuron-graphs") < calls.index(runs[-2])


@pytest.mark.parametrize("step", ["build", "pip check", "tests.neuron.graphs", "LEVEL=2"])
@pytest.mark.shows("check-neuron")
def test_a_step_that_fails_ends_it(tmp_path: Path, step: str) -> None:
    code, calls, output = call(tmp_path, fail=step)
    assert code == 3
    assert step in calls[-1]
    assert "passed" not in output


def test_the_modules_of_an_image_are_found_and_clients_that_it_lacks_are_left_out() -> None:
    expected = {module_name(path) for path in source_files(*TOPS)}
    left_out = {name for name in expected if name.endswith("__main__")} | imports.OPTIONAL.keys()
    # It is run while an image is built, and is in no package.
    left_out |= {*TOPS, "infra.images.requirements"}
    assert set(imports.modules(ROOT, there=lambda package: False)) == expected - left_out


def test_optional_modules_are_there() -> None:
    assert imports.OPTIONAL.keys() <= {module_name(path) for path in source_files(*TOPS)}
    assert requirements.requirements(
        (ROOT / "pyproject.toml").read_text(), ["lancedb", "opensearch", "pgvector", "qdrant"]
    )
