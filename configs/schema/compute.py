"""The configuration of machines, AWS Batch, the compiler, retries and prices."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tasks.foundation.records import Record

Compute = Literal["local", "batch"]
Target = Literal["trn1", "trn1n", "trn2", "inf2"]
Positive = Annotated[int, Field(gt=0)]


class MachineConfig(Record):
    """What a node of one kind must have, and how fast it is expected to be; slower is a warning.

    Once health has recorded enough runs on as many nodes, these say what their collectives must reach.
    """

    devices: int = Field(ge=0, description="Neuron devices")
    efa_interfaces: int = Field(ge=0)
    min_node_bus_gb_s: float = Field(ge=0, description="nccom-test's bus bandwidth over a node's cores; 2**30 bytes")
    min_bus_gb_s: float = Field(ge=0, description="the workers' own all-reduce over all nodes, in 1e9 bytes per second")
    max_latency_us: float = Field(gt=0, description="the workers' own all-reduce of 4 bytes")


class OtherMachines(Record):
    """Machines of another kind, with a queue of their own."""

    queue: str
    definition: str = Field(description="name of a stage's job definition, which may hold {stage}")
    processes_per_node: Positive = Field(description="worker processes on one node: its NeuronCores, or its GPUs")
    dollars_per_node_hour: float = Field(ge=0)


class InferMachines(OtherMachines):
    """Those of stage infer."""

    target: Target = Field(description="compiler.target there; graphs of another target are compiled again")


class BatchConfig(Record):
    """AWS Batch: where `compute: batch` sends a stage. Queues and definitions are those of infra/aws/millrace.yaml."""

    cpu_queue: str = Field(description="of validate, release and publish")
    accelerator_queue: str = Field(description="of all other stages")
    definition: str = Field(description="name of a stage's job definition, with {stage} in it")
    accelerator_definition: str | None = Field(
        default=None, description="the same for stages on accelerator_queue, where theirs differ; null: as definition"
    )
    infer: InferMachines | None = Field(default=None, description="null: infer is on accelerator_queue too")
    cuda: OtherMachines | None = Field(
        default=None,
        description="where `millrace parity` trains its side on cuda, on one node; null: accelerator_queue",
    )
    share: str = Field(pattern=r"^[A-Za-z0-9]+$", description="share identifier; used on fair-share queues only")
    priority: int = Field(ge=0, le=9999, description="higher runs first within a share; used on fair-share queues only")
    processes_per_node: Positive = Field(description="worker processes on one node; on Trainium its NeuronCores")
    capacity_seconds: Positive = Field(description="a job that waits longer for a machine ends as CAPACITY")
    attempt_seconds: Annotated[int, Field(ge=60)] = Field(description="an attempt that runs longer ends as HANG")
    silence_seconds: Positive = Field(description="a node that is silent for so long counts as lost")
    join_seconds: Positive = Field(  # a default, since configurations of earlier runs lack it
        default=1800,
        description="the nodes of one job wait so long for each other: machines start minutes apart, and each pulls "
        "the image, more than 20 GB unpacked",
    )
    cpu_dollars_per_node_hour: float = Field(ge=0)
    accelerator_dollars_per_node_hour: float = Field(ge=0)

    @model_validator(mode="after")
    def _definition_by_stage(self) -> Self:
        for key in ("definition", "accelerator_definition"):
            name = getattr(self, key)
            if name is not None and "{stage}" not in name:
                raise ValueError(f"batch.{key} {name!r} must hold {{stage}}, where the stage's name goes")
        return self

    def processes_of(self, stage: str) -> int:
        """Return the number of worker processes on one node of a stage's machines."""
        return self.infer.processes_per_node if stage == "infer" and self.infer else self.processes_per_node


class CompilerConfig(Record):
    """The compiler and runtime of the xla accelerator. On a CPU only `optlevel` counts, the rest is Neuron's."""

    optlevel: Literal[1, 2, 3] | None = Field(description="1 compiles fastest; null: the compiler's own default")
    target: Target = Field(description="the machines that the graphs are made for")
    model_type: Literal["generic", "transformer", "unet-inference"]
    auto_cast: Literal["none", "matmult", "all"] = Field(
        description="what the compiler itself turns from fp32 into auto_cast_type; none with train.precision bf16"
    )
    auto_cast_type: Literal["bf16", "fp16", "tf32", "fp8_e4m3"] = Field(description="ignored with auto_cast none")
    efa: bool = Field(description="use EFA on a single node too; several nodes always do")
    parallel_jobs: Positive | None = Field(description="graphs compiled at once; null: what fits the host's memory")
    gradient_bucket_mib: Positive = Field(description="MiB of gradients that are reduced in one all-reduce")
    exec_timeout_seconds: Positive = Field(description="one execution that takes longer is a hang")
    rounding_seed: int = Field(ge=0, description="of stochastic rounding, which is on when the weights are bf16")


class RetryConfig(Record):
    """The budget of attempts of one stage."""

    attempts: Positive
    jitter: float = Field(ge=0, description="share of the delay that is random")


class CostConfig(Record):
    """Prices for the ledger."""

    dollars_per_worker_hour: float = Field(ge=0)
