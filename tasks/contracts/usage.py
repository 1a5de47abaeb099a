"""Resource use of a stage: graphs and their compilation, steps by shape, devices, tokens, negatives, checkpoints."""

from pydantic import Field

from tasks.foundation.nouns import plural
from tasks.foundation.records import Record

MOST_COMMUNICATION = 0.25  # share of a step; more is a warning
LEAST_RATE = 0.1  # share of the peak; a lower rate is a warning, since the lineage hardly learns any more


class NewGraph(Record):
    """A graph that warmup had not compiled, and the step that first ran it."""

    name: str = Field(description="name of the graph")
    where: str = Field(description="step that first needed it")
    seconds: float


class GraphUse(Record):
    """The use of the compile cache by one process."""

    hits: int = Field(description="used graphs that the cache's manifest names")
    misses: int
    compile_seconds: float = Field(description="seconds of compiling, or of reading compiled graphs back")
    seconds_saved: float = Field(description="seconds of compiling in warmup, less those here; 0 if not readable")
    readable: bool = Field(description="true: this runtime can read compiled graphs back")
    compiled: tuple[str, ...] = Field(description="names of the graphs that were compiled in this process")
    new: tuple[NewGraph, ...] = Field(description="compiled graphs that the manifest does not name")

    @property
    def sentence(self) -> str:
        """A summary for people."""
        if not self.hits:
            return f"compiled {plural(self.misses, 'graph')} in {self.compile_seconds:.1f} s; none was there before"
        met = f"{plural(self.hits, 'graph')} that warmup had compiled, {self.misses} new"
        if self.readable:
            return f"{met}; {self.seconds_saved:.1f} s of compiling saved"
        return f"{met}; this runtime can't read compiled graphs back, so they took {self.compile_seconds:.1f} s again"


class ShapeTiming(Record):
    """The trial run's steps on batches of one shape, as one worker gets them."""

    sequences: int = Field(description="packed sequences in a batch")
    tokens: int = Field(description="tokens in a sequence")
    first_step_seconds: float
    step_seconds: float


class EfaUse(Record):
    """Traffic of one node's EFA interfaces while it trained, by their driver's counters."""

    interfaces: int
    sent_gib: float
    received_gib: float
    faults: dict[str, int] = Field(
        description="drops, retransmissions and errors, by the driver's names; without zeros"
    )


class DeviceUse(Record):
    """Use of NeuronCores and device memory on one node while it trained, from a reading every few seconds."""

    node: int
    readings: int
    utilization_median: float = Field(description="percent of time that cores computed; mean of the cores in use")
    utilization_peak: float
    memory_gib_median: float = Field(description="memory of all devices of the node together")
    memory_gib_peak: float
    efa: EfaUse | None = Field(default=None, description="null: no EFA")


class Communication(Record):
    """The share of a training step that the workers spend on communication."""

    seconds: float = Field(description="communication in a step; an estimate is an upper bound, as it may overlap")
    step_seconds: float = Field(description="whole step, without evaluations and checkpoints")
    measured: bool = Field(
        description="false: estimated from the collectives' bytes and the rates that health measured"
    )

    @property
    def share(self) -> float:
        return self.seconds / self.step_seconds

    @property
    def efficiency(self) -> float:
        """Speed of the workers over the sum of as many alone, by communication: rows per worker and step are equal.

        A measured communication includes the wait for slower workers; an estimate gives a lower bound.
        """
        return max(0.0, 1 - self.share)

    @property
    def warning(self) -> str:
        """A warning if communication takes too much of a step; else empty."""
        if self.share <= MOST_COMMUNICATION:
            return ""
        return (
            f"{self.share:.0%} of a step of {self.step_seconds:.3g} s is communication between the workers, more than "
            f"{MOST_COMMUNICATION:.0%}: raise train.batch_rows, use fewer machines, or see whether the network is slow "
            "(millrace doctor --deep)"
        )


class RateUse(Record):
    """The learning rate of the schedule at the last step of a run."""

    rate: float = Field(description="learning rate before train.decay_before_release")
    peak: float = Field(description="train.learning_rate")
    warmed_up: bool = Field(description="false: the lineage is still in the schedule's warmup")

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

    real: int = Field(description="tokens of the texts that were trained on")
    cut: int = Field(description="tokens cut from the end of texts that did not fit in their batch")
    computed: int = Field(description="tokens with padding")


class MinedNegatives(Record):
    """The hard negatives of a run, and their cost."""

    release: int = Field(description="number of the release they were mined from")
    pairs: int = Field(description="rows of the run that have at least one")
    negatives: int = Field(description="negatives of all rows together")
    items: int = Field(description="distinct items among the negatives")
    embedded: int = Field(description="texts that the released model embedded for mining; 0: mined before")
    seconds: float


class CheckpointUse(Record):
    """The schedule, reason and cost of the checkpoints that an attempt wrote to resume from."""

    every: str = Field(description="train.checkpoint_every")
    written: int = Field(description="checkpoints, without the one at the end of the run")
    stalled_seconds: float = Field(description="time that training lost by waiting for these, or by running slower")
    training_seconds: float = Field(description="time from the first evaluation to the last step")
    seconds: float | None = Field(description="current interval between checkpoints; null: steps are counted")
    write_seconds: float | None = Field(
        description="stall per checkpoint that auto assumes: measured mean, else 1; null: not auto, as the next three"
    )
    seconds_between_failures: float | None = Field(
        description="mean that auto assumes; a day if few failures are known"
    )
    failures: int | None = Field(description="recorded attempts that failed and lost work")
    attempts: int | None = Field(description="recorded attempts of the lineage's newest trainings")

    @property
    def stalled_share(self) -> float:
        """The stalled share of the training time."""
        return self.stalled_seconds / self.training_seconds if self.training_seconds else 0.0
