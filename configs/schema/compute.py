"""The configuration of machines, AWS Batch, the compiler and retries."""

from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from tasks.foundation.records import Record

AcceleratorName = Literal["cpu", "cuda", "neuron", "xla"]
ACCELERATORS: tuple[AcceleratorName, ...] = get_args(AcceleratorName)


Compute = Literal["local", "batch"]
Target = Literal["trn1", "trn1n", "trn2", "trn3", "inf2"]
Positive = Annotated[int, Field(gt=0)]


class MachineConfig(Record):
    """Hardware and expected speeds of one kind of node; a slower one is a warning.

    The speeds of collectives are limits only until health has recorded enough runs on the same number of nodes.
    """

    devices: int = Field(ge=0, description="Neuron devices of one node")
    efa_interfaces: int = Field(ge=0, description="EFA network interfaces of one node")
    min_node_bus_gb_s: float = Field(
        ge=0,
        description="lowest bus bandwidth over a node's cores, in 2**30 bytes per second, as nccom-test reports it",
    )
    min_bus_gb_s: float = Field(
        ge=0, description="lowest bandwidth of the workers' own all-reduce over all nodes, in 1e9 bytes per second"
    )
    max_latency_us: float = Field(
        gt=0, description="highest latency of the workers' own all-reduce of 4 bytes, in microseconds"
    )


class OtherMachines(Record):
    """Machines of another kind, with a queue of their own."""

    queue: str = Field(description="name of their job queue")
    definition: str = Field(
        description="name of a stage's job definition; `{stage}` stands for the stage, as in `millrace-inf2-{stage}`"
    )
    processes_per_node: Positive = Field(description="worker processes on one node: its NeuronCores, or its GPUs")
    instance: str | None = Field(description="instance type of one node, for its price; null: the cost is not known")


class InferMachines(OtherMachines):
    """Machines of stage infer."""

    target: Target = Field(
        description="`compiler.target` of these machines; graphs of another target are compiled again"
    )


class BatchConfig(Record):
    """AWS Batch, for stages with `compute: batch`. Queues and definitions are made by infra/aws/millrace.yaml."""

    cpu_queue: str = Field(description="job queue of validate, release, publish, and infer of a small refresh")
    accelerator_queue: str = Field(description="job queue of all other stages")
    definition: str = Field(
        description="name of a stage's job definition; `{stage}` stands for the stage, as in `millrace-{stage}`"
    )
    accelerator_definition: str | None = Field(
        default=None, description="name of the job definition for stages on accelerator_queue; null: as `definition`"
    )
    infer: InferMachines | None = Field(default=None, description="machines of infer; null: as accelerator_queue")
    refresh_cpu_items: int = Field(
        default=100_000,
        ge=0,
        description="most new rows with which a refresh embeds on cpu_queue, not on the machines of infer",
    )
    cuda: OtherMachines | None = Field(
        default=None,
        description="machines of the cuda side of `millrace parity`; null: as accelerator_queue",
    )
    share: str = Field(pattern=r"^[A-Za-z0-9]+$", description="share identifier; used on fair-share queues only")
    priority: int = Field(
        ge=0, le=9999, description="priority within a share, higher runs first; used on fair-share queues only"
    )
    processes_per_node: Positive = Field(description="worker processes on one node; on Trainium its NeuronCores")
    capacity_seconds: Positive = Field(description="longest wait of a job for a machine, in seconds; then CAPACITY")
    attempt_seconds: Annotated[int, Field(ge=60)] = Field(
        description="longest attempt, in seconds; then it ends as HANG"
    )
    heartbeat_timeout_seconds: Positive = Field(
        description="seconds without a heartbeat after which a node counts as lost"
    )
    rendezvous_timeout_seconds: Positive = Field(
        description="rendezvous timeout of a job's nodes, in seconds",
    )
    cpu_instance: str | None = Field(
        description="instance type of a node of cpu_queue, for its price; null: the cost is not known"
    )
    accelerator_instance: str | None = Field(
        description="instance type of a node of accelerator_queue, for its price; null: the cost is not known"
    )

    @model_validator(mode="after")
    def _definition_by_stage(self) -> Self:
        for key in ("definition", "accelerator_definition"):
            name = getattr(self, key)
            if name is not None and "{stage}" not in name:
                raise ValueError(f"batch.{key} {name!r} must hold {{stage}}, where the stage's name goes")
        return self

    def processes_of(self, stage: str) -> int:
        """Return the number of worker processes on one node of a stage's machines; on a CPU one uses all cores."""
        if stage in ("validate", "release"):
            return 1
        return self.infer.processes_per_node if stage == "infer" and self.infer else self.processes_per_node

    def nodes_of(self, stage: str, workers: int) -> int:
        """Return the number of machines of a stage; 1 if its workers do not fill one."""
        return max(1, workers // self.processes_of(stage))


class CompilerConfig(Record):
    """The compiler and runtime of the neuron and xla accelerators. On a CPU only `optlevel` has an effect."""

    optlevel: Literal[1, 2, 3] | None = Field(
        description="optimization level; 1 compiles fastest; null: the compiler's own default"
    )
    target: Target = Field(description="kind of machine that graphs are compiled for")
    model_type: Literal["generic", "transformer", "unet-inference"] = Field(
        description="neuronx-cc's `--model-type`: the kind of model that it optimizes for"
    )
    auto_cast: Literal["none", "matmult", "all"] = Field(
        description="operations that the compiler casts from fp32 to auto_cast_type; `none` with train.precision bf16"
    )
    auto_cast_type: Literal["bf16", "fp16", "tf32", "fp8_e4m3"] = Field(
        description="type that auto_cast casts to; ignored with `none`"
    )
    efa: bool = Field(description="use of EFA on a single node; several nodes always use it")
    parallel_jobs: Positive | None = Field(
        description="graphs compiled at once; null: as many as fit the host's memory"
    )
    gradient_bucket_mib: Positive = Field(description="gradients that are reduced in one all-reduce, in MiB")
    exec_timeout_seconds: Positive = Field(description="longest execution of one graph, in seconds")
    rounding_seed: int = Field(ge=0, description="seed of stochastic rounding, which is on with bf16 weights")


class RetryConfig(Record):
    """The budget of attempts of one stage."""

    attempts: Positive = Field(description="attempts of one stage in one invocation, by AWS Batch and Prefect together")
    jitter: float = Field(ge=0, description="random share of the delay between two attempts")
