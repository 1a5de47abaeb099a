"""The interval between checkpoints, and the failures that it is chosen by."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.outcomes import Phases
from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass
from tasks.runs import ledger
from tasks.worker.training.checkpoint_interval import (
    ASSUMED_SECONDS_BETWEEN,
    CheckpointInterval,
    Failures,
    best_seconds,
    recorded_failures,
)
from tests.support.workspace.specs import spec_of


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


LOST = FailureClass.HOST


def record(store: DirectoryStore, run_key: str, endings: Sequence[FailureClass | None], stage: Stage = Stage.train):
    """Attempts of a hundred seconds and as long in the queue, that ended so."""
    for attempt, failure in enumerate(endings, start=1):
        spec = spec_of(stage, 1, attempt=attempt).model_copy(update={"run_key": run_key})
        begun = ledger.OpenAttempt.begin(store, spec).record
        changes = {"failure": failure, "ended_at": begun.started_at, "seconds": Phases(queued=100.0, lost=100.0)}
        store.write(f"{spec.attempt_prefix}/ledger.json", begun.model_copy(update=changes).to_json())


def train(store: DirectoryStore, folder: Path, run_key: str, step: int, lineage: str = "main"):
    """A checkpoint of a run, of which only the manifest counts here."""
    (folder / str(step)).mkdir()
    commit(store, f"lineages/{lineage}/step-{step:08d}", folder / str(step), "checkpoint", {"run_key": run_key})


def test_attempts_of_the_lineages_trainings_count_and_their_time_in_the_queue_does_not(store, tmp_path):
    train(store, tmp_path, "one", 10)
    train(store, tmp_path, "two", 20)
    train(store, tmp_path, "elsewhere", 30, lineage="other")
    record(store, "one", [LOST, LOST, None])
    record(store, "two", [FailureClass.HANG, None])
    record(store, "now", [FailureClass.STORE])
    record(store, "elsewhere", [LOST] * 5)
    record(store, "two", [LOST] * 5, Stage.infer)
    found = recorded_failures(store, "main", "now")
    assert (found.failed, found.attempts, found.seconds) == (4, 6, 600.0)
    assert found.seconds_between == 150.0


def test_failures_that_no_checkpoint_helps_against_do_not_count(store):
    endings = [FailureClass.CAPACITY, FailureClass.CODE, FailureClass.CONFIG, FailureClass.CANCELLED, LOST]
    record(store, "now", endings)
    assert recorded_failures(store, "main", "now").failed == 1


def test_few_failures_say_little(store):
    record(store, "now", [LOST, LOST])
    found = recorded_failures(store, "main", "now")
    assert (found.enough, found.seconds_between) == (False, ASSUMED_SECONDS_BETWEEN)


def test_an_attempt_that_still_runs_and_an_unreadable_record_count_for_nothing(store, tmp_path):
    train(store, tmp_path, "damaged", 10)
    record(store, "damaged", [LOST, LOST])
    store.write("runs/damaged/train/attempt-2/ledger.json", b"{")
    store.write("lineages/main/step-00000020/MANIFEST.json", b"{")
    ledger.OpenAttempt.begin(store, spec_of(Stage.train, 1).model_copy(update={"run_key": "now"}))
    assert recorded_failures(store, "main", "now") == (1, 1, 100.0), "the first attempt of the damaged run alone"
