"""What a container of AWS Batch runs: `python -m tasks.worker.launch STAGE --spec URI`.

Reads from Batch's variables which part of a job this container is, and runs its workers under torchrun. When it fails
it writes the cause to `ending.json` and exits with the code of the failure class, by which Batch decides on a retry.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable

from infra.root_cause import Ending
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.jobs import JobSpec
from tasks.contracts.stages import Chore, Stage
from tasks.foundation.errors import POLICIES, classify
from tasks.runs.host_records import excluded
from tasks.worker.launch.attempt import own_attempt, spec_of_try, write_ending, write_spec
from tasks.worker.launch.child_node import ChildNode
from tasks.worker.launch.container_position import ContainerPosition, check_position
from tasks.worker.launch.host import this_host
from tasks.worker.launch.leaving import leave, why_leave
from tasks.worker.launch.main_node import MainNode
from tasks.worker.launch.processes import Workers, torchrun_command, torchrun_environment
from tasks.worker.launch.stop_signals import StopSignals
from tasks.worker.process.job import read_spec


def main() -> int:
    """Run this container's part of a job; return the exit code of the process."""
    started_at = time.time()
    parser = argparse.ArgumentParser(prog="python -m tasks.worker.launch", description=__doc__)
    parser.add_argument("stage", choices=[work.value for work in (*Stage, *Chore)])
    parser.add_argument("--spec", required=True, help="WORKSPACE#KEY#SHA256 of the job spec")
    arguments = parser.parse_args()
    signals = StopSignals()
    signals.listen()
    workspace, _, key = arguments.spec.partition("#")
    try:
        position = ContainerPosition.from_environment(os.environ)
        store = open_store(workspace)
        spec = spec_of_try(read_spec(store, key, arguments.stage), position)
        if position.is_main:
            own_attempt(store, spec, position)
    except Exception as error:  # there is no attempt yet to which an ending belongs
        return _fail(error)
    host = this_host()
    ending = None
    try:
        submitted = key.partition("#")[2] if spec.attempt == spec.submitted_as else spec.sha256
        uri = f"{store.uri}#{spec.attempt_prefix}/spec.json#{submitted}"
        code, ending = _launch(position, store, spec, uri, host, signals, started_at)
    except Exception as error:
        code = POLICIES[classify(error)].exit_code
        if position.is_main:
            ending = Ending(failure=classify(error), message=_text(error), node=position.index, at=time.time())
        else:
            _fail(error)
    why = why_leave(store, host, started_at, code)
    if ending is not None:
        _end(store, spec, position, ending.model_copy(update={"leaves": why is not None}))
    if why is not None:
        leave(host, why, signals)
    return code


def _launch(
    position: ContainerPosition,
    store: Store,
    spec: JobSpec,
    uri: str,
    host: str,
    signals: StopSignals,
    started_at: float,
) -> tuple[int, Ending | None]:
    """Return the exit code, and on the main node why the job failed. The workers' spec is at `uri`."""
    check_position(position, spec)
    unfit = excluded(store, host, time.time()) or ""
    start, join_seconds = _starter(position, uri, spec, host, started_at), spec.config.batch.join_seconds
    if not position.is_main:
        return ChildNode(position, spec, host, signals, unfit, start, join_seconds).run(), None
    write_spec(store, spec)
    ending = MainNode(position, store, spec, host, signals, unfit, start, join_seconds).run()
    return (0 if ending is None else POLICIES[ending.failure].exit_code), ending


def _starter(
    position: ContainerPosition, uri: str, spec: JobSpec, host: str, started_at: float
) -> Callable[[], Workers]:
    command = torchrun_command(position, spec, uri)
    environment = torchrun_environment(position, spec, host, started_at)
    return lambda: Workers(command, environment)


def _end(store: Store, spec: JobSpec, position: ContainerPosition, ending: Ending) -> None:
    print(f"{ending.failure}: {ending.message}", file=sys.stderr, flush=True)
    try:
        write_ending(store, spec, position, ending)
    except Exception as unwritable:  # the exit code still gives the class
        print(f"the ending could not be written: {unwritable}", file=sys.stderr, flush=True)


def _fail(error: Exception) -> int:
    print(f"{classify(error)}: {_text(error)}", file=sys.stderr, flush=True)
    return POLICIES[classify(error)].exit_code


def _text(error: Exception) -> str:
    return str(error) if hasattr(error, "failure") else f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # do not wait for the thread that relays output
