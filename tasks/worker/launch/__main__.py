"""The command of an AWS Batch container: `python -m tasks.worker.launch STAGE --spec URI`.

Finds the container's part of the job in Batch's variables, and runs its workers under torchrun. After a failure it
writes the cause to `ending.json` and exits with the failure class's code, by which Batch decides on a retry.
"""

import argparse
import http.client
import os
import re
import socket
import sys
import time
import urllib.request

from infra.root_cause import Ending, ending_key
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.jobs import JobSpec, address, cut_address
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.workspace import SPEC
from tasks.foundation.errors import POLICIES, StoreError, classify, from_exit_code
from tasks.runs.host_records import excluded, given_up
from tasks.worker.launch.nodes import ChildNode, MainNode
from tasks.worker.launch.this_node import (
    ContainerPosition,
    StopSignals,
    Workers,
    check_position,
    claim_attempt,
    spec_of_try,
    torchrun_command,
    torchrun_environment,
    write_spec,
)
from tasks.worker.process.job import read_spec

HOLD_SECONDS = 120.0  # a machine ends within this time; meanwhile it gets no other job
_LOOK_SECONDS = 0.1
_INSTANCE = re.compile(r"i-[0-9a-z]{8,}")  # EC2; hosts elsewhere have other names and can't be terminated


def termination_reason(store: Store, host: str, since: float, code: int) -> str | None:
    """Return the reason of `given_up` to terminate this machine before the next try; None if it may stay.

    None also outside EC2, or if no retry follows the exit code: after a lost machine, Batch would repeat even a try
    that can't succeed.
    """
    if code == 0 or not POLICIES[from_exit_code(code)].transient or _INSTANCE.fullmatch(host) is None:
        return None
    try:
        return given_up(store, host, since)
    except (OSError, StoreError) as error:
        _say(f"warning: the record of host {host} can't be read, so the machine stays: {error}")
        return None


def terminate_machine(host: str, why: str, signals: StopSignals) -> None:
    """Terminate this machine and hold it until it ends; warn if that is refused."""
    import boto3.session  # takes half a second, rarely needed
    from botocore.exceptions import BotoCoreError, ClientError

    _say(f"host {host} is ended, so that the next try gets another machine: {why}")
    try:
        boto3.session.Session().client("ec2").terminate_instances(InstanceIds=[host])
    except (BotoCoreError, ClientError) as error:
        _say(
            f"warning: host {host} could not be ended, so the next try may get it again: {error}. Deploy the stack "
            f"again, whose LeavePolicy allows it, or end it by hand: aws ec2 terminate-instances --instance-ids {host}"
        )
        return
    until = time.monotonic() + HOLD_SECONDS
    while not signals.count and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)


def _say(line: str) -> None:
    print(line, flush=True)


def write_ending(store: Store, spec: JobSpec, position: ContainerPosition, ending: Ending) -> None:
    """Write the cause of the failure for the process that waits for the job."""
    store.write(ending_key(spec, spec.attempt, position.array_index), ending.to_json())


TIMEOUT_SECONDS = 1.0
_SERVICE = "http://169.254.169.254/"
_TOKEN_SECONDS = "60"


def this_host() -> str:
    """Return this host's name: the instance id (IMDSv2) unless botocore's variable disables it, else the hostname."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "false").lower() == "true":
        return socket.gethostname()
    base = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or _SERVICE
    base = base if base.endswith("/") else f"{base}/"
    try:
        token = _ask(f"{base}latest/api/token", "PUT", {"X-aws-ec2-metadata-token-ttl-seconds": _TOKEN_SECONDS})
        return _ask(f"{base}latest/meta-data/instance-id", "GET", {"X-aws-ec2-metadata-token": token})
    except (OSError, http.client.HTTPException, ValueError):
        return socket.gethostname()


def _ask(url: str, method: str, headers: dict[str, str]) -> str:
    """Return the answer as text. Raises ValueError if it is empty."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the service is never behind a proxy
    with opener.open(urllib.request.Request(url, method=method, headers=headers), timeout=TIMEOUT_SECONDS) as reply:
        answer = reply.read(1024).decode("ascii").strip()
    if not answer:
        raise ValueError(f"{url} gave an empty answer")
    return answer


def main() -> int:
    """Run this container's part of a job; return the exit code of the process."""
    started_at = time.time()
    parser = argparse.ArgumentParser(prog="python -m tasks.worker.launch", description=__doc__)
    parser.add_argument("stage", choices=[work.value for work in (*Stage, *Chore)])
    parser.add_argument("--spec", required=True, help="WORKSPACE#KEY#SHA256 of the job spec")
    arguments = parser.parse_args()
    signals = StopSignals()
    signals.listen()
    try:
        workspace, key = cut_address(arguments.spec)
        position = ContainerPosition.from_environment(os.environ)
        store = open_store(workspace)
        spec = spec_of_try(read_spec(store, key, arguments.stage), position)
        if position.is_main:
            claim_attempt(store, spec, position)
    except Exception as error:  # no attempt yet for an ending
        return _fail(error)
    host = this_host()
    ending = None
    named = key if spec.attempt == spec.submitted_as else f"{SPEC.of(spec)}#{spec.sha256}"  # a later try has its own
    try:
        code, ending = launch(position, store, spec, address(store.uri, named), host, signals, started_at)
    except Exception as error:
        code = POLICIES[classify(error)].exit_code
        if position.is_main:
            ending = Ending(failure=classify(error), message=_text(error), node=position.index, at=time.time())
        else:
            _fail(error)
    why = termination_reason(store, host, started_at, code)
    if ending is not None:
        _end(store, spec, position, ending.model_copy(update={"leaves": why is not None}))
    if why is not None:
        terminate_machine(host, why, signals)
    return code


def launch(
    position: ContainerPosition,
    store: Store,
    spec: JobSpec,
    uri: str,
    host: str,
    signals: StopSignals,
    started_at: float,
) -> tuple[int, Ending | None]:
    """Run this node's workers; return the exit code and, on the main node, the job's failure.

    Args:
        uri: address of the workers' spec.
        started_at: begin of this process, in seconds since the epoch.

    Raises:
        ConfigError: the job's size does not fit the spec.
        StageError: see `ChildNode.run` and `MainNode.run`.
    """
    check_position(position, spec)
    unfit = excluded(store, host, time.time()) or ""
    command = torchrun_command(position, spec, uri)
    environment = torchrun_environment(position, spec, host, started_at)

    def start() -> Workers:
        return Workers(command, environment)

    join_seconds = spec.config.batch.rendezvous_timeout_seconds
    if not position.is_main:
        return ChildNode(position, spec, host, signals, unfit, start, join_seconds).run(), None
    write_spec(store, spec)
    ending = MainNode(position, store, spec, host, signals, unfit, start, join_seconds).run()
    return (0 if ending is None else POLICIES[ending.failure].exit_code), ending


def _end(store: Store, spec: JobSpec, position: ContainerPosition, ending: Ending) -> None:
    print(f"{ending.failure}: {ending.message}", file=sys.stderr, flush=True)
    try:
        write_ending(store, spec, position, ending)
    except Exception as unwritable:  # the exit code still gives the failure class
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
    os._exit(code)  # don't wait for the thread that relays output
