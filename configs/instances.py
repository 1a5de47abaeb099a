"""The instance types of configs/instances.yaml, one row each: hardware, a job's share of it, limits and prices."""

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter, ValidationError

from configs.keys import explain
from configs.schema.compute import MachineConfig
from configs.schema.operations import Basis
from configs.yaml_files import read_yaml_file
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record

INSTANCES = Path(__file__).with_name("instances.yaml")
GIB = 2**30
UNMEASURED_US = 1e6  # a latency limit that no collective reaches


class Instance(Record):
    """One node of an instance type."""

    stack: tuple[Literal["accelerator", "infer", "gpu"], ...] = Field(
        description="parameters of the template that start it, as in AcceleratorType; none: the template does not"
    )
    chip: str = Field(description="kind of its devices; the same kind computes at the same share of its peak")
    accelerator: Literal["cuda", "neuron", "xla"]
    devices: int = Field(gt=0)
    workers: int = Field(gt=0, description="worker processes that fill it: its NeuronCores, or its GPUs")
    efa_cards: int = Field(ge=0, description="network cards with EFA; a container of several nodes gets all of them")
    vcpus: int = Field(gt=0)
    host_gib: int = Field(gt=0, description="memory of the host, GiB")
    memory_gib: float = Field(gt=0, description="memory of all devices together, GiB")
    bf16_tflops: float = Field(gt=0, description="peak of all devices together, 1e12 operations a second, dense")
    fp32_tflops: float = Field(gt=0)
    link_gb_s: float | None = Field(description="bandwidth between its devices, 1e9 bytes a second; null: one device")
    network_gbit_s: float | None = Field(description="EFA between nodes, 1e9 bits a second; null: no EFA")
    job_vcpus: int = Field(gt=0, description="vCPUs that a job reserves: more than half")
    job_mib: int = Field(gt=0, description="memory that a job reserves, MiB")
    shared_mib: int = Field(gt=0, description="shared memory of a job, MiB")
    price: Basis | None = Field(description="basis of the price in prices.yaml; null: AWS published none")
    capacity_block: Literal["none", "allowed", "only"] = Field(description="sale in Capacity Blocks")
    sdk: str | None = Field(description="oldest Neuron SDK of its accelerator's worker image; null: no Neuron")
    min_node_bus_gb_s: float = Field(default=0.0, ge=0)
    min_bus_gb_s: float = Field(default=0.0, ge=0)
    max_latency_us: float = Field(default=UNMEASURED_US, gt=0)
    source: str

    def peak(self, precision: Literal["bf16", "fp32"]) -> float:
        """Return the peak of one node, in operations a second."""
        return (self.bf16_tflops if precision == "bf16" else self.fp32_tflops) * 1e12

    @property
    def worker_bytes(self) -> float:
        """The device memory of one worker, in bytes."""
        return self.memory_gib * GIB / self.workers

    @property
    def on_neuron(self) -> bool:
        """True if its devices are Neuron devices."""
        return self.accelerator != "cuda"

    @property
    def limits(self) -> MachineConfig:
        """Its row of health.machines."""
        return MachineConfig(
            devices=self.devices,
            efa_interfaces=self.efa_cards,
            min_node_bus_gb_s=self.min_node_bus_gb_s,
            min_bus_gb_s=self.min_bus_gb_s,
            max_latency_us=self.max_latency_us,
        )


_TABLE = TypeAdapter(dict[str, Instance])


@cache
def instances() -> dict[str, Instance]:
    """Return the rows by instance type.

    Raises:
        ConfigError: the file is damaged; names the type and the key.
    """
    try:
        return _TABLE.validate_python(read_yaml_file(INSTANCES))
    except ValidationError as error:
        raise ConfigError(f"{INSTANCES}: {explain(error, dict[str, Instance])}") from error


def machine_of(instance: str | None) -> Instance | None:
    """Return the node of an instance type; None if the table does not list it, as for a local worker."""
    return instances().get(instance) if instance is not None else None
