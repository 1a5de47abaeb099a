import signal
from types import SimpleNamespace

import pytest

from tasks.worker.process import sigterm
from tasks.worker.process.sigterm import RUNNER_PID, StopRequest


def no_handler(signum: int, frame: object) -> None:
    raise AssertionError("not inside the block")


@pytest.fixture(autouse=True)
def handler_before():
    before = signal.signal(signal.SIGTERM, no_handler)
    yield
    signal.signal(signal.SIGTERM, before)


def test_the_first_signal_is_kept_and_the_earlier_handler_restored():
    request = StopRequest()
    with request.delay_sigterm():
        assert not request.requested
        signal.raise_signal(signal.SIGTERM)
        assert request.requested
    assert signal.getsignal(signal.SIGTERM) is no_handler


@pytest.mark.parametrize(("seconds", "ends"), [(0.5, False), (sigterm.SAME_SECONDS + 0.1, True)])
def test_a_second_signal_ends_the_process_unless_it_follows_at_once(
    monkeypatch: pytest.MonkeyPatch, seconds: float, ends: bool
):
    clock = iter([100.0, 100.0 + seconds])
    monkeypatch.setattr(sigterm, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    ended = False
    with StopRequest().delay_sigterm():
        signal.raise_signal(signal.SIGTERM)
        try:
            signal.raise_signal(signal.SIGTERM)
        except SystemExit:
            ended = True
    assert ended == ends


def test_a_signal_after_the_runners_death_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(RUNNER_PID, str(2**30))
    with pytest.raises(SystemExit, match="stopped by signal 15"), StopRequest().delay_sigterm():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is no_handler
