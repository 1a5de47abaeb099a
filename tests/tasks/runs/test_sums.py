"""Attempts added up, and sums of runs added."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tasks.contracts.outcomes import Phases
from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass
from tasks.runs.ledger import LedgerRecord
from tasks.runs.sums import Sums, sums_of, total
from tests.support.workspace.attempts import attempt


def outages(attempts: Iterable[LedgerRecord]) -> tuple[int, float, int]:
    found = sums_of(attempts)
    return found.recoveries, found.recovery_seconds, found.unrecovered


def test_an_outage_ends_when_a_later_attempt_works_again() -> None:
    attempts = [
        attempt(1, 0, FailureClass.HOST, productive=20, lost=40),
        attempt(2, 2, FailureClass.CAPACITY, queued=60),
        attempt(3, 10, queued=30, booting=20, compiling=6, restoring=4, productive=100),
    ]
    assert outages(reversed(attempts)) == (1, 9 * 60 + 60.0, 0)


def test_an_outage_ends_with_the_next_stage_where_the_failed_one_turned_out_to_be_done() -> None:
    again = attempt(2, 2, stage=Stage.validate, productive=20)
    following = attempt(1, 3, stage=Stage.evaluate, booting=5, productive=60)
    assert outages([attempt(1, 0, FailureClass.STORE, lost=60), again, following]) == (1, 2 * 60 + 5.0, 0)


def test_an_attempt_that_kept_work_ends_an_outage_though_it_failed_later() -> None:
    attempts = [
        attempt(1, 0, FailureClass.HOST, lost=60),
        attempt(2, 2, FailureClass.HANG, booting=10, productive=50, lost=60),
        attempt(3, 9, booting=30, productive=60),
    ]
    assert outages(attempts) == (2, 70.0 + 5 * 60 + 30.0, 0)


def test_nobody_waits_for_what_was_cancelled_and_an_outage_may_go_on() -> None:
    cancelled = attempt(1, 0, FailureClass.CANCELLED, lost=60)
    assert outages([cancelled, attempt(2, 500, productive=60)]) == (0, 0.0, 0)
    assert outages([attempt(1, 0, FailureClass.DATA, lost=60)]) == (0, 0.0, 1)


def test_another_run_ends_no_outage() -> None:
    attempts = [attempt(1, 0, FailureClass.HOST, lost=60), attempt(2, 2, run_key="other", productive=60)]
    assert outages(attempts) == (0, 0.0, 1)


def test_attempts_add_up() -> None:
    tried = [attempt(number, number, FailureClass.HOST, lost=10.0 * number) for number in (1, 2)]
    tried += [attempt(3, 3, FailureClass.DATA, lost=5.0), attempt(4, 4, booting=5.0, productive=60.0)]
    begun = attempt(1, 5, run_key="other").model_copy(update={"ended_at": None})
    found = sums_of([*tried, begun], vectors=50_000)
    assert (found.runs, found.attempts, found.running, found.succeeded) == (2, 4, 1, 1)
    assert (found.success_rate, found.goodput, found.unrecovered) == (0.25, 0.6, 0)
    assert found.cost == pytest.approx(100 / 3600)
    assert found.dollars_per_million_vectors == pytest.approx(20 * 100 / 3600)
    assert found.seconds == Phases(booting=5.0, productive=60.0, lost=35.0)
    assert found.attempts_by_class == {FailureClass.HOST: 2, FailureClass.DATA: 1}
    assert found.seconds_by_class == {FailureClass.HOST: 30.0, FailureClass.DATA: 5.0}


def test_nothing_has_no_ratios() -> None:
    nothing = total([])
    assert nothing == sums_of([]) == Sums()
    assert (nothing.success_rate, nothing.goodput, nothing.cost, nothing.dollars_per_million_vectors) == (None,) * 4


@pytest.mark.parametrize("seed", range(20))
def test_sums_of_parts_make_the_sum_of_all(seed: int) -> None:
    draw = random.Random(seed)
    runs = [
        [
            attempt(
                number,
                draw.randrange(500),
                draw.choice([None, *FailureClass]),
                draw.choice(list(Stage)),
                f"run-{run}",
                booting=draw.randrange(100) / 8,
                productive=draw.choice([0.0, draw.randrange(1000) / 8]),
            )
            for number in range(draw.randrange(1, 6))
        ]
        for run in range(draw.randrange(1, 8))
    ]
    cut = draw.randrange(len(runs) + 1)
    parts = [total(map(sums_of, part)) for part in (runs[:cut], runs[cut:])]
    assert total(parts) == sums_of(one for run in runs for one in run)
