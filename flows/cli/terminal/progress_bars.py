"""The progress of long work for people: bars in a terminal, a plain line every few seconds elsewhere.

It is printed on standard error.
"""

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import ProgressColumn, Task, TaskID
from rich.text import Text

from flows.presentation.wording import shortened, visible
from tasks.contracts.jobs import Progress
from tasks.foundation.clock import duration

LINE_SECONDS = 5.0  # between two plain lines about the same work
FEWEST, MOST = 8, 30  # characters of a bar; a narrow terminal gets none, so that the numbers stay readable
GAP = "  "

_ROOT = Path(__file__).resolve().parents[3]
_OURS = tuple(f"{_ROOT / folder}/" for folder in ("flows", "tasks", "infra"))
_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "millrace")


class Lines:
    """Plain lines: the begin of each kind of work, its end, and between them one every few seconds at most."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._begun: dict[str, tuple[float, int]] = {}  # name -> time and count of the first report
        self._last: dict[str, tuple[float, Progress]] = {}  # name -> time and content of the last line

    def log(self, line: str) -> None:
        """Output of the workers is for the log, not for here."""

    def say(self, line: str) -> None:
        """Print a line that people should not miss."""
        print(visible(line), file=self._stream, flush=True)

    def progress(self, progress: Progress) -> None:
        """Show it, unless the same work was shown a moment ago; its end is always shown, once."""
        now = self._clock()
        last = self._last.get(progress.what)
        if last is None or progress.done < last[1].done:
            self._begun[progress.what] = now, progress.done
        elif last[1] == progress or (progress.done < progress.total and now - last[0] < LINE_SECONDS):
            return
        self._last[progress.what] = now, progress
        self.say(self._line(progress, now))

    def _line(self, progress: Progress, now: float) -> str:
        begun_at, begun_with = self._begun[progress.what]
        parts = [f"{progress.what}: {progress.done} of {progress.total}", progress.note]
        if begun_with < progress.done < progress.total:
            seconds = (now - begun_at) / (progress.done - begun_with) * (progress.total - progress.done)
            parts.append(f"{duration(seconds)} left")
        return ", ".join(filter(None, parts))


class BarLine(ProgressColumn):
    """The whole line of a bar, never wider than the console: name and numbers first, then bar and note as they fit."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        """Return the line of some work."""
        total = round(task.total or 0)
        counted = f"{round(task.completed):,}/{total:,}".rjust(2 * len(f"{total:,}") + 1)
        timed = task.finished_time if task.finished else task.time_remaining
        time = f"{duration(timed)}{'' if task.finished else ' left'}" if timed is not None else ""
        numbers = GAP.join((counted, time.ljust(len("59 min 59 s left"))))
        name, note = f"{task.description:<9}", task.fields["note"]
        room = self._console.width - len(GAP.join((name, numbers))) - len(GAP)
        bar = min(MOST, max(room - len(note) - len(GAP), FEWEST if room >= FEWEST else 0))
        line = Text(name + GAP, no_wrap=True, end="")
        if bar:
            sign, done = "-" if self._console.options.ascii_only else "━", round(bar * task.completed / max(total, 1))
            line.append(sign * done, "bar.complete").append(sign * (bar - done), "bar.back").append(GAP)
            room -= bar + len(GAP)
        line.append(numbers, "progress.remaining")
        return line.append(GAP + shortened(note, room)) if room > 1 and note else line


class Bars:
    """One bar for each kind of work, in a terminal."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def log(self, line: str) -> None:
        """Output of the workers is for the log, not for here."""

    def say(self, line: str) -> None:
        """Print a line that people should not miss, above the bars."""
        self._bars.console.print(visible(line), markup=False, highlight=False, soft_wrap=True)

    def progress(self, progress: Progress) -> None:
        """Move the bar of this work, or begin it again if it went back."""
        task = self._tasks.get(progress.what)
        if task is None:
            task = self._tasks[progress.what] = self._bars.add_task(progress.what, total=progress.total, note="")
        elif progress.done < self._bars.tasks[self._bars.task_ids.index(task)].completed:
            self._bars.reset(task, total=progress.total)
        self._bars.update(task, completed=progress.done, total=progress.total, note=progress.note)


@contextlib.contextmanager
def display(stream: TextIO | None = None) -> Iterator[Lines | Bars]:
    """Give a listener that shows progress, and warnings of this project's code, on `stream` (standard error)."""
    output: TextIO = sys.stderr if stream is None else stream
    console = Console(file=output)
    if not console.is_terminal:
        lines = Lines(output)
        with _warnings(lines.say):
            yield lines
        return
    # Standard output stays itself: it may be a file, or the JSON that a script reads.
    with RichProgress(BarLine(console), console=console, redirect_stdout=False) as progress:
        bars = Bars(progress)
        with _warnings(bars.say):
            yield bars


class _Warnings(logging.Handler):
    """Passes on the warnings of this project's code. Prefect's own log would repeat every failure twice."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        if record.pathname.startswith(_OURS):
            self._say(f"{record.levelname.lower()}: {record.getMessage()}")


@contextlib.contextmanager
def _warnings(say: Callable[[str], None]) -> Iterator[None]:
    handler = _Warnings(say)
    for name in _LOGGERS:
        logging.getLogger(name).addHandler(handler)
    try:
        yield
    finally:
        for name in _LOGGERS:
            logging.getLogger(name).removeHandler(handler)
