"""The host of the node that failed, remembered where a code of the Neuron SDK says that its hardware is the cause."""

import sys
import time

from infra.root_cause import Ending
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import FailureClass, StoreError
from tasks.foundation.neuron_errors import classify_log, needs_another_machine
from tasks.runs.host_findings import read_findings
from tasks.runs.host_records import exclude, strike


def blame(store: Store, spec: JobSpec, ending: Ending, host: str | None) -> None:
    """Exclude the host after broken hardware, strike it after another fault that the codes call HOST.

    Nothing is recorded of a node that is merely gone, as machines come and go, or of what health has found itself.

    Args:
        host: that of the node in `ending`; None: it never came.
    """
    named = classify_log(ending.message)
    if host is None or named is None or ending.failure is not FailureClass.HOST or named[0] is not FailureClass.HOST:
        return
    remember = exclude if needs_another_machine(ending.message) else strike
    try:
        if read_findings(store, spec.attempt_prefix) is None:
            reason = f"{spec.stage.value}: {named[1]}"
            remember(store, host, reason, spec.run_key, spec.config.health, time.time())
    except (OSError, StoreError) as error:  # must not hide the failure itself
        print(f"the record of host {host} could not be written: {error}", file=sys.stderr, flush=True)
