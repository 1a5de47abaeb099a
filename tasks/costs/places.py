"""The machines of a stage: as configured, or as a plan asks."""

from typing import NamedTuple

from configs.schema.config import Config
from configs.schema.prices import LOCAL_WORKER
from tasks.contracts.stages import Queue, Stage, instance_of, machines_of, workers_of
from tasks.costs.published import Arithmetic, Machine, machine_of, published
from tasks.foundation.errors import ConfigError


class Place(NamedTuple):
    """The machines of a stage."""

    instance: str | None  # instance type, or LOCAL_WORKER; None: the configuration names none
    machines: int  # a local worker counts as one
    workers: int

    @property
    def machine(self) -> Machine | None:
        """The published figures of one machine; None if there are none, as for a local worker."""
        return machine_of(self.instance)

    @property
    def is_local(self) -> bool:
        return self.instance == LOCAL_WORKER


class Asked(NamedTuple):
    """Machines that a plan asks for in place of the configured ones, for all stages of accelerator_queue."""

    instance: str | None = None  # None: as configured
    nodes: int | None = None  # None: as configured


AS_CONFIGURED = Asked()


def place_of(config: Config, stage: Stage, asked: Asked = AS_CONFIGURED) -> Place:
    """Return the machines of a stage.

    Raises:
        ConfigError: another instance is asked for, but configs/published.yaml does not know it.
    """
    workers = workers_of(config, stage)
    own = Place(instance_of(config, stage), machines_of(config, stage, workers), workers)
    if stage.traits.queue is not Queue.accelerator or asked == AS_CONFIGURED:
        return own
    if asked.instance is None or asked.instance == own.instance:
        nodes = asked.nodes or own.machines
        return Place(own.instance, nodes, max(1, own.workers // own.machines) * nodes)
    machine = machine_of(asked.instance)
    if machine is None:
        known = ", ".join(published().machines)
        raise ConfigError(f"the plan has no figures of {asked.instance}; it knows {known}")
    nodes = asked.nodes or (1 if own.is_local else own.machines)
    return Place(asked.instance, nodes, machine.workers * nodes)


def arithmetic_of(config: Config, work: str, place: Place) -> Arithmetic:
    """Return the arithmetic of an encoder's products; `auto` is bf16, except on a processor, whose speed decides."""
    precision = config.infer.precision if work == "embed" else config.train.precision
    machine = place.machine
    if precision == "fp32":
        cast = config.compiler.auto_cast != "none" and machine is not None and machine.accelerator == "xla"
        return "bf16" if cast else "fp32"
    return "fp32" if precision == "auto" and machine is None else "bf16"
