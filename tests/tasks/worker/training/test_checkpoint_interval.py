import pytest

from tasks.worker.training.checkpoint_interval import CheckpointInterval, Failures, best_seconds


class Watch:
    """A clock that is set by hand, and the seconds that writes have cost so far."""

    now = 0.0
    stalled = 0.0

    def interval(self, every: str, failures: Failures | None = None) -> CheckpointInterval:
        return CheckpointInterval(every, failures, lambda: self.stalled, lambda: self.now)


def test_the_best_interval_is_young_and_dalys_but_never_stalls_more_than_a_hundredth():
    assert best_seconds(0.5, 3600.0, measured=True) == 60.0
    assert best_seconds(0.5, 50.0, measured=True) == 50.0, "sqrt(50) would be faster than the writes allow"


def test_a_training_that_fails_often_does_not_wait_long_for_its_first_checkpoint():
    interval = Watch().interval("auto", Failures(failed=5, attempts=5, seconds=250.0))
    assert interval.seconds == 10.0, "with the limit on stalls it would be 100, and each attempt fails after 50"


def test_steps_are_counted_from_the_start_of_the_lineage_and_the_clock_does_not_matter():
    watch = Watch()
    interval = watch.interval("3 steps")
    watch.now = 1e6
    assert [step for step in range(1, 10) if interval.is_due_by_steps(step)] == [3, 6, 9]
    assert not interval.has_passed


def test_seconds_count_from_the_last_write():
    watch = Watch()
    interval = watch.interval("300 seconds")
    assert not any(interval.is_due_by_steps(step) for step in range(1000))
    found = []
    for watch.now in (299.0, 301.0, 400.0, 602.0):
        found.append(interval.has_passed)
        if interval.has_passed:
            interval.agree(True)
            assert interval.wanted
            interval.restart()
            assert not interval.wanted
    assert found == [False, True, False, True]


def test_a_wish_stands_until_a_checkpoint_is_written():
    interval = Watch().interval("300 seconds")
    interval.agree(True)
    interval.agree(False)
    assert interval.wanted


def test_auto_assumes_a_second_for_a_write_until_one_is_measured():
    watch = Watch()
    interval = watch.interval("auto", Failures(failed=4, attempts=5, seconds=80_000.0))
    assert interval.seconds == 200.0  # sqrt(2 * 1 * 20000)
    interval.restart()
    watch.stalled = 0.25
    assert interval.seconds == 100.0
    interval.restart()
    watch.stalled, watch.now = 2.25, 500.0
    use = interval.use()
    assert (use.every, use.written, use.seconds, use.write_seconds) == ("auto", 2, pytest.approx(212.1), 1.125)
    assert (use.seconds_between_failures, use.failures, use.attempts) == (20_000.0, 4, 5)
    assert use.stalled_share == 2.25 / 500


def test_only_the_first_worker_knows_when_auto_is_due():
    watch = Watch()
    interval = watch.interval("auto")
    watch.now = 1e9
    assert (interval.seconds, interval.has_passed) == (None, False)
