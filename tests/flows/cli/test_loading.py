"""The command before its modules are loaded: Ctrl-C comes then too."""

import subprocess
import sys
from pathlib import Path

import pytest

from tasks.foundation.errors import POLICIES, FailureClass

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("module", ["pydantic", "typer", "flows.cli.app"])
def test_ctrl_c_while_the_command_is_loaded_is_no_traceback(module: str) -> None:
    code = f"""
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from flows.cli import main
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == POLICIES[FailureClass.CANCELLED].exit_code
    assert done.stderr == "CANCELLED: stopped by Ctrl-C; nothing was begun\n"
