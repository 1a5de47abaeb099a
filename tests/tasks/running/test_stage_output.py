"""Output, heartbeat and progress of a running stage, and its questions to the Prefect server."""

import logging
import threading
import uuid

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from infra import prefect_health
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import Progress
from tasks.contracts.stages import Stage
from tasks.foundation.errors import StoreError
from tasks.running import stage_output
from tasks.running.stage_output import Heartbeat, LiveProgress, Throughput, percent, sentence, state_of
from tasks.runs import ledger
from tests.support.pages.golden import Golden
from tests.support.workspace.specs import spec_of


def test_prefects_patient_client_is_not_asked_while_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(prefect_health, "answers", lambda url: False)
    monkeypatch.setattr(stage_output, "get_client", lambda **_: asked.append(True))
    assert state_of(uuid.uuid4()) is None
    assert asked == []


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times = [100.0]
    monkeypatch.setattr(stage_output, "uptime", lambda: times[0])
    return times


def test_a_sign_is_given_now_and_then_and_one_that_fails_is_left_out(
    store: DirectoryStore, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(Stage.health)
    key = f"{spec.attempt_prefix}/seen.json"
    signs = Heartbeat(ledger.OpenAttempt.begin(store, spec))
    clock[0] = 129.0
    signs.give()
    assert not store.exists(key)
    clock[0] = 131.0
    signs.give()
    assert ledger.SignOfLife.model_validate_json(store.read(key)).seconds == 31.0

    def refuse(*_: object) -> None:
        raise StoreError("slow down")

    clock[0] = 162.0
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "write", refuse)
        signs.give()
    clock[0] = 193.0
    signs.give()
    assert ledger.SignOfLife.model_validate_json(store.read(key)).seconds == 93.0


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


def test_quiet_work_has_no_speed_and_no_time_left(golden: Golden):
    line = sentence("train", step(120, note="loss 1.93"), 4786.0, 40.0)
    golden(line)


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
