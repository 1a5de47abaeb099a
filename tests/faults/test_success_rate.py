"""A run of `make success` with one fault of each kind: it survives them, and the ledger has them."""

from __future__ import annotations

from pathlib import Path

from tasks.contracts.runs import RunState
from tests.benchmarks.success import by_class, measure
from tests.support.processes.prefect_server import PrefectServer
from tests.support.processes.short_workers import CLASSES


def test_a_run_survives_its_faults_and_the_ledger_has_each_of_them(prefect: PrefectServer, tmp_path: Path) -> None:
    ledger, injected, _ = measure(tmp_path, prefect, 1, 380)
    assert set(injected) == set(CLASSES)
    assert [run.state for run in ledger.runs] == [RunState.RELEASED]
    assert (ledger.whole.run_success_rate, ledger.whole.attempts) == (1.0, 7 + 5 - 1)
    assert ledger.whole.attempts_by_class == by_class(injected)
    assert ledger.whole.unrecovered == 0
