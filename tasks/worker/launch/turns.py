"""The stages that one job does in turn. With batch.keep_seconds the job waits after a stage for the run's next one."""

import contextlib
import time

from infra.handover import Finished, decide, find_finished, find_next, finish, is_followed, key_of, may_share
from infra.root_cause import Ending
from infra.store.base import Store
from tasks.contracts import runner
from tasks.contracts.jobs import JobSpec, address
from tasks.foundation.errors import POLICIES, StoreError
from tasks.runs.host_records import excluded
from tasks.worker.launch.attempt import claim_attempt, spec_at, spec_of_try, write_spec
from tasks.worker.launch.child_node import ChildNode
from tasks.worker.launch.container_position import ContainerPosition, check_position
from tasks.worker.launch.main_node import TICK_SECONDS, MainNode, end_job
from tasks.worker.launch.node_link import Children
from tasks.worker.launch.processes import StopSignals, Workers, torchrun_command, torchrun_environment

LOOK_SECONDS = 0.5  # between two looks for the next stage


class Turns:
    """The turns of this container's job. `spec` is of the stage at work, or of the last one if `waits`."""

    def __init__(
        self,
        position: ContainerPosition,
        store: Store,
        spec: JobSpec,
        key: str,
        host: str,
        signals: StopSignals,
        started_at: float,
    ) -> None:
        """Begin with the submitted stage. `key`: of its spec for this try; `started_at`: seconds since the epoch."""
        self.spec, self.waits = spec, False
        self._position, self._store, self._host, self._signals = position, store, host, signals
        self._submitted, self._key, self._started_at = spec, key, started_at

    def run(self) -> tuple[int, Ending | None]:
        """Return the exit code and, on the main node, the failure of the stage `spec`.

        Raises:
            StageError: see `ChildNode.run` and `MainNode.run`; another job owns a stage that was handed over.
        """
        position, spec = self._position, self.spec
        check_position(position, spec)
        if not position.is_main:
            join_seconds = spec.config.batch.rendezvous_timeout_seconds
            child = ChildNode(position, spec, self._host, self._signals, self._unfit(), self._start, join_seconds)
            return child.run(), None
        self._go_on()
        with Children(position, spec.config.batch.heartbeat_timeout_seconds) as children:
            ending = self._stages(children)
            end_job(children, ending)
        return (0 if ending is None else POLICIES[ending.failure].exit_code), ending

    def _go_on(self) -> None:
        """Go on with the newest stage that the job was given: an earlier try did those before."""
        self.waits = may_share(self.spec)  # no stage is at work until the newest is known
        while may_share(self.spec) and (after := find_next(self._store, self.spec.job_prefix)) and after.spec:
            self._take(after.spec)
        self.waits = may_share(self.spec) and find_finished(self._store, self.spec.job_prefix) is not None

    def _stages(self, children: Children) -> Ending | None:
        while True:
            if not self.waits:
                ending = self._stage(children)
                if ending is not None or not is_followed(self.spec):
                    return ending
            if (after := self._next(children)) is None:
                return None
            self._take(after)
            self.waits = False

    def _next(self, children: Children) -> str | None:
        """Wait for another stage; return the key of its spec, or None if the job ends."""
        try:
            if not self.waits:
                self._finish()
            children.begin()
            return self._wait(children)
        except (OSError, StoreError) as error:  # the stage is done all the same, and the next one gets a job of its own
            print(f"warning: the job does not wait for another stage: {error}", flush=True)
            return None

    def _stage(self, children: Children) -> Ending | None:
        write_spec(self._store, self.spec)
        named = "" if self.spec is self._submitted else self._key
        join_seconds = self.spec.config.batch.rendezvous_timeout_seconds
        return MainNode(
            self._position, self._store, self.spec, self._host, self._signals, self._unfit(), self._start, join_seconds
        ).run(children, named)

    def _finish(self) -> None:
        now = time.time()
        runner.announce("")
        until = now + self.spec.config.batch.keep_seconds
        position = self._position
        done = Finished(job=position.job, try_number=position.try_number, nodes=position.nodes, at=now, until=until)
        finish(self._store, self.spec.job_prefix, done)
        self.waits = True

    def _wait(self, children: Children) -> str | None:
        finished = find_finished(self._store, self.spec.job_prefix)
        looked_at = 0.0
        while finished and time.time() < finished.until and not self._signals.count and not children.broken:
            children.wait(TICK_SECONDS)
            if time.monotonic() - looked_at < LOOK_SECONDS:
                continue
            looked_at = time.monotonic()
            with contextlib.suppress(OSError, StoreError):  # asked again
                if (after := find_next(self._store, self.spec.job_prefix)) is not None:
                    return after.spec
        return decide(self._store, self.spec.job_prefix, None).spec

    def _take(self, key: str) -> None:
        """Claim the attempt of the spec under `key`, in this try unless an earlier one did."""
        spec, finished = spec_at(self._store, key), find_finished(self._store, self.spec.job_prefix)
        now, position = time.time(), self._position
        same_try = finished is not None and finished.try_number == position.try_number
        owner = claim_attempt(
            self._store, spec, position, now if same_try else None, finished.at if finished is not None else now
        )
        self.spec, self._started_at = spec_of_try(spec, position, owner.try_number), now
        self._key = key_of(self.spec)

    def _unfit(self) -> str:
        return excluded(self._store, self._host, time.time()) or ""

    def _start(self, named: str = "") -> Workers:
        """Start the workers of this node. `named`: key of the spec if it is not the submitted one's."""
        if named and not self._position.is_main:
            self.spec, self._key, self._started_at = spec_at(self._store, named), named, time.time()
        if may_share(self.spec):
            runner.announce(self.spec.job_prefix)
        command = torchrun_command(self._position, self.spec, address(self._store.uri, self._key))
        return Workers(command, torchrun_environment(self._position, self.spec, self._host, self._started_at))
