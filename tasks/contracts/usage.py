"""What the work of a stage took: graphs, their compiling, steps by shape, devices, tokens, negatives, checkpoints."""

from pydantic import Field

from tasks.foundation.records import Record

MOST_COMMUNICATION = 0.25  # of a step, before it is a warning
LEAST_RATE = 0.1  # of the peak; a lower rate is a warning, since the lineage hardly learns any more


class NewGraph(Record):
    """A graph that warmup had not compiled, and where it first ran."""

    name: str = Field(description="name of the graph")
    where: str = Field(description="step that first needed it")
    seconds: float


class GraphUse(Record):
    """How the compile cache served one process."""

    hits: int = Field(description="graphs used that the cache's manifest names")
    misses: int
    compile_seconds: float = Field(description="seconds of compiling, or of reading compiled graphs back")
    seconds_saved: float = Field(description="seconds of compiling in warmup, less those here; 0 if not readable")
    readable: bool = Field(description="true: this runtime can read compiled graphs back")
    compiled: tuple[str, ...] = Field(description="names of the graphs that were compiled in this process")
    new: tuple[NewGraph, ...] = Field(description="compiled graphs that the manifest does not name")

    @property
    def sentence(self) -> str:
        """For people."""
        if not self.hits:
            return f"compiled {self.misses} graphs in {self.compile_seconds:.1f} s; none was there before"
        met = f"{self.hits} graphs that warmup had compiled, {self.misses} new"
        if self.readable:
            return f"{met}; {self.seconds_saved:.1f} s of compiling saved"
        return f"{met}; this runtime can't read compiled graphs back, so they took {self.compile_seconds:.1f} s again"


class ShapeTiming(Record):
    """The steps of the trial run, on batches of one worker's shape."""

    sequences: int = Field(description="packed ones of a batch")
    tokens: int = Field(description="of a sequence")
    first_step_seconds: float
    step_seconds: float


class EfaUse(Record):
    """What the EFA interfaces of one node moved while it trained, by their driver's counters."""

    interfaces: int
    sent_gib: float
    received_gib: float
    faults: dict[str, int] = Field(description="drops, repetitions and errors, by the driver's names; none: left out")


class DeviceUse(Record):
    """NeuronCores and device memory of one node while it trained, from one reading every few seconds."""

    node: int
    readings: int
    utilization_median: float = Field(description="percent of time the cores computed; the mean of those in use")
    utilization_peak: float
    memory_gib_median: float = Field(description="of all devices of the node together")
    memory_gib_peak: float
    efa: EfaUse | None = Field(default=None, description="null: no EFA")


class Communication(Record):
    """The part of a training step in which the workers exchange numbers."""

    seconds: float = Field(description="of a step; at most so many where estimated, as a device may compute meanwhile")
    step_seconds: float = Field(description="of a step, evaluations and checkpoints not counted")
    measured: bool = Field(description="false: estimated from the gradients' bytes and the rates that health measured")

    @property
    def share(self) -> float:
        return self.seconds / self.step_seconds

    @property
    def warning(self) -> str:
        """A sentence where it takes too much of a step; else empty."""
        if self.share <= MOST_COMMUNICATION:
            return ""
        return (
            f"{self.share:.0%} of a step of {self.step_seconds:.3g} s is communication between the workers, more than "
            f"{MOST_COMMUNICATION:.0%}: raise train.batch_rows, use fewer machines, or see whether the network is slow "
            "(millrace smoke)"
        )


class RateUse(Record):
    """The learning rate that the schedule had come to at the last step of a run."""

    rate: float = Field(description="before train.decay_before_release")
    peak: float = Field(description="train.learning_rate")
    warmed_up: bool = Field(description="false: the lineage is still on its way to the peak")

    @property
    def share(self) -> float:
        return self.rate / self.peak

    @property
    def warning(self) -> str:
        """A warning if the rate is below LEAST_RATE of its peak; else empty."""
        if not self.warmed_up or self.share >= LEAST_RATE:
            return ""
        return (
            f"the learning rate has come down to {self.share:.1%} of its peak: what is new in a span is learnt ever "
            "more slowly; raise train.learning_rate_floor"
        )


class TokenUse(Record):
    """Tokens of all batches of an attempt, by all workers."""

    real: int = Field(description="of the texts that were trained on")
    cut: int = Field(description="the last tokens of texts that found no room in their batch")
    computed: int = Field(description="with padding")


class MinedNegatives(Record):
    """The hard negatives of a run, and what they cost."""

    release: int = Field(description="number of the release they were mined from")
    pairs: int = Field(description="rows of the run that have at least one")
    negatives: int = Field(description="of all rows together")
    items: int = Field(description="different items among them")
    embedded: int = Field(description="texts that the released model embedded for it; 0: they were mined before")
    seconds: float


class CheckpointUse(Record):
    """When an attempt wrote checkpoints to go on from, why so often, and what they cost it."""

    every: str = Field(description="train.checkpoint_every")
    written: int = Field(description="apart from the one at the end of the run")
    stalled_seconds: float = Field(description="that training waited for all of these, or ran slower by")
    training_seconds: float = Field(description="from the first evaluation to the last step")
    seconds: float | None = Field(description="from one to the next, as last decided; null: steps are counted")
    write_seconds: float | None = Field(
        description="of stall that one write costs, which auto reckons with: the mean of those written, else 1; null: "
        "not auto, as the next two"
    )
    seconds_between_failures: float | None = Field(description="mean that auto reckons with; a day where few are known")
    failures: int | None = Field(description="that cost work, among the attempts on record")
    attempts: int | None = Field(description="on record, of the lineage's newest trainings")

    @property
    def stalled_share(self) -> float:
        """Of the training."""
        return self.stalled_seconds / self.training_seconds if self.training_seconds else 0.0
