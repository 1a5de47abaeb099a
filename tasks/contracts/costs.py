"""The cost of a run before it begins: seconds and dollars by stage, the memory of a worker, the speed of a training.

Each figure has its source. `planned.json` keeps them, so that a run can be compared with its plan.
"""

from typing import Literal

from pydantic import Field

from configs.schema.operations import Price
from tasks.contracts.outcomes import Phases
from tasks.contracts.stages import Stage
from tasks.contracts.usage import MOST_COMMUNICATION
from tasks.foundation.clock import Moment
from tasks.foundation.records import Record

Basis = Literal["measured", "fitted", "published", "assumed"]


class StageCost(Record):
    """The expected time and cost of one stage, without failures."""

    stage: Stage
    instance: str | None = Field(description="instance type; `local worker`; null: the configuration names none")
    machines: int = Field(description="machines; a local worker counts as one")
    phases: Phases | None = Field(description="seconds by phase; null: not known")
    basis: Basis = Field(
        description="`measured` (attempts of this workspace), `fitted` (speeds of this workspace), `published`, "
        "`assumed`"
    )
    source: str = Field(description="origin of the seconds, in words; the reason if they are not known")
    attempts_seen: int = Field(description="successful attempts behind it; 0: none")
    price: Price | None = Field(description="price of one machine; null: not known")
    seconds: float | None = Field(description="wall time with queue and boot; null: not known")
    dollars: float | None = Field(
        description="cost at today's price; null: the time or the price is not known. Never 0 for lack of a price"
    )


class TrainMemory(Record):
    """The memory of one training worker, in GiB."""

    workers: int = Field(description="training workers; on a processor they share the memory of the machine")
    parameters: int = Field(description="weights of the encoder, in numbers")
    tokens: int = Field(description="tokens of a worker's batch, or of its part with GradCache, with padding")
    weights_gib: float = Field(description="weights, and their copy in bf16 if the arithmetic is bf16")
    gradients_gib: float = Field(description="gradients of all trained weights, GiB")
    optimizer_gib: float = Field(description="both moments of AdamW, in fp32")
    average_gib: float = Field(description="averaged weights of train.averaging; 0: none")
    activations_gib: float = Field(description="results of all layers that the backward pass reads; an upper bound")
    logits_gib: float = Field(description="contrastive loss: cosines of the batch's queries and items, 0 without it")
    batch_gib: float = Field(description="packed batch: tokens, positions, and the masks of sequences and of the loss")
    exchange_gib: float = Field(description="copy of all gradients that is summed over the workers; 0: one worker")
    process_gib: float = Field(description="Python and its packages, in the memory of the host; 0 on a device")
    total_gib: float = Field(description="largest sum of the parts at one time, GiB")
    measured_gib: float | None = Field(description="peak of the last run's warmup; null: none, or with other settings")
    measured_in: str | None = Field(description="key of that run")
    free_gib: float | None = Field(description="free memory of this machine; null: the workers run elsewhere")
    device_gib: float | None = Field(description="device memory of one worker; null: not known, as on a processor")

    @property
    def needed_gib(self) -> float:
        """The measured or else the estimated memory of all workers on this machine, or of one on its device."""
        one = self.measured_gib or self.total_gib
        return one if self.device_gib is not None else self.workers * one

    @property
    def there_gib(self) -> float | None:
        """The memory that must hold it; None if not known."""
        return self.device_gib if self.device_gib is not None else self.free_gib

    @property
    def is_short(self) -> bool:
        """True if there is less memory than needed."""
        return self.there_gib is not None and self.needed_gib > self.there_gib

    @property
    def way_out(self) -> str:
        """The settings that lower the largest part; empty if it fits."""
        if not self.is_short:
            return ""
        states = self.weights_gib + self.gradients_gib + self.optimizer_gib + self.average_gib
        if self.device_gib is not None and states > self.device_gib:
            return (
                "the weights and their optimizer alone do not fit: train.precision=bf16-weights, or a smaller encoder"
            )
        smaller = "lower train.batch_rows"
        if self.activations_gib > self.logits_gib:  # chunks share the encoder's work, not the loss's
            smaller = f"raise train.gradcache_chunks, or {smaller}"
        return smaller + ("" if self.device_gib is not None else ", train.workers")


class Speed(Record):
    """The speed of one machine, alone."""

    operations_per_second: float = Field(description="multiplications and additions a second")
    mfu: float | None = Field(description="share of the machine's peak; null: its peak is not known")
    basis: Basis = Field(description="kind of its source, as in StageCost")
    source: str = Field(description="origin of the speed, in words")


class Exchange(Record):
    """The collectives of one step, inside each node first, then between the nodes.

    Gradients are summed; vectors of the batch are gathered, and their gradients scattered.
    """

    gradient_bytes: int = Field(description="bytes of all gradients, which each worker holds")
    vector_bytes: int = Field(description="bytes of the global batch's vectors that are gathered")
    inside_seconds: float = Field(description="over the links of a node")
    between_seconds: float = Field(description="over the network between nodes; 0: one node")

    @property
    def seconds(self) -> float:
        return self.inside_seconds + self.between_seconds


class TrainingSpeed(Record):
    """The formula of a training: operations, speed, and the part of a step that is communication."""

    tokens: float = Field(description="tokens with padding of all steps")
    operations: float = Field(description="operations of the encoder over them, forward and backward")
    speed: Speed = Field(description="speed of one machine alone")
    efficiency: float = Field(description="speed of all machines as a share of one's times their number")
    seconds: float = Field(description="seconds of all steps")
    steps: int | None = Field(description="training steps; null: rows were not counted")
    exchange: Exchange | None = Field(description="collectives of one step; null: one worker, or no known network")
    share: float | None = Field(description="collectives as a share of a step; null: not known")

    @property
    def warning(self) -> str:
        """A warning if the collectives take too much of a step; else empty."""
        if self.share is None or self.share <= MOST_COMMUNICATION:
            return ""
        return f"communication takes {self.share:.0%} of a step: fewer machines, or a larger train.batch_rows"


class RunCost(Record):
    """The expected time and cost of a run, or of the rest of it."""

    stages: tuple[StageCost, ...]
    memory: TrainMemory | None = Field(
        description="memory of a training worker; null: nothing to train, or the encoder is not on this machine"
    )
    training: TrainingSpeed | None = Field(description="null: nothing to train, or no formula for these machines")
    seconds: float | None = Field(description="wall time of all stages; null: that of a stage is not known")
    dollars: float | None = Field(description="cost of all stages; null: that of a stage is not known")
    unknown: tuple[str, ...] = Field(description="sentences: figures that are not known, and why")


class MachinePlan(Record):
    """A run on a number of machines."""

    instance: str | None = Field(description="instance type of the training; null: the configuration names none")
    nodes: int = Field(description="machines of the training; a local worker counts as one")
    cost: RunCost = Field(description="cost of the run there")
    in_time: bool | None = Field(description="true: it ends within freshness.deadline_hours; null: not known")


class CostPlan(Record):
    """A run on each requested number of machines, before it begins."""

    run_key: str
    span: str
    rows: int = Field(description="ingested rows of the window")
    batch_rows: int = Field(description="rows of the global batch, the same on any number of machines")
    deadline_hours: float = Field(description="freshness.deadline_hours")
    choices: tuple[MachinePlan, ...] = Field(description="the run on each number of machines, in the order asked for")
    cheapest: int | None = Field(description="nodes of the cheapest choice; null: no cost is known")
    fewest_in_time: int | None = Field(description="nodes of the smallest choice within the deadline; null: none")


class PlannedRun(Record):
    """`planned.json` of a run: its expected cost when it first began."""

    version: Literal[1] = 1
    run_key: str
    at: Moment = Field(description="time of the estimate")
    cost: RunCost


class Against(Record):
    """A stage's planned and actual figures; the stage `all` has the sums."""

    name: str
    planned_seconds: float | None
    actual_seconds: float | None = Field(description="wall time of the attempt that succeeded; null: not done here")
    planned_dollars: float | None
    actual_dollars: float | None

    @property
    def error(self) -> float | None:
        """The planned seconds as a share above the actual ones; None if one is not known."""
        if self.planned_seconds is None or not self.actual_seconds:
            return None
        return self.planned_seconds / self.actual_seconds - 1
