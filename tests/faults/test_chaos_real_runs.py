"""Three disturbed runs with nothing replaced: the first ones of a seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.chaos.campaign import campaign
from tests.benchmarks.chaos.draws import draws
from tests.benchmarks.disturbed.local import LocalWorld

pytestmark = pytest.mark.proof


def test_three_disturbed_runs_end_as_if_undisturbed(tmp_path: Path) -> None:
    world = LocalWorld(tmp_path / "chaos", print)
    try:
        report = campaign(world, 1, draws(1, 3, LocalWorld.whole_share), print)
    finally:
        world.stop()
    assert [(run.number, run.violations) for run in report.runs] == [(1, ()), (2, ()), (3, ())]
    assert len({run.act for run in report.runs}) == 3
