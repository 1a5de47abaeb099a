"""One seeded scheduler for several processes in this one: each request to a store, sleep and renewal is a turn.

A process is a greenlet that runs real code until its next request, then another one has its turn. Time is a number that
the scheduler moves. A seed decides everything: who is next, who is killed, suspended or restarted, whose clock jumps.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import greenlet

from tasks.foundation.clock import Repeating
from tasks.foundation.errors import StageError
from tests.simulation.orders import UNTIL_THE_OTHERS_ENDED, WRITES, Order

START = 1_800_000_000.0  # seconds since 1970
MOST_TURNS = 20_000  # of one interleaving; the longest that ends takes a fifth of it
LONG_SECONDS = 1e6  # a sleep that something ends
LONGEST_STILL_SECONDS = 3600.0  # a publication waits for another one for as long as that takes
_WAITING_SECONDS = 1e5  # one that sleeps for longer waits for another one
_LEASE_SECONDS = 65.0  # it lives for 60
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

    command: str
    name: str  # the command, and the number of its restart
    machine: Machine
    body: Callable[[], Any]
    place: int  # among all processes, by their begin
    result: Any = None
    error: BaseException | None = None
    dead: bool = False
    ended: bool = False
    asleep_until: float = 0.0  # suspended until then
    strands: list[Strand] = field(default_factory=list)


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
    asleep_until: float = 0.0  # suspended until then, though its process goes on
    still_since: float = 0.0  # it stands still since then, or did

    @property
    def wakes_latest_at(self) -> float:
        return max(self.wakes_at, self.asleep_until, self.process.asleep_until)

    @property
    def stands_still(self) -> bool:
        """True if it stands still until the others ended."""
        return UNTIL_THE_OTHERS_ENDED in (self.asleep_until, self.process.asleep_until)

    def is_ready(self, time: float) -> bool:
        """Return True if it may have its turn."""
        if self.process.asleep_until > time or self.asleep_until > time:
            return False
        return self.wakes_at <= time or (self.sooner is not None and self.sooner())


class Disturbances(NamedTuple):
    """Numbers of disturbances in one interleaving, each at a moment that the seed decides."""

    kills: int = 0
    pauses: int = 0
    jumps: int = 0
    lost_replies: float = 0.0  # share of the writes to a bucket that succeed and are repeated by the client
    undecided: float = 0.0  # share of the conditional writes that a bucket answers with 409
    failures: float = 0.0  # share of the requests that a bucket answers with 503 at the last of all tries
    within_turns: int = 150  # first turns, in which kills, pauses and jumps come


class Scheduler:
    """Runs processes to their end, in an order of turns. `trace` has the turns if `tracing` is true."""

    def __init__(
        self,
        rng: random.Random,
        disturbances: Disturbances,
        order: Order,
        tracing: bool = False,
        begin: tuple[float, int] = (0.0, 0),  # its time and its turns, if it goes on from another one
    ) -> None:
        self.rng, self.disturbances, self.order = rng, disturbances, order
        self.time, self.turns = begin
        self._most_turns = self.turns + MOST_TURNS
        self.trace: list[Turn] = []
        self.processes: list[Process] = []
        self.violation = ""
        self.current: Strand | None = None  # whose turn it is; None outside of all processes, as in preparations
        self.stood_still = False  # a process did for a while
        self._tracing = tracing
        self._strands: list[Strand] = []
        self._main = greenlet.getcurrent()
        self._due = self._moments()

    # Processes

    def start(self, name: str, machine: Machine, body: Callable[[], Any], after_seconds: float = 0.0) -> Process:
        """Add a process, which begins after a while. `name`: of the command, and `'2` for its second try."""
        process = Process(name.partition("'")[0], name, machine, body, len(self.processes))
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
        self._note(process.name, "KILLED", "")
        for strand in process.strands:
            if not strand.greenlet.dead:
                if strand.greenlet:
                    self.current = strand
                    strand.greenlet.throw(Killed)
                    self.current = None
                else:
                    strand.greenlet = None
        process.ended, process.error = True, process.error or Killed()
        self._strands = [strand for strand in self._strands if strand.process is not process]

    def calm_down(self) -> None:
        """End all disturbances."""
        self.disturbances, self._due, self.order = Disturbances(), [], Order(self.rng)

    # The turn of a process ends with one of these

    def request(self, what: str, key: str) -> None:
        """End the turn before a request to a store; the next one begins with it."""
        strand = self.current
        if strand is None:
            return
        if strand.process.dead:
            raise Killed
        strand.pending = (what, key)
        self.order.before(strand, what, key, self._stop)
        self._end_turn(strand)

    def sleep(self, seconds: float, sooner: Callable[[], bool] | None = None) -> None:
        """End the turn; the next one comes after the seconds at the earliest, or once `sooner` is true."""
        strand = self.current
        if strand is None:
            return
        if strand.process.dead:
            raise Killed
        strand.pending, strand.wakes_at, strand.sooner = ("sleep", f"{seconds:.0f} s"), self.time + seconds, sooner
        self._end_turn(strand)
        strand.sooner, strand.wakes_at = None, self.time

    def repeat(self, act: Callable[[], None], every_seconds: float) -> Repeating:
        """Call `act` beside the current strand again and again."""
        mine = self.current
        if mine is None:
            return Never()
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
            if self.turns >= self._most_turns:
                waiting = [strand.process.name for strand in self._strands if strand.main]
                self.fail(f"{', '.join(waiting)} did not end within {MOST_TURNS} turns")
                break
            self._disturb()
            strand = self._begun()
            strand.greenlet.switch()
            if (last := self.current) is not None and last.greenlet.dead:  # strands switch among each other too
                self._strands.remove(last)
            self.current = None
        for process in self.processes:
            if not process.ended:
                self.kill(process)

    def fail(self, sentence: str) -> None:
        """Record the first violation; the interleaving ends with this turn."""
        self.violation = self.violation or sentence

    def _end_turn(self, strand: Strand) -> None:
        """Switch to the strand that is next, and return when it is this one's turn again."""
        due = self._due
        is_due = bool(due) and due[0][0] <= self.turns and (not due[0][2] or strand.pending[0] in WRITES)
        if is_due or self.violation or self.turns >= self._most_turns:
            self._main.switch()
        elif (following := self._begun()) is not strand:
            following.greenlet.switch()
        if strand.process.dead:
            raise Killed

    def _begun(self) -> Strand:
        """Begin the turn of the strand that is next."""
        strand = self._next()
        self.turns += 1
        self.time += self.rng.random() * 0.1
        if self._tracing:
            self._note(strand.process.name, *strand.pending)
        self.current = strand
        return strand

    def _next(self) -> Strand:
        while True:
            time = self.time
            ready = [strand for strand in self._strands if strand.is_ready(time)]
            if len(ready) == 1:
                return ready[0]
            if ready:
                return self.order.choose(ready)
            if not self._wake_one():
                self.time = min(strand.wakes_latest_at for strand in self._strands)

    def _wake_one(self) -> bool:
        """Let one go on that stands still until the others ended, if they did, or wait for it."""
        mains = [each for each in self._strands if each.main]
        still = [each for each in mains if each.stands_still]
        waited_for = any(each.still_since < self.time - LONGEST_STILL_SECONDS for each in still)
        if not still or not (waited_for or all(each.wakes_latest_at >= self.time + _WAITING_SECONDS for each in mains)):
            return False
        first = self.rng.random() < 0.7
        woken = min(still, key=lambda strand: strand.still_since) if first else self.rng.choice(still)
        woken.asleep_until = woken.process.asleep_until = 0.0
        self._note(woken.process.name, "GOES ON", "")
        return True

    def _stop(self, strand: Strand, with_process: bool, seconds: float) -> None:
        """Let a strand stand still before the request that is pending."""
        until, self.stood_still, strand.still_since = self.time + seconds, True, self.time
        if seconds > _LEASE_SECONDS and self.rng.random() < 0.7:
            for other in self._strands:  # some come when its locks have ended
                if other.pending[0] == "begin":
                    other.wakes_at = max(other.wakes_at, self.time + _LEASE_SECONDS)
        if with_process:
            strand.process.asleep_until = until
        else:
            strand.asleep_until = until
        self._note(strand.process.name, "STOPPED" if with_process else "WAITS", f"{seconds:.0f} s")

    def _note(self, process: str, what: str, key: str) -> None:
        if self._tracing:
            self.trace.append(Turn(self.time, process, what, key))

    def _add(self, process: Process, run: Callable[[], None], main: bool, wakes_at: float) -> Strand:
        strand = Strand(process, greenlet.greenlet(run, parent=self._main), main, wakes_at)
        process.strands.append(strand)
        self._strands.append(strand)
        return strand

    def _moments(self) -> list[tuple[int, str, bool]]:
        """Return turns, disturbances, and if each waits for a process that is about to write: few turns are writes."""
        wanted = self.disturbances
        acts = ["kill"] * wanted.kills + ["pause"] * wanted.pauses + ["jump"] * wanted.jumps
        return sorted(
            (self.turns + self.rng.randrange(1, wanted.within_turns), act, self.rng.random() < 0.5) for act in acts
        )

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
                self._stop(process.strands[0], True, pause)
            else:
                process.machine.ahead += self.rng.choice(_JUMPS_SECONDS)
                self._note(process.machine.name, "JUMP", f"{process.machine.ahead:+.0f} s")


class _Repeated:
    def __init__(self, scheduler: Scheduler, strand: Strand) -> None:
        self._scheduler, self._strand = scheduler, strand

    def stop(self, patience_seconds: float) -> bool:
        """A renewal that is under way ends first, as `Thread.join` waits for it."""
        self._strand.stopped = True
        self._strand.wakes_at = min(self._strand.wakes_at, self._scheduler.time)
        self._scheduler.sleep(patience_seconds, lambda: bool(self._strand.greenlet.dead))
        return bool(self._strand.greenlet.dead)


class Never:
    """In preparations no time passes, so nothing is renewed."""

    def stop(self, patience_seconds: float) -> bool:
        return True
