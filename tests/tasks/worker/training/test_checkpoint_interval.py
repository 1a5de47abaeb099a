import pytest

from tasks.worker.training.checkpoint_interval import Failures, Pace, best_seconds


class Watch:
    """A clock that is set by hand, and the seconds that writes have cost so far."""

    now = 0.0
    stalled = 0.0

    def pace(self, every: str, failures: Failures | None = None) -> Pace:
        return Pace(every, failures, lambda: self.stalled, lambda: self.now)


def test_the_best_interval_is_young_and_dalys_but_never_stalls_more_than_a_hundredth():
    assert best_seconds(0.5, 3600.0, measured=True) == 60.0
    assert best_seconds(0.5, 50.0, measured=True) == 50.0, "sqrt(50) would be faster than the writes allow"


def test_a_training_that_fails_often_does_not_wait_long_for_its_first_checkpoint():
    pace = Watch().pace("auto", Failures(failed=5, attempts=5, seconds=250.0))
    assert pace.seconds == 10.0, "with the limit on stalls it would be 100, and each attempt fails after 50"


def test_steps_are_counted_from_the_start_of_the_lineage_and_the_clock_does_not_matter():
    watch = Watch()
    pace = watch.pace("3 steps")
    watch.now = 1e6
    assert [step for step in range(1, 10) if pace.fixed_at(step)] == [3, 6, 9]
    assert not pace.wished


def test_seconds_count_from_the_last_write():
    watch = Watch()
    pace = watch.pace("300 seconds")
    assert not any(pace.fixed_at(step) for step in range(1000))
    found = []
    for watch.now in (299.0, 301.0, 400.0, 602.0):
        found.append(pace.wished)
        if pace.wished:
            pace.agree(True)
            assert pace.wanted
            pace.wrote()
            assert not pace.wanted
    assert found == [False, True, False, True]


def test_a_wish_stands_until_a_checkpoint_is_written():
    pace = Watch().pace("300 seconds")
    pace.agree(True)
    pace.agree(False)
    assert pace.wanted


def test_auto_assumes_a_second_for_a_write_until_one_is_measured():
    watch = Watch()
    pace = watch.pace("auto", Failures(failed=4, attempts=5, seconds=80_000.0))
    assert pace.seconds == 200.0  # sqrt(2 * 1 * 20000)
    pace.wrote()
    watch.stalled = 0.25
    assert pace.seconds == 100.0
    pace.wrote()
    watch.stalled, watch.now = 2.25, 500.0
    use = pace.use()
    assert (use.every, use.written, use.seconds, use.write_seconds) == ("auto", 2, pytest.approx(212.1), 1.125)
    assert (use.seconds_between_failures, use.failures, use.attempts) == (20_000.0, 4, 5)
    assert use.stalled_share == 2.25 / 500


def test_only_the_first_worker_knows_when_auto_is_due():
    watch = Watch()
    pace = watch.pace("auto")
    watch.now = 1e9
    assert (pace.seconds, pace.wished) == (None, False)
