"""Three disturbed runs with nothing replaced: the first ones of a seed, from the installed command."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.support.workspace.shop import MILLRACE

pytestmark = pytest.mark.proof


def test_three_disturbed_runs_end_as_if_undisturbed() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    done = subprocess.run(
        [MILLRACE, "chaos", "--kills", "3", "--seed", "1", "--json"], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [(run["number"], run["violations"]) for run in report["runs"]] == [(1, []), (2, []), (3, [])]
    assert len({run["act"] for run in report["runs"]}) == 3
