"""A few runs of `make success`: its faults are those that the ledger has, and runs survive them."""

from __future__ import annotations

from pathlib import Path

from tasks.contracts.runs import RunState
from tests.benchmarks.success import by_class, measure
from tests.support.processes.prefect_server import PrefectServer


def test_runs_survive_faults_and_the_ledger_has_each_of_them(prefect: PrefectServer, tmp_path: Path) -> None:
    ledger, injected, _ = measure(tmp_path, prefect, 2, 7, "retry.attempts=9")
    assert [run.state for run in ledger.runs] == [RunState.RELEASED] * 2
    assert ledger.whole.run_success_rate == 1.0
    assert ledger.whole.attempts_by_class == by_class(injected)
    assert len(injected) > 2
    assert ledger.whole.unrecovered == 0
