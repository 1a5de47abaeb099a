"""`millrace chaos`: what it refuses, and what it says of a run that did not end as it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.chaos.campaign import ChaosReport, ChaosRun
from flows.chaos.draws import Act
from flows.cli.operation import disturbing
from tasks.contracts.stages import Stage
from tests.support.processes.command import call


def report(*violations: str) -> ChaosReport:
    run = ChaosRun(
        number=7,
        act=Act.kill_worker,
        stage=Stage.train,
        whole=True,
        seconds_until=2.5,
        seconds_lasting=0.0,
        first_end="Released",
        ended="itself",
        seconds=30.0,
        seconds_lost=8.0,
        violations=violations,
    )
    kept = ("/tmp/kept/run-7",) if violations else ()
    return ChaosReport(
        place="Here", seed=3, undisturbed_seconds=22.0, runs=(run,), violations=bool(violations), kept=kept
    )


@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_violation_ends_the_command_with_1_and_says_how_to_repeat_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, as_json: tuple[str, ...]
) -> None:
    monkeypatch.setattr(disturbing, "chaos", lambda *_: report("process 7 goes on"))
    done = call(capsys, "chaos", "--kills", "9", "--seed", "3", *as_json)
    assert done.code == 1
    if not as_json:
        assert "kill-worker  train     1          1          0    0           1             8" in done.out
        assert "Here, seed 3: 0 of 1 run ended as if undisturbed, bit for bit" in done.out
        assert "! 7: process 7 goes on\n  repeat it: millrace chaos --kills 7 --seed 3 --only 7" in done.out
        assert "/tmp/kept/run-7" in done.out
    monkeypatch.setattr(disturbing, "chaos", lambda *_: report())
    assert call(capsys, "chaos", *as_json).code == 0


def test_a_folder_that_is_there_and_a_run_that_is_not_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    done = call(capsys, "chaos", "--workspace", str(tmp_path))
    assert (done.code, done.err) == (78, f"CONFIG: --workspace {tmp_path}: it is there already; name a new folder\n")
    done = call(capsys, "chaos", "--kills", "3", "--only", "5", "--workspace", str(tmp_path / "new"))
    assert (done.code, done.err) == (78, "CONFIG: --only 5: there are --kills 3 runs, counted from 1\n")
    assert not (tmp_path / "new").exists()
