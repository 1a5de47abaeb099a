"""Three disturbed runs with nothing replaced: the first ones of a seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.chaos.campaign import hold
from tests.benchmarks.chaos.draws import draws
from tests.benchmarks.chaos.local import LocalPlace

pytestmark = pytest.mark.proof


def test_three_disturbed_runs_end_as_if_undisturbed(tmp_path: Path) -> None:
    report = hold(LocalPlace, tmp_path / "chaos", 1, draws(1, 3, LocalPlace.whole_share), print)
    assert [(run.number, run.violations) for run in report.runs] == [(1, ()), (2, ()), (3, ())]
    assert len({run.act for run in report.runs}) == 3
