"""What passes between the planes: the spec that starts a stage, and the record that it ends with.

Records hold references (keys of the workspace), never data. Both planes import this file; it needs neither
torch nor Prefect.
"""

from __future__ import annotations

import enum
from typing import Literal

from pydantic import Field

from configs.schema import Config, Severity
from tasks.records import Record


class Stage(enum.StrEnum):
    """The stages, in order."""

    validate = "validate"
    health = "health"
    warmup = "warmup"
    train = "train"
    evaluate = "evaluate"
    infer = "infer"
    release = "release"


class Chore(enum.StrEnum):
    """Work for a worker that is no stage: nothing of the pipeline waits for it."""

    import_checkpoint = "import-checkpoint"


# --- references -------------------------------------------------------------------------------------------------


class SpanRef(Record):
    """One version of one span of ingested input: `spans/<name>/v<version>/`."""

    name: str
    version: int = Field(ge=1)

    @property
    def prefix(self) -> str:
        return f"spans/{self.name}/v{self.version}"


class RowsRef(Record):
    """The validated rows of one span; a folder with a manifest."""

    span: SpanRef
    prefix: str
    rows: int


class CheckpointRef(Record):
    """A complete checkpoint; `sha256` is over its manifest, so it names exact weights."""

    prefix: str
    step: int
    sha256: str


class CurvePoint(Record):
    """Numbers at one global step: a loss as training saw it, or the holdout as the in-loop evaluation did."""

    step: int
    metrics: dict[str, float]


class CheckpointState(Record):
    """`state.json` of a checkpoint: where the lineage stands. The control plane reads this, never the weights.

    There is no random state beside `seed`: every step's generator is seeded from (seed, global step), and the
    position in the data is the step number, because the batch plan is a pure function.
    """

    version: Literal[1] = 1
    lineage: str
    run_key: str
    step: int = Field(ge=0, description="global optimiser steps along the lineage")
    first_step: int = Field(ge=0, description="the global step at which this run began")
    complete: bool = Field(description="the run's last batch is done, so its spans count as consumed")
    consumed: tuple[RowsRef, ...] = Field(description="all spans in the weights, oldest first; of this run if complete")
    parent: CheckpointRef | None
    seed: int
    losses: tuple[CurvePoint, ...] = Field(description="of this run so far, every train.log_every_steps")
    curve: tuple[CurvePoint, ...] = Field(description="of this run so far, every train.evaluate_every_steps")


class CompileRef(Record):
    """The compile cache that warmup made: `compile/<key>/`, with `graphs` compiled graphs in its manifest."""

    key: str
    graphs: int
    seconds: float = Field(description="what compiling all of them took, in whichever run that was")

    @property
    def prefix(self) -> str:
        return f"compile/{self.key}"


class ModelRef(Record):
    """A model version with the checkpoint that it came from."""

    version: str
    checkpoint: CheckpointRef


# --- what each stage is given -----------------------------------------------------------------------------------


class ValidateInputs(Record):
    """The window is every span that this run will train on; history is what the lineage trained on before."""

    stage: Literal[Stage.validate] = Stage.validate
    window: tuple[SpanRef, ...]
    history: tuple[RowsRef, ...]


class HealthInputs(Record):
    stage: Literal[Stage.health] = Stage.health


class WarmupInputs(Record):
    stage: Literal[Stage.warmup] = Stage.warmup
    rows: tuple[RowsRef, ...]
    parent: CheckpointRef | None


class TrainInputs(Record):
    """`rows` are trained on; the in-loop evaluation also looks at the holdout of `history`."""

    stage: Literal[Stage.train] = Stage.train
    rows: tuple[RowsRef, ...]
    history: tuple[RowsRef, ...]
    parent: CheckpointRef | None
    compiled: CompileRef | None = None


class EvaluateInputs(Record):
    """The holdout is pooled over all `rows`; the champion, where there is one, is judged on the same."""

    stage: Literal[Stage.evaluate] = Stage.evaluate
    rows: tuple[RowsRef, ...]
    challenger: ModelRef
    champion: ModelRef | None
    compiled: CompileRef | None = None


class InferInputs(Record):
    stage: Literal[Stage.infer] = Stage.infer
    rows: RowsRef
    model: ModelRef
    compiled: CompileRef | None = None


class ReleaseInputs(Record):
    stage: Literal[Stage.release] = Stage.release
    model: ModelRef
    vectors: str
    rows: RowsRef


class ImportInputs(Record):
    """`rows` are those that a new model is made from."""

    stage: Literal[Chore.import_checkpoint] = Chore.import_checkpoint
    file: str = Field(description="path where it was asked for")
    copy_key: str | None = Field(description="its copy in the workspace, for a worker on another machine")
    sha256: str = Field(description="of the file as it was asked for")
    rows: tuple[RowsRef, ...]


Inputs = (
    ValidateInputs
    | HealthInputs
    | WarmupInputs
    | TrainInputs
    | EvaluateInputs
    | InferInputs
    | ReleaseInputs
    | ImportInputs
)


class JobSpec(Record):
    """Everything a worker needs to know; written to the workspace before the worker starts."""

    version: Literal[1] = 1
    run_key: str
    span: SpanRef
    attempt: int = Field(ge=1)
    submitted_as: int = Field(ge=1, description="the attempt it was started as; AWS Batch's own retries count on")
    workspace: str
    workers: int = Field(ge=1)
    config: Config
    inputs: Inputs = Field(discriminator="stage")

    @property
    def stage(self) -> Stage | Chore:
        return self.inputs.stage

    @property
    def stage_prefix(self) -> str:
        return stage_prefix(self.run_key, self.stage)

    @property
    def attempt_prefix(self) -> str:
        return f"{self.stage_prefix}/attempt-{self.attempt}"

    @property
    def job_prefix(self) -> str:
        """The folder of the attempt that was submitted, shared by all tries that AWS Batch makes of it."""
        return f"{self.stage_prefix}/attempt-{self.submitted_as}"


def stage_prefix(run_key: str, stage: Stage | Chore) -> str:
    """The folder of one stage of one run, or of a chore for one."""
    return f"runs/{run_key}/{stage.value}"


# --- what each stage ends with ----------------------------------------------------------------------------------


Action = Literal["proceed", "retry elsewhere", "exclude host", "stop"]


class Check(Record):
    """One expectation and what came of it. `sentence` is for people, with the numbers in it."""

    name: str
    passed: bool
    severity: Severity
    observed: float | None
    sentence: str
    host: str = Field(default="", description="the machine that it is about; empty: all of them, or the input")
    action: Action = Field(default="proceed", description="what follows from a failure")


class ValidateOutcome(Record):
    stage: Literal[Stage.validate] = Stage.validate
    rows: tuple[RowsRef, ...]
    rows_in: int
    rows_clean: int
    rows_quarantined: int
    reasons: dict[str, int] = Field(description="quarantine reason -> rows")
    quarantine: str | None = Field(description="key of the Parquet file with the bad rows")
    checks: tuple[Check, ...]


class HealthOutcome(Record):
    """Numbers by rank, and the bandwidth and latency of the collectives."""

    stage: Literal[Stage.health] = Stage.health
    device: str
    matmul_gflops: tuple[float, ...]
    slowest_to_median: float
    free_memory_gib: tuple[float, ...]
    free_disk_gib: float
    collectives: dict[str, float] = Field(description="empty for one worker; GB/s and microseconds by name")
    checks: tuple[Check, ...]


class NewGraph(Record):
    """A graph that warmup had not compiled, and what was being done when it was met."""

    name: str
    where: str
    seconds: float


class GraphUse(Record):
    """How the compile cache served one process."""

    hits: int = Field(description="graphs met that the cache's manifest names")
    misses: int
    compile_seconds: float = Field(description="spent compiling, or reading compiled graphs back")
    seconds_saved: float = Field(description="what compiling cost warmup, less what it cost here; 0 if not readable")
    readable: bool = Field(description="whether this runtime reads compiled graphs back at all")
    compiled: tuple[str, ...] = Field(description="names of the graphs that were compiled in this process")
    new: tuple[NewGraph, ...] = Field(description="those among them that the manifest does not name")

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
    """The trial run at one rung of the ladder."""

    query_tokens: int
    item_tokens: int
    first_step_seconds: float
    step_seconds: float


class WarmupOutcome(Record):
    stage: Literal[Stage.warmup] = Stage.warmup
    device: str
    shapes: tuple[ShapeTiming, ...]
    validation_seconds: float
    checkpoint_seconds: float
    peak_memory_gib: float
    compiled: CompileRef | None = Field(description="null on devices that compile nothing")
    graphs: GraphUse | None = Field(description="null on devices that compile nothing")
    trial_losses: tuple[float, ...] = Field(description="of the trial's steps; good for comparing trials, else garbage")
    trial_metrics: dict[str, float] = Field(description="of the holdout after the trial's steps, likewise")
    environment: dict[str, str] = Field(description="compiler and runtime variables that were set")


class TrainOutcome(Record):
    stage: Literal[Stage.train] = Stage.train
    checkpoint: CheckpointRef
    model_version: str
    first_step: int
    last_step: int
    resumed_at_step: int | None
    rows_trained: int
    pairs_per_second: float
    losses: tuple[CurvePoint, ...]
    curve: tuple[CurvePoint, ...]
    precision: str
    graphs: GraphUse | None = Field(description="null on devices that compile nothing")
    environment: dict[str, str] = Field(description="compiler and runtime variables that were set")


class SliceMetrics(Record):
    column: str
    value: str
    rows: int
    metrics: dict[str, float]


class Verdict(Record):
    """One gate's judgement. `passed` is None where the gate does not apply (no champion yet)."""

    metric: str
    severity: Severity
    passed: bool | None
    value: float | None
    baseline: float | None
    sentence: str


class EvaluateOutcome(Record):
    """Metrics of the challenger and, on the same rows, of the champion. The gates are judged in the control plane."""

    stage: Literal[Stage.evaluate] = Stage.evaluate
    holdout_rows: int
    corpus_items: int
    challenger: dict[str, float]
    champion: dict[str, float] | None
    champion_version: str | None
    slices: tuple[SliceMetrics, ...]


class InferOutcome(Record):
    stage: Literal[Stage.infer] = Stage.infer
    prefix: str
    vectors: int
    width: int
    shards: int
    shards_reused: int
    texts_per_second: float


class ReleaseOutcome(Record):
    """The exported, probed model folder; the pointer itself is moved by the control plane."""

    stage: Literal[Stage.release] = Stage.release
    model: str
    min_cosine: float
    probed: int


class ImportOutcome(Record):
    """Weights from elsewhere as a lineage's first checkpoint. Names are the file's, but those in `new`."""

    stage: Literal[Chore.import_checkpoint] = Chore.import_checkpoint
    checkpoint: CheckpointRef
    sha256: str = Field(description="of the file")
    mapped: int = Field(description="tensors that were taken")
    ignored: tuple[str, ...] = Field(description="tensors that are known to be of no use here")
    unexpected: tuple[str, ...] = Field(description="tensors that nothing of the model is like; left out")
    new: tuple[str, ...] = Field(description="the model's weights that the file lacks; they begin as a new model's")


Outcome = (
    ValidateOutcome
    | HealthOutcome
    | WarmupOutcome
    | TrainOutcome
    | EvaluateOutcome
    | InferOutcome
    | ReleaseOutcome
    | ImportOutcome
)


class RunPlan(Record):
    """`runs/<run key>/plan.json`: what one run will do, fixed before it does it."""

    version: Literal[1] = 1
    run_key: str
    span: SpanRef
    window: tuple[SpanRef, ...] = Field(description="the spans this run trains on, oldest first, ending with `span`")
    history: tuple[RowsRef, ...] = Field(description="what the lineage trained on before")
    parent: CheckpointRef | None
    workspace: str
    config: Config


class Release(Record):
    """`releases/<n>.json`: a model version bound to the vectors made by exactly that model."""

    version: Literal[1] = 1
    number: int = Field(ge=1)
    previous: int | None = Field(description="the release that was current when this one was made")
    span: SpanRef
    run_key: str
    model: ModelRef
    model_prefix: str
    vectors_prefix: str
    vectors: int
    metrics: dict[str, float]
    created_at: str


class Phases(Record):
    """Where the seconds of an attempt went. They add up to its wall time, apart from rounding."""

    queued: float = 0.0
    booting: float = 0.0
    compiling: float = 0.0
    restoring: float = 0.0
    productive: float = 0.0
    lost: float = 0.0


class StageResult(Record):
    """`result.json`: written last, after all outputs are complete and checksummed."""

    version: Literal[1] = 1
    run_key: str
    attempt: int
    config_sha256: str
    phases: Phases
    outcome: Outcome = Field(discriminator="stage")


class WorkerFailure(Record):
    """`error-rank<r>.json`: how one worker process died; the earliest among the ranks is the root cause."""

    version: Literal[1] = 1
    rank: int
    at: float = Field(description="seconds since the epoch")
    failure: str
    message: str
    traceback: str
    phases: Phases
