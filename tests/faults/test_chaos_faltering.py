"""Files that fail in a process on request, and only where and as long as was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.disturbed.local import FALTERING

PROGRAM = """
import json, os, sys, time
folder, results = sys.argv[1], {}

def tried(name, what):
    began = time.monotonic()
    try:
        what()
        results[name] = "slow" if time.monotonic() - began >= 0.05 else "done"
    except OSError as error:
        results[name] = error.errno

inside, outside = os.path.join(folder, "workspace"), os.path.join(folder, "tmp")
for how in ("store-errors", "store-delays", "disk-full", ""):
    if how:
        os.symlink(how, os.path.join(folder, "faltering"))
    tried(f"{how} read", lambda: open(os.path.join(inside, "old")).close())
    tried(f"{how} append", lambda: open(os.path.join(inside, "old"), "a").close())
    tried(f"{how} new", lambda: open(os.path.join(inside, f"new-{how}"), "w").close())
    tried(f"{how} rename", lambda: os.replace(os.path.join(inside, "old"), os.path.join(inside, "old")))
    tried(f"{how} temporary", lambda: os.mkdir(os.path.join(outside, f"new-{how}")))
    if how:
        os.unlink(os.path.join(folder, "faltering"))
print(json.dumps(results))
"""


def test_each_way_to_falter(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "old").touch()
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(FALTERING), "MILLRACE_CHAOS_FOLDER": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], env=environment, capture_output=True, text=True, check=True
    )
    names, full, broken = ("read", "append", "new", "rename", "temporary"), 28, 5  # ENOSPC and EIO of Linux
    results = json.loads(done.stdout)
    assert [results[f"store-errors {name}"] for name in names] == [broken, broken, broken, broken, "done"]
    assert [results[f"store-delays {name}"] for name in names] == ["slow", "slow", "slow", "slow", "done"]
    assert [results[f"disk-full {name}"] for name in names] == ["done", "done", full, "done", full]
    assert [results[f" {name}"] for name in names] == ["done"] * 5
