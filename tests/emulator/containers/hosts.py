"""The instances of the compute environments: started when a job needs one, used again when free, never once lost.

A container takes vCPUs and memory of its instance, as its definition asks; a node of a multi-node job has one alone.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from tests.emulator.containers.machines import registered
from tests.emulator.engine.aws import Document, arn
from tests.emulator.engine.records import ComputeEnvironment, Container, Host, Job

TOO_LARGE = "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT"
TOO_MANY = "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE"


class Needs(NamedTuple):
    """What one container takes."""

    vcpus: float
    mib: float
    machine: str | None
    alone: bool

    @classmethod
    def of(cls, job: Job, properties: Document) -> Needs:
        asked = {one["type"]: float(one["value"]) for one in properties["resourceRequirements"]}
        return cls(asked["VCPU"], asked["MEMORY"], properties.get("instanceType"), job.definition.multinode)


class Hosts:
    def __init__(self) -> None:
        self._alive: dict[str, Host] = {}  # the oldest first
        self._taken: dict[str, list[Needs]] = {}
        self._made = 0

    def never(self, places: Sequence[ComputeEnvironment], needs: Needs, nodes: int) -> str | None:
        """Why no instance of these environments can ever run a job of so many nodes; None: some can."""
        fit = [one for one in places if _fits(one, needs)]
        if not fit:
            return f"{TOO_LARGE} - no environment of the queue has machines of {needs.vcpus:g} vCPUs, {needs.mib:g} MiB"
        if all(one.most < nodes for one in fit):
            return f"{TOO_MANY} - the environments' maxvCpus are too few for {nodes} of their instances"
        return None

    def take(self, places: Sequence[ComputeEnvironment], needs: Needs, nodes: int) -> list[Host] | None:
        """Instances for all nodes at once, free ones first; None: they are busy."""
        for place in places:
            if _fits(place, needs):
                own = [host for host in self._alive.values() if host.environment == place.name]
                found = [host for host in own if self._has_room(host, needs)][:nodes]
                missing = nodes - len(found)
                if missing <= place.most - len(own):
                    found += [self._start(place) for _ in range(missing)]
                    for host in found:
                        self._taken[host.id].append(needs)
                    return found
        return None

    def give_back(self, job: Job, container: Container) -> None:
        if container.host.id in self._alive:
            self._taken[container.host.id].remove(Needs.of(job, container.properties))

    def lose(self, host: Host) -> None:
        self._alive.pop(host.id, None)

    def named(self, name: str) -> Host | None:
        """An instance that is there."""
        return self._alive.get(name)

    def _has_room(self, host: Host, needs: Needs) -> bool:
        taken = self._taken[host.id]
        if taken and (needs.alone or any(one.alone for one in taken)):
            return False
        vcpus, mib = registered(host.machine)
        return (
            sum(one.vcpus for one in taken) + needs.vcpus <= vcpus and sum(one.mib for one in taken) + needs.mib <= mib
        )

    def _start(self, place: ComputeEnvironment) -> Host:
        self._made += 1
        name = f"i-emu{secrets.token_hex(7)}"
        address = f"127.10.{self._made // 250}.{self._made % 250 + 2}"
        instance = arn("container-instance", f"emulator/{secrets.token_hex(16)}", service="ecs")
        host = self._alive[name] = Host(self._made, name, address, instance, place.name, place.machine)
        self._taken[name] = []
        return host


def _fits(place: ComputeEnvironment, needs: Needs) -> bool:
    vcpus, mib = registered(place.machine)
    return needs.vcpus <= vcpus and needs.mib <= mib and needs.machine in (None, place.machine)
