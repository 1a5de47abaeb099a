"""The ladder of `millrace smoke` by real worker processes on PyTorch/XLA, with one worker and then with two."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tasks.upkeep.smoke_report import SmokeReport
from tests.support.workspace.shop import MILLRACE

pytestmark = [
    pytest.mark.pipeline,
    pytest.mark.proof,
]  # its parts: tests/tasks/upkeep
SECONDS = 900


def test_two_workers_climb_to_the_top_on_xla(tmp_path: Path) -> None:
    settings = ("--set", "accelerator=xla", "--set", "train.workers=2", "--set", "health.matmul_size=128")
    command = [str(MILLRACE), "smoke", "--json", "--workspace", str(tmp_path / "workspace"), *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    report = SmokeReport.model_validate(json.loads(done.stdout))
    rungs = {(rung.name, rung.workers): rung for rung in report.rungs}
    assert all(rung.passed for rung in report.rungs)
    assert {workers for _, workers in rungs} == {1, 2}
    assert "all-reduce over 2 workers is exact" in rungs["collectives", 2].sentences[0]
    assert rungs["collectives", 2].numbers["all_reduce_bus_gb_s"] > 0
    for workers in (1, 2):
        assert rungs["compilations", workers].numbers["graphs"] >= 3
        assert rungs["the checkpoint read", workers].sentences[0].endswith(", 0 new")
