"""A machine that failed is ended by its own launcher: AWS Batch keeps idle machines, and would give it the next try.

The permission is for machines of this stack alone, by their tag (infra/aws/millrace.yaml, LeavePolicy).
"""

import re
import time

from infra.store.base import Store
from tasks.foundation.errors import POLICIES, StoreError, from_exit_code
from tasks.runs.host_records import given_up
from tasks.worker.launch.stop_signals import StopSignals

HOLD_SECONDS = 120.0  # a machine ends within that; meanwhile it gets no other job
_LOOK_SECONDS = 0.1
_INSTANCE = re.compile(r"i-[0-9a-z]{8,}")  # of EC2; elsewhere a host has another name, and nothing can be ended


def why_leave(store: Store, host: str, since: float, code: int) -> str | None:
    """Return why this machine must get no other try, as `given_up` says; None also for machines outside of EC2.

    None too if no retry follows the exit code: AWS Batch repeats whatever lost its machine, also what can't succeed.
    """
    if code == 0 or not POLICIES[from_exit_code(code)].transient or _INSTANCE.fullmatch(host) is None:
        return None
    try:
        return given_up(store, host, since)
    except (OSError, StoreError) as error:
        _say(f"warning: the record of host {host} can't be read, so the machine stays: {error}")
        return None


def leave(host: str, why: str, signals: StopSignals) -> None:
    """End this machine, and hold it until it ends; a refusal is a warning."""
    import boto3.session  # half a second, and hardly ever needed
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
