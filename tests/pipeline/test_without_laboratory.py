"""The laboratory can be deleted: what is left loads, has its commands, and makes a release."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LABORATORY = ("flows/laboratory", "tasks/laboratory")
RELEASED = """
import importlib, pkgutil, sys
from pathlib import Path

# An editable installation would find the deleted folders where they were copied from.
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]

import configs, flows, infra, tasks

for top in (configs, infra, tasks, flows):
    for module in pkgutil.walk_packages(top.__path__, f"{top.__name__}."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)

from flows.cli.app import all_commands
from infra.store.directory import DirectoryStore
from tasks.planning.next_run import plan_run
from tasks.runs.releases import current
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out

store = DirectoryStore(Path(sys.argv[1]))
ingest(store, "2021-Q1")
runner = FakeRunner(store)
infra.compute.factory.make_runner = lambda config, store, stage: runner
carry_out(plan_run(store, small_config()))
print("release", current(store).number)
print("commands", *all_commands())
"""


def test_the_rest_is_whole_without_it(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for top in ("configs", "flows", "infra", "tasks", "tests/support"):
        shutil.copytree(ROOT / top, copy / top, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in LABORATORY:
        shutil.rmtree(copy / folder)
    ran = subprocess.run(
        [sys.executable, "-c", RELEASED, str(tmp_path / "workspace")],
        cwd=copy,
        env={"PYTHONPATH": str(copy), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    release, commands = (line.split() for line in ran.stdout.splitlines()[-2:])
    assert release == ["release", "1"]
    assert {"run", "backfill", "compare"} < set(commands)
    assert {"goodput", "bakeoff", "parity", "import-checkpoint"}.isdisjoint(commands)
