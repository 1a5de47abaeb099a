"""Training and inference that kill themselves with SIGKILL at an exact place, each in a process of its own."""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any, NamedTuple

import torch

from infra.store import open_store
from tasks.contracts import JobSpec
from tasks.worker import infer, train
from tasks.worker.job import Job, PhaseClock, Rank


class Kill(NamedTuple):
    """At the `call`-th call of `target` (`module:name` or `module:Class.name`) that has `about` in its arguments."""

    target: str
    call: int
    when: str = "after"
    about: str = ""


def train_and_die(spec: JobSpec, kill: Kill) -> None:
    """Train as `spec` says, as the only worker, until `kill` strikes."""
    torch.set_num_threads(1)
    train_rank_and_die(Rank(0, 1, 0), spec, kill)


def infer_and_die(spec: JobSpec, kill: Kill) -> None:
    """Embed as `spec` says, as the only worker, until `kill` strikes."""
    torch.set_num_threads(1)
    arm(kill)
    infer.run(Job(spec, open_store(spec.workspace), Rank(0, 1, 0), PhaseClock(0.0)))


def train_rank_and_die(rank: Rank, spec: JobSpec, kill: Kill) -> None:
    """The same for one worker of several; `kill` strikes rank 0."""
    if rank.is_main:
        arm(kill)
    train.run(Job(spec, open_store(spec.workspace), rank, PhaseClock(0.0)))


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
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, armed)
