"""Workers, each in a process of its own, that get SIGKILL or SIGTERM or hang at an exact place."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from infra.store.factory import open_store
from tasks.contracts.jobs import JobSpec
from tasks.worker import infer, train
from tasks.worker.__main__ import main
from tasks.worker.process.job import Job, PhaseClock, Rank


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def be_told_to_stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def hang() -> None:
    threading.Event().wait()


class Kill(NamedTuple):
    """At the `call`-th call of `target` (`module:name` or `module:Class.name`) that has `about` in its arguments."""

    target: str
    call: int
    when: str = "after"
    about: str = ""
    act: Callable[[], None] = die


def train_and_die(spec: JobSpec, kill: Kill) -> None:
    """Train as `spec` says, as the only worker, until `kill` strikes."""
    torch.set_num_threads(1)
    train_rank_and_die(Rank(0, 1, 0), spec, kill)


def infer_and_die(spec: JobSpec, kill: Kill) -> None:
    """Embed as `spec` says, as the only worker, until `kill` strikes."""
    torch.set_num_threads(1)
    infer.LEASE_SECONDS = 1.0  # nobody shall wait for a dead worker's partition
    arm(kill)
    infer.run(Job(spec, open_store(spec.workspace), Rank(0, 1, 0), PhaseClock(0.0)))


def train_rank_and_die(rank: Rank, spec: JobSpec, kill: Kill) -> None:
    """The same for one worker of several; `kill` strikes rank 0."""
    if rank.is_main:
        arm(kill)
    train.run(Job(spec, open_store(spec.workspace), rank, PhaseClock(0.0)))


def work(rank: Rank, spec: JobSpec, whom: tuple[int, ...] = (), *kills: Kill) -> int:
    """One worker by way of the door, as `python -m tasks.worker` is; its exit code. `kills` strike the ranks `whom`."""
    torch.set_num_threads(1)
    if rank.index in whom:
        for kill in kills:
            arm(kill)
    spec_key = f"{spec.attempt_prefix}/spec.json"
    sys.argv = ["tasks.worker", spec.stage.value, "--spec", f"{spec.workspace}#{spec_key}"]
    return main()


def work_alone(spec: JobSpec, *kills: Kill) -> None:
    """The same for the only worker; ends the process with the exit code."""
    os._exit(work(Rank(0, 1, 0), spec, (0,), *kills))


def work_as_child(child: int, children: int, spec: JobSpec) -> None:
    """One child of an array, as the launcher starts it; ends the process with the exit code."""
    os.environ.update(MILLRACE_ARRAY_INDEX=str(child), MILLRACE_ARRAY_SIZE=str(children))
    work_alone(spec)


def arm(kill: Kill) -> None:
    """From now on this process will die at the place of `kill`."""
    module, _, path = kill.target.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    original = getattr(owner, name)
    calls = 0

    def armed(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += kill.about in repr(args)
        due = calls == kill.call and kill.about in repr(args)
        if due and kill.when == "before":
            kill.act()
        result = original(*args, **kwargs)
        if due and kill.when == "after":
            kill.act()
        return result

    setattr(owner, name, armed)
