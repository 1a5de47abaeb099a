"""The progress lines and bars of a command, with a clock and a stream made for the test."""

from __future__ import annotations

import io
import logging
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress as RichProgress

import flows.cli.terminal.progress_bars
from flows.cli.terminal.progress_bars import BarLine, Bars, Lines, display
from tasks.contracts.jobs import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def shown(clock: Clock, *reports: tuple[float, Progress]) -> list[str]:
    """The lines for progress reported at these seconds."""
    stream = io.StringIO()
    lines = Lines(stream, clock=clock)
    for at, progress in reports:
        clock.now = 100.0 + at
        lines.progress(progress)
    return stream.getvalue().splitlines()


def train(done: int, note: str = "") -> Progress:
    return Progress(what="train", done=done, total=40, note=note)


def test_lines_come_every_few_seconds_with_the_time_left(clock: Clock) -> None:
    assert shown(clock, (0, train(0)), (1, train(2)), (10, train(10, "loss 2.31")), (12, train(12))) == [
        "train: 0 of 40",
        "train: 10 of 40, loss 2.31, 30 s left",
    ]


def test_the_last_step_is_shown_once_and_at_once(clock: Clock) -> None:
    assert shown(clock, (0, train(38)), (1, train(40)), (9, train(40))) == ["train: 38 of 40", "train: 40 of 40"]


def test_each_kind_of_work_has_its_own_lines(clock: Clock) -> None:
    infer = Progress(what="infer", done=1, total=9)
    assert shown(clock, (0, train(1)), (1, infer), (2, train(2))) == ["train: 1 of 40", "infer: 1 of 9"]


def test_work_that_starts_again_is_timed_again(clock: Clock) -> None:
    assert shown(clock, (0, train(1)), (100, train(40)), (101, train(2)), (110, train(20))) == [
        "train: 1 of 40",
        "train: 40 of 40",
        "train: 2 of 40",
        "train: 20 of 40, 10 s left",
    ]


@pytest.mark.parametrize(("seconds", "left"), [(59, "59 s"), (95, "1 min 35 s"), (7260, "2 h 01 min")])
def test_time_left_is_in_seconds_minutes_and_hours(clock: Clock, seconds: float, left: str) -> None:
    half = [(0.0, train(0)), (seconds, train(20))]
    assert shown(clock, *half)[-1] == f"train: 20 of 40, {left} left"


def test_output_of_workers_is_not_shown() -> None:
    stream = io.StringIO()
    with display(stream) as listener:
        listener.log("epoch 1")
    assert stream.getvalue() == ""


def test_warnings_of_this_project_are_shown_and_prefects_own_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    logger = logging.getLogger("prefect.task_runs")
    monkeypatch.setattr(logger, "handlers", [])  # Prefect's own, there once a test has used it, want a flow run
    ours = str(Path(flows.cli.terminal.progress_bars.__file__).parents[3] / "tasks" / "running" / "stage.py")
    with display(stream):
        for path, level in ((ours, logging.WARNING), (ours, logging.INFO), ("prefect/task_engine.py", logging.ERROR)):
            logger.handle(logger.makeRecord(logger.name, level, path, 1, "%s drifted", ("label",), None))
    logger.handle(logger.makeRecord(logger.name, logging.WARNING, ours, 1, "too late", (), None))
    assert stream.getvalue() == "warning: label drifted\n"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_bars_keep_their_numbers_at_any_width(width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, no_color=True, width=width)
    with RichProgress(BarLine(console), console=console, auto_refresh=False) as bars:
        listener = Bars(bars)
        for done in (10, 40, 20):  # back to 20: it began again
            listener.progress(train(done, "loss 2.31"))
        listener.progress(
            Progress(what="spans validated", done=1, total=12_000, note="2026-11: 1,937 rows clean, 53 bad")
        )
        listener.say("[bold] is printed as it is")
        assert (bars.tasks[0].completed, bars.tasks[0].finished) == (20, False)
        lines = [each.rstrip() for each in shown_now(bars, width)]
    assert max(map(cell_len, lines)) <= width
    assert "20/40" in lines[0]
    assert "1/12,000" in lines[1]
    assert ("loss 2.31" in lines[0]) == (width >= 60)
    assert ("2026-11: 1,937" in lines[1]) == (width >= 80)
    assert "[bold] is printed as it is" in stream.getvalue()


def shown_now(bars: RichProgress, width: int) -> list[str]:
    """The lines of the bars as they are now."""
    console = Console(file=io.StringIO(), width=width)
    console.print(bars.get_renderable())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()
