"""One seeded scheduler for several processes in this one: each request to a store, sleep and renewal is a turn.

A process is a greenlet that runs real code until its next request, then another one has its turn. Time is a number that
the scheduler moves. A seed decides everything: who is next, who is killed, suspended or restarted, whose clock jumps.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import greenlet

from tasks.foundation.clock import Clock, Repeating
from tasks.foundation.errors import StageError

START = 1_800_000_000.0  # seconds since 1970
MOST_TURNS = 20_000  # of one interleaving; the longest that ends takes a fifth of it
LONG_SECONDS = 1e6  # a sleep that something ends
WRITES = ("put if", "put", "del if", "delete", "copy", "link", "rename", "compare", "unlink", "move")
_PAUSES_SECONDS = (1.0, 30.0, 70.0, 200.0)  # a lease lives for 60
_JUMPS_SECONDS = (-7200.0, -90.0, 90.0, 7200.0)


class Killed(BaseException):
    """The end of a process by SIGKILL: nothing catches it, and the process sends no request after it."""


class Turn(NamedTuple):
    """One turn of a process, as a failure prints it."""

    at: float  # seconds since the begin
    process: str
    what: str
    key: str

    def __str__(self) -> str:
        return f"{self.at:9.3f}  {self.process:12} {self.what:8} {self.key}"


class Machine:
    """A computer with clocks of its own."""

    def __init__(self, name: str, uptime: float) -> None:
        self.name, self.ahead = name, 0.0  # seconds that its wall clock is ahead of the truth
        self.booted_before = uptime  # seconds since boot at the begin


@dataclass
class Process:
    """One command of a person or a schedule, on a machine."""

    name: str
    machine: Machine
    body: Callable[[], Any]
    result: Any = None
    error: BaseException | None = None
    dead: bool = False
    ended: bool = False
    asleep_until: float = 0.0  # suspended until then
    strands: list[Strand] = field(default_factory=list)

    @property
    def command(self) -> str:
        """The name without the number of the restart."""
        return self.name.partition("'")[0]


@dataclass
class Strand:
    """A thread of a process: its main one, or one that renews a lease."""

    process: Process
    greenlet: Any
    main: bool
    wakes_at: float = 0.0
    sooner: Callable[[], bool] | None = None  # true: it need not sleep on
    pending: tuple[str, str] = ("begin", "")
    stopped: bool = False

    def is_ready(self, time: float) -> bool:
        """Return True if it may have its turn."""
        if self.process.asleep_until > time:
            return False
        return self.wakes_at <= time or (self.sooner is not None and self.sooner())


class Disturbances(NamedTuple):
    """Numbers of disturbances in one interleaving, each at a moment that the seed decides."""

    kills: int = 0
    pauses: int = 0
    jumps: int = 0
    lost_replies: float = 0.0  # share of the writes to a bucket that succeed and are repeated by the client
    undecided: float = 0.0  # share of the conditional writes that a bucket answers with 409
    within_turns: int = 150  # first turns, in which kills, pauses and jumps come


class Scheduler:
    """Runs processes to their end. `watch` is called after each turn that changed the store."""

    def __init__(self, rng: random.Random, disturbances: Disturbances) -> None:
        self.rng, self.disturbances = rng, disturbances
        self.time = 0.0
        self.turns = 0
        self.trace: list[Turn] = []
        self.processes: list[Process] = []
        self.violation = ""
        self._strands: list[Strand] = []
        self._by_greenlet: dict[Any, Strand] = {}
        self._main = greenlet.getcurrent()
        self._due = self._moments()
        self._fair = rng.random() < 0.5
        self._ranks: dict[int, float] = {}

    # Processes

    def start(self, name: str, machine: Machine, body: Callable[[], Any], after_seconds: float = 0.0) -> Process:
        """Add a process, which begins after a while."""
        process = Process(name, machine, body)
        self.processes.append(process)

        def run() -> None:
            try:
                process.result = body()
            except Killed as killed:
                process.error = killed
            except (StageError, OSError) as error:
                process.error = error
            except Exception as error:
                process.error = error
                self.fail(f"{name} ended with {type(error).__name__}: {error}")
            process.ended = True

        self._add(process, run, main=True, wakes_at=self.time + after_seconds)
        return process

    def kill(self, process: Process) -> None:
        """End a process between two requests."""
        process.dead = True
        self.trace.append(Turn(self.time, process.name, "KILLED", ""))
        for strand in process.strands:
            if not strand.greenlet.dead:
                if strand.greenlet:
                    strand.greenlet.throw(Killed)
                else:
                    strand.greenlet = None
        process.ended = True
        self._strands = [strand for strand in self._strands if strand.process is not process]

    @property
    def current(self) -> Strand | None:
        """The strand whose turn it is; None outside of all processes, as in preparations and checks."""
        return self._by_greenlet.get(greenlet.getcurrent())

    def calm_down(self) -> None:
        """End all disturbances."""
        self.disturbances, self._due = Disturbances(), []

    # The turn of a process ends with one of these

    def request(self, what: str, key: str) -> None:
        """End the turn before a request to a store; the next one begins with it."""
        strand = self.current
        if strand is None:
            return
        if strand.process.dead:
            raise Killed
        strand.pending = (what, key)
        self._main.switch()
        if strand.process.dead:
            raise Killed

    def sleep(self, seconds: float, sooner: Callable[[], bool] | None = None) -> None:
        """End the turn; the next one comes after the seconds at the earliest, or once `sooner` is true."""
        strand = self.current
        if strand is None:
            return
        if strand.process.dead:
            raise Killed
        strand.pending, strand.wakes_at, strand.sooner = ("sleep", f"{seconds:.0f} s"), self.time + seconds, sooner
        self._main.switch()
        strand.sooner, strand.wakes_at = None, self.time
        if strand.process.dead:
            raise Killed

    def repeat(self, act: Callable[[], None], every_seconds: float) -> Repeating:
        """Call `act` beside the current strand again and again."""
        mine = self.current
        if mine is None:
            return _Never()
        process = mine.process

        def run() -> None:
            with contextlib.suppress(Killed):
                while True:
                    self.sleep(every_seconds)
                    if strand.stopped:
                        return
                    act()

        strand = self._add(process, run, main=False, wakes_at=self.time)
        strand.pending = ("renew", "")
        return _Repeated(self, strand)

    # All turns

    def run(self) -> None:
        """Give turns until all processes have ended, or something is violated."""
        while not self.violation and any(not process.ended for process in self.processes):
            if self.turns >= MOST_TURNS:
                waiting = [strand.process.name for strand in self._strands if strand.main]
                self.fail(f"{', '.join(waiting)} did not end within {MOST_TURNS} turns")
                break
            self._disturb()
            strand = self._next()
            if strand is None:
                continue
            self.turns += 1
            self.time += self.rng.random() * 0.1
            self.trace.append(Turn(self.time, strand.process.name, *strand.pending))
            strand.greenlet.switch()
            if strand.greenlet.dead:
                self._strands.remove(strand)
                del self._by_greenlet[strand.greenlet]
        for process in self.processes:
            if not process.ended:
                self.kill(process)

    def fail(self, sentence: str) -> None:
        """Record the first violation; the interleaving ends with this turn."""
        self.violation = self.violation or sentence

    def _add(self, process: Process, run: Callable[[], None], main: bool, wakes_at: float) -> Strand:
        strand = Strand(process, greenlet.greenlet(run, parent=self._main), main, wakes_at)
        process.strands.append(strand)
        self._strands.append(strand)
        self._by_greenlet[strand.greenlet] = strand
        return strand

    def _next(self) -> Strand | None:
        ready = [strand for strand in self._strands if strand.is_ready(self.time)]
        if not ready:
            self.time = min(max(strand.wakes_at, strand.process.asleep_until) for strand in self._strands)
            return None
        if len(ready) == 1:
            return ready[0]
        if self._fair:
            return self.rng.choice(ready)
        if self.rng.random() < 0.1:  # one process runs ahead of the others until the ranks change
            self._ranks[id(self.rng.choice(ready).process)] = self.rng.random()
        return max(ready, key=lambda strand: self._ranks.setdefault(id(strand.process), self.rng.random()))

    def _moments(self) -> list[tuple[int, str, bool]]:
        """Return turns, disturbances, and if each waits for a process that is about to write: few turns are writes."""
        wanted = self.disturbances
        acts = ["kill"] * wanted.kills + ["pause"] * wanted.pauses + ["jump"] * wanted.jumps
        return sorted((self.rng.randrange(1, wanted.within_turns), act, self.rng.random() < 0.5) for act in acts)

    def _disturb(self) -> None:
        while self._due and self._due[0][0] <= self.turns:
            _, act, before_write = self._due[0]
            alive = [process for process in self.processes if not process.ended]
            if before_write:
                alive = [process for process in alive if process.strands[0].pending[0] in WRITES]
            if not alive:
                return
            self._due.pop(0)
            process = self.rng.choice(alive)
            if act == "kill":
                self.kill(process)
                again = f"{process.command}'{1 + sum(each.command == process.command for each in self.processes)}"
                self.start(again, process.machine, process.body, self.rng.choice((0.0, 1.0, 90.0)))
            elif act == "pause":
                pause = self.rng.choice(_PAUSES_SECONDS)
                process.asleep_until = self.time + pause
                self.trace.append(Turn(self.time, process.name, "PAUSED", f"{pause:.0f} s"))
            else:
                process.machine.ahead += self.rng.choice(_JUMPS_SECONDS)
                self.trace.append(Turn(self.time, process.machine.name, "JUMP", f"{process.machine.ahead:+.0f} s"))


class _Repeated:
    def __init__(self, scheduler: Scheduler, strand: Strand) -> None:
        self._scheduler, self._strand = scheduler, strand

    def stop(self, patience_seconds: float) -> bool:
        """A renewal that is under way ends first, as `Thread.join` waits for it."""
        self._strand.stopped = True
        self._strand.wakes_at = min(self._strand.wakes_at, self._scheduler.time)
        self._scheduler.sleep(patience_seconds, lambda: bool(self._strand.greenlet.dead))
        return bool(self._strand.greenlet.dead)


class _Never:
    """In preparations no time passes, so nothing is renewed."""

    def stop(self, patience_seconds: float) -> bool:
        return True


class Guard:
    """In place of `threading.Lock`: a strand that waits for it ends its turn."""

    def __init__(self, clock: SimulatedClock) -> None:
        self._clock, self._held = clock, False

    def __enter__(self) -> None:
        while self._held and self._clock.scheduler is not None:
            self._clock.scheduler.sleep(LONG_SECONDS, lambda: not self._held)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class SimulatedClock(Clock):
    """The clocks of the machine whose process has its turn."""

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None

    def Lock(self) -> Guard:  # noqa: N802
        """Return a lock, as the module `threading` does."""
        return Guard(self)

    def seconds(self) -> float:
        machine = self._machine()
        return START + self._time() + (machine.ahead if machine else 0.0)

    def uptime(self) -> float:
        machine = self._machine()
        return self._time() + (machine.booted_before if machine else 0.0)

    def boot(self) -> str:
        machine = self._machine()
        return machine.name if machine else "preparations"

    def sleep(self, seconds: float) -> None:
        if self.scheduler is not None:
            self.scheduler.sleep(seconds)

    def repeat(self, act: Callable[[], None], every_seconds: float, name: str) -> Repeating:
        return self.scheduler.repeat(act, every_seconds) if self.scheduler is not None else _Never()

    @contextlib.contextmanager
    def of(self, scheduler: Scheduler) -> Iterator[None]:
        """Tell the time of this scheduler inside the block."""
        self.scheduler = scheduler
        try:
            yield
        finally:
            self.scheduler = None

    def _time(self) -> float:
        return self.scheduler.time if self.scheduler is not None else 0.0

    def _machine(self) -> Machine | None:
        strand = self.scheduler.current if self.scheduler is not None else None
        return strand.process.machine if strand is not None else None
