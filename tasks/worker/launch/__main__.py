"""What a container of AWS Batch runs: `python -m tasks.worker.launch STAGE --spec URI`.

Finds out from Batch's variables which part of a job this container is, and runs its workers below torchrun. When it
fails it says why in `ending.json` and with the exit code of the failure class, by which Batch knows whether to retry.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

from infra.store import Store, open_store
from tasks.contracts import Chore, JobSpec, Stage
from tasks.endings import Ending
from tasks.errors import POLICIES, classify
from tasks.hosts import excluded
from tasks.worker.job import read_spec
from tasks.worker.launch.attempt import own_attempt, spec_of_try, write_ending, write_spec
from tasks.worker.launch.child_node import ChildNode
from tasks.worker.launch.host import this_host
from tasks.worker.launch.main_node import MainNode
from tasks.worker.launch.place import Place, check_place
from tasks.worker.launch.processes import Workers, torchrun_command, torchrun_environment
from tasks.worker.launch.told import Told


def main() -> int:
    """Run this container's part of a job; returns the process's exit code."""
    started_at = time.time()
    parser = argparse.ArgumentParser(prog="python -m tasks.worker.launch", description=__doc__)
    parser.add_argument("stage", choices=[work.value for work in (*Stage, *Chore)])
    parser.add_argument("--spec", required=True, help="WORKSPACE#KEY of the job spec")
    arguments = parser.parse_args()
    told = Told()
    told.listen()
    workspace, _, key = arguments.spec.partition("#")
    try:
        place = Place.from_environment(os.environ)
        store = open_store(workspace)
        spec = spec_of_try(read_spec(store, key, arguments.stage), place)
        if place.is_main:
            own_attempt(store, spec, place)
    except Exception as error:  # there is no attempt of which this could be the ending
        return _fail(error)
    try:
        return _launch(place, store, spec, told, started_at)
    except Exception as error:
        if place.is_main:
            failure = classify(error)
            ending = Ending(failure=failure, message=_text(error), node=place.index, at=time.time())
            return _end(store, spec, place, ending)
        return _fail(error)


def _launch(place: Place, store: Store, spec: JobSpec, told: Told, started_at: float) -> int:
    check_place(place, spec)
    host = this_host()
    unfit = excluded(store, host, time.time()) or ""
    start = _starter(place, store, spec, host, started_at)
    if not place.is_main:
        return ChildNode(place, spec, host, told, unfit, start).run()
    write_spec(store, spec)
    ending = MainNode(place, store, spec, told, unfit, start).run()
    return 0 if ending is None else _end(store, spec, place, ending)


def _starter(place: Place, store: Store, spec: JobSpec, host: str, started_at: float) -> Callable[[], Workers]:
    command = torchrun_command(place, spec, f"{store.uri}#{spec.attempt_prefix}/spec.json")
    environment = torchrun_environment(place, spec, host, started_at)
    return lambda: Workers(command, environment)


def _end(store: Store, spec: JobSpec, place: Place, ending: Ending) -> int:
    print(f"{ending.failure}: {ending.message}", file=sys.stderr, flush=True)
    try:
        write_ending(store, spec, place, ending)
    except Exception as unwritable:  # the exit code still tells the class
        print(f"the ending could not be written: {unwritable}", file=sys.stderr, flush=True)
    return POLICIES[ending.failure].exit_code


def _fail(error: Exception) -> int:
    print(f"{classify(error)}: {_text(error)}", file=sys.stderr, flush=True)
    return POLICIES[classify(error)].exit_code


def _text(error: Exception) -> str:
    return str(error) if hasattr(error, "failure") else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the thread that relays output must not hold back the end
