"""The deep checks of `millrace doctor` by real worker processes on PyTorch/XLA, with one worker and then with two."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tasks.doctor.examine import DoctorReport
from tests.support.processes.services import MILLRACE

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.proof,
]  # its parts: tests/tasks/doctor/test_deep.py
SECONDS = 900


def test_two_workers_pass_all_on_xla(tmp_path: Path) -> None:
    settings = ("--set", "accelerator=xla", "--set", "train.workers=2", "--set", "health.matmul_size=128")
    command = [str(MILLRACE), "doctor", "--deep", "--json", "--workspace", str(tmp_path / "workspace"), *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    report = DoctorReport.model_validate(json.loads(done.stdout))
    found = {finding.name: finding.found for finding in report.findings}
    assert report.failed == 0
    assert "all-reduce over 2 workers is exact" in found["collectives, 2 workers"]
    assert "all_reduce_bus_gb_s" in found["collectives, 2 workers"]
    for workers in ("1 worker", "2 workers"):
        assert int(found[f"compilations, {workers}"].partition(" graphs, ")[0]) >= 3
        assert found[f"the checkpoint read, {workers}"].endswith(", 0 new")
