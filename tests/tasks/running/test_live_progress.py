"""Speed and text of the live progress; its page in the Prefect UI is tested with `publish`."""

import logging
import threading

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from tasks.contracts.runner import Progress
from tasks.running.live_progress import LiveProgress, Throughput, percent, sentence

LOGGER = logging.getLogger("millrace.test")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def step(done: int, total: int = 400, note: str = "") -> Progress:
    return Progress(what="train", done=done, total=total, note=note)


def paced(moments: list[tuple[float, int]]) -> tuple[Throughput, Clock]:
    """The pace of work that reported these steps as done after these seconds."""
    clock = Clock()
    pace = Throughput(clock)
    for seconds, done in moments:
        clock.now = 1000.0 + seconds
        pace.add(step(done))
    return pace, clock


@pytest.mark.parametrize(
    ("moments", "expected"),
    [
        ([], None),
        ([(0, 5)], None),
        ([(0, 0), (10, 32)], 3.2),
        ([(0, 120), (10, 152)], 3.2),  # resumed: what was done before is no speed
        ([(0, 0), (0, 32)], None),
        ([(0, 5), (10, 5)], None),  # no step in between
        ([(0, 300), (10, 400), (20, 100), (30, 110)], 1.0),  # went back to a checkpoint
        ([(0, 0), (60, 600), (120, 660)], 1.0),  # the first minute is forgotten
        ([(0, 0), (200, 5), (400, 15)], 0.05),  # slow, but known
    ],
)
def test_speed_counts_the_last_minute(moments: list[tuple[float, int]], expected: float | None):
    assert paced(moments)[0].per_second == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("progress", "per_second", "line"),
    [
        (step(120, note="loss 1.93"), 3.5, "train: step 120 of 400, 3.5 steps/s, 1 min 20 s left, loss 1.93"),
        (step(120), None, "train: step 120 of 400"),
        (step(400), 3.5, "train: step 400 of 400, 3.5 steps/s"),
        (step(120), 0.02, "train: step 120 of 400, 50 s a step, 3 h 53 min left"),
        (step(120, total=800), 3.5, "train: step 120 of 800, 3.5 steps/s, 3 min 14 s left"),
        (Progress(what="infer", done=4096, total=12000), 850.0, "train: text 4,096 of 12,000, 850.0 texts/s, 9 s left"),
    ],
)
def test_the_line_says_how_far_how_fast_and_how_long(progress: Progress, per_second: float | None, line: str):
    assert sentence("train", progress, per_second) == line


@pytest.mark.parametrize(
    ("moments", "later", "quiet"),
    [
        ([], 1000, None),
        ([(0, 5)], 1000, None),  # no pace is known: it may be compiling
        ([(0, 5), (1, 10)], 9, None),
        ([(0, 5), (1, 10)], 40, 40.0),
        ([(0, 5), (20, 6), (40, 7)], 60, None),
        ([(0, 5), (20, 6), (40, 7)], 61, 61.0),
        ([(0, 5), (1, 10), (31, 10)], 10, 40.0),  # reported again, but no further
        ([(0, 390), (1, 400)], 1000, None),  # all is done
        ([(0, 5), (1, 10), (2, 5)], 1000, None),  # went back
    ],
)
def test_work_without_a_step_for_long_is_quiet(moments: list[tuple[float, int]], later: float, quiet: float | None):
    pace, clock = paced(moments)
    clock.now += later
    assert pace.quiet_seconds == quiet


def test_quiet_work_has_no_speed_and_no_time_left():
    line = sentence("train", step(120, note="loss 1.93"), 4786.0, 40.0)
    assert line == "train: step 120 of 400, no step for 40 s, loss 1.93"


@pytest.mark.parametrize(("done", "total", "share"), [(120, 400, 30.0), (0, 0, 0.0), (7, 0, 0.0), (9, 3, 100.0)])
def test_the_percentage_lies_between_0_and_100(done: int, total: int, share: float):
    assert percent(step(done, total)) == share


def test_outside_a_prefect_task_nothing_is_sent():
    threads = threading.active_count()
    live = LiveProgress(LOGGER)
    live.progress(step(5))
    live.end()
    assert threading.active_count() == threads


def test_a_missing_server_delays_nothing_and_is_only_in_the_debug_log(monkeypatch, caplog):
    monkeypatch.setenv("PREFECT__RUNTIME__TASK_RUN__ID", "00000000-0000-0000-0000-000000000001")
    monkeypatch.setenv("PREFECT__RUNTIME__TASK_RUN__NAME", "train 2026-W47")
    caplog.set_level(logging.DEBUG, LOGGER.name)
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api", PREFECT_CLIENT_MAX_RETRIES: 0}):
        live = LiveProgress(LOGGER)
        live.progress(step(5))
        live.progress(step(10))
        live.end()
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "live progress"] or [None]
    if thread is not None:
        thread.join(30)
        assert not thread.is_alive()
    records = [record for record in caplog.records if record.name == LOGGER.name]
    assert {record.levelno for record in records} == {logging.DEBUG}
    assert records[0].getMessage().startswith("progress can't be shown: ")


def test_progress_of_other_stages_is_not_shown(monkeypatch):
    monkeypatch.setenv("PREFECT__RUNTIME__TASK_RUN__ID", "00000000-0000-0000-0000-000000000001")
    threads = threading.active_count()
    LiveProgress(LOGGER).progress(Progress(what="health", done=1, total=3))
    assert threading.active_count() == threads
