"""The laboratory can be deleted: the rest loads, has its commands and pages, and makes a release."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LABORATORY = ("flows/laboratory", "tasks/laboratory", "tasks/worker/laboratory")
FIRST = """
import importlib, pkgutil, sys
from pathlib import Path

# An editable installation would find the deleted folders where they were copied from.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
"""
RELEASED = """
import datetime as dt

import configs, flows, infra, tasks

for top in (configs, infra, tasks, flows):
    for module in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

from flows.cli.app import all_commands
from flows.cli.serving.pages import Pages
from configs.load import load_config
from flows.report import write_pages
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError
from tasks.planning.next_run import plan_run
from tasks.runs.releases import current
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out

store = DirectoryStore(Path(sys.argv[1]))
ingest(store, "2021-Q1")
runner = FakeRunner(store)
infra.compute.factory.make_runner = lambda config, store, stage: runner
carry_out(plan_run(store, small_config()))
_, written = write_pages(store, dt.datetime.now(dt.UTC))
pages = Pages(store)
PATHS = ("/", "/changes", "/releases", "/history", "/metrics", "/map", "/map/1", "/lineages", "/reports/lineages.html")
for path in PATHS:
    page = pages.page(path)
    leads_there = page is not None and any(word in page.body for word in (b'"/map', b'"/lineages"', b"lineages.html"))
    print("page", path, "none" if page is None else "to the laboratory" if leads_there else "shown")
pages.close()
try:
    load_config(None, ["decide.scheduled=true"])
except ConfigError as error:
    print("refused", error)
print("written", *sorted(store.list("reports")), written.lineages)
print("release", current(store).number)
print("commands", *all_commands())
"""
HELP = """
from flows.cli import main

sys.argv[1:] = ["--help"]
main()
"""


@pytest.mark.proof
def test_the_rest_is_whole_without_it(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for top in ("configs", "flows", "infra", "tasks", "tests/support"):
        shutil.copytree(ROOT / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in LABORATORY:
        shutil.rmtree(copy / folder)
    (copy / LABORATORY[0] / "__pycache__").mkdir(parents=True)  # git leaves it

    def ran(code: str) -> list[list[str]]:
        """Return the words of the lines that some code prints in the copy."""
        done = subprocess.run(
            [sys.executable, "-c", FIRST + code, str(tmp_path / "workspace")],
            cwd=copy,
            env={"PYTHONPATH": str(copy), "HOME": str(tmp_path), "COLUMNS": "200"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    said: dict[str, list[str]] = {}
    pages: dict[str, str] = {}
    for what, *words in ran(RELEASED)[-13:]:
        if what == "page":
            pages[words[0]] = " ".join(words[1:])
        else:
            said[what] = words
    assert {path for path, found in pages.items() if found == "none"} == {
        "/map", "/map/1", "/lineages", "/reports/lineages.html",
    }  # fmt: skip
    assert "to the laboratory" not in pages.values()
    assert said["written"] == ["reports/history.html", "None"]
    assert said["refused"][:2] == ["configuration:", "decide.scheduled:"]
    assert said["release"] == ["1"]
    assert {"run", "backfill", "compare"} < set(said["commands"])
    assert {"plan", "decide", "goodput", "bakeoff", "parity", "import-checkpoint"}.isdisjoint(said["commands"])
    listed = {word for line in ran(HELP) for word in line}
    assert {"run", "backfill", "compare"} < listed
    assert {"Laboratory", "plan", "goodput", "import-checkpoint"}.isdisjoint(listed)
