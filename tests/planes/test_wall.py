"""The wall between the planes: only tasks/worker imports torch, never Prefect, and the command starts fast."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planes.source import ROOT, imports, module_name, source_files

WORKER = ROOT / "tasks" / "worker"
HEAVY = ("torch", "torch_xla", "transformers", "sentence_transformers")
SLOW = ("prefect", "great_expectations", "pandas", "pyarrow", "torch")  # what `millrace --help` has no time for


CONTROL = [path for path in source_files("flows", "tasks", "infra", "configs") if not path.is_relative_to(WORKER)]

IMPORT_ALL = """
import importlib, json, sys, traceback
modules, blocked = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(blocked))  # None: an import of it raises
failed = {}
for module in modules:
    try:
        importlib.import_module(module)
    except Exception:
        failed[module] = traceback.format_exc(limit=-3)
print(json.dumps(failed))
"""


def import_without(modules: list[str], blocked: tuple[str, ...]) -> dict[str, str]:
    """Import modules in a fresh process in which `blocked` can't be; module -> traceback of those that failed."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps([modules, blocked])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_control_plane_imports_without_torch() -> None:
    modules = [module_name(path) for path in CONTROL]
    assert "tasks.contracts.jobs" in modules
    failed = import_without(modules, HEAVY)
    assert not failed, "\n".join(failed.values())


def test_the_block_blocks() -> None:
    assert list(import_without(["json", "torch"], HEAVY)) == ["torch"]


@pytest.mark.parametrize("path", source_files("tasks/worker"), ids=module_name)
def test_a_worker_never_talks_to_prefect(path: Path) -> None:
    assert "prefect" not in imports(path)


@pytest.mark.parametrize("path", CONTROL, ids=module_name)
def test_the_control_plane_imports_no_worker_code(path: Path) -> None:
    assert not imports(path) & {*HEAVY, "tasks.worker"}


def test_the_help_page_loads_nothing_slow() -> None:
    code = (
        "import sys\n"
        "from flows.cli import main\n"
        "sys.argv = ['millrace', '--help']\n"
        "try:\n    main()\n"
        "finally:\n    print(*sorted(sys.modules), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "rollback" in done.stdout
    assert not set(SLOW) & set(done.stderr.split())
