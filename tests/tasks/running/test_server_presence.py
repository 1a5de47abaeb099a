"""A flow run whose Prefect server is away for a while, or stays away; the server's answers are made up."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from infra import prefect_health
from tasks.foundation.errors import HostError, ServerError
from tasks.running import server_presence
from tasks.running.context import override_context
from tasks.running.server_presence import PATIENCE_SECONDS, await_server, repeat_until_served


class Machine:
    """A clock that only sleeps move, a server that is away for `away` seconds, and the command in front of it."""

    def __init__(self, away: float, restarts: Callable[[float], Any] = lambda seconds: None) -> None:
        self.time, self.away, self.restarts = 0.0, away, restarts
        self.asked = 0
        self.given_up: list[Exception] = []

    def clock(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def answers(self, url: str) -> bool:
        self.asked += 1
        return self.time >= self.away

    def restart(self, seconds: float) -> None:
        self.restarts(seconds)

    def give_up(self, error: Exception) -> None:
        self.given_up.append(error)

    def wait(self, failed: Exception | None = None) -> None:
        with override_context(keeper=self):
            await_server(failed, self.clock, self.sleep)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    def make(*arguments: Any) -> Machine:
        made = Machine(*arguments)
        monkeypatch.setattr(prefect_health, "answers", made.answers)
        return made

    monkeypatch.setattr(server_presence.flow_run, "id", "a-run", raising=False)
    monkeypatch.setattr(server_presence.PREFECT_API_URL, "value", lambda: "http://127.0.0.1:1/api")
    return make


@pytest.mark.parametrize("away", [5.0, 60.0])
def test_a_server_that_comes_back_is_waited_for_and_said(machine, caplog, away) -> None:
    here = machine(away)
    here.wait()
    assert away <= here.time < away + 11
    assert here.asked < 15, "with longer and longer pauses"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "http://127.0.0.1:1/api does" in said[0]
    assert "answers again" in said[1]
    assert not here.given_up


def test_a_server_that_stays_away_ends_the_run_in_its_own_class(machine) -> None:
    here = machine(1e9)
    with pytest.raises(ServerError, match=r"75 s\. .* same command"):
        here.wait()
    assert here.time == PATIENCE_SECONDS
    assert len(here.given_up) == 1


def test_what_failed_before_counts_more_than_the_server(machine) -> None:
    here, failed = machine(1e9), ValueError("a bad row")
    here.wait(failed)
    assert here.given_up == [failed]


def test_a_server_of_this_machine_is_started_again(machine) -> None:
    here = machine(1e9)
    here.restarts = lambda seconds: setattr(here, "away", 0.0)
    here.wait()
    assert here.time == 0.0


def test_why_it_does_not_start_again_is_said(machine) -> None:
    def fail(seconds: float) -> None:
        here.time += seconds / 2
        raise HostError("its disk is full")

    here = machine(1e9, fail)
    with pytest.raises(ServerError, match=r"its disk is full\."):
        here.wait()
    assert here.time == pytest.approx(PATIENCE_SECONDS)


def test_outside_of_a_flow_run_nobody_asks(machine, monkeypatch) -> None:
    here = machine(1e9)
    monkeypatch.setattr(server_presence.flow_run, "id", None)
    here.wait()
    assert here.asked == 0


def refusal(status: int) -> httpx.HTTPStatusError:
    """What Prefect's client raises after its own tries."""
    request = httpx.Request("POST", "http://127.0.0.1:1/api/task_runs/")
    return httpx.HTTPStatusError(f"answered with {status}", request=request, response=httpx.Response(status))


@pytest.mark.parametrize("error", [refusal(503), refusal(429), httpx.ReadTimeout("slow")])
def test_a_server_that_is_full_or_slow_is_asked_again(machine, error) -> None:
    here, answers = machine(0.0), iter([error, error, "a task run"])

    def request() -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert repeat_until_served(request, here.clock, here.sleep) == "a task run"
    assert 0 < here.time < 10


@pytest.mark.parametrize(("status", "at_least", "below"), [(503, PATIENCE_SECONDS, 90.0), (404, 0.0, 1.0)])
def test_a_server_that_stays_full_and_a_wrong_call_end_as_server(machine, status, at_least, below) -> None:
    here = machine(0.0)

    def request() -> None:
        raise refusal(status)

    with pytest.raises(ServerError, match=rf"with {status}"):
        repeat_until_served(request, here.clock, here.sleep)
    assert at_least <= here.time < below
