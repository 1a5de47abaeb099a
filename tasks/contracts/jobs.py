"""The spec that starts a stage's workers, the inputs of each stage, and the interface of a runner of specs.

Both planes import this file; it needs neither torch nor Prefect. infra/compute/local.py runs stages on this
machine, infra/compute/batch on AWS Batch.
"""

import hashlib
import json
import re
from typing import Literal, Protocol

from pydantic import Field

from configs.schema.config import Config
from tasks.contracts.evaluation import ByQueries, Override, Role
from tasks.contracts.kinds import run_folder
from tasks.contracts.references import (
    CatalogueRef,
    CheckpointRef,
    CompileRef,
    FeedRef,
    MinedRelease,
    ModelRef,
    ReleasedRef,
    RowsRef,
    SpanRef,
    Weights,
)
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.workspace import VECTORS
from tasks.foundation.errors import ConfigError, FailureClass
from tasks.foundation.records import Record, beside

TURN = "number of the newest release, which says whose bytes are compared before files are named on"
_ADDRESS = re.compile(r"(.*)#([^#]+\.json(?:#[0-9a-f]{64})?)", re.DOTALL)


class ValidateInputs(Record):
    """`window` has the spans that this run will train on; `history` has the rows that the lineage trained on before.

    The catalogue is built from the rows of both, of `others` and of the item feeds. If one of `bases` was built from a
    part of them, only the rest is read.
    """

    stage: Literal[Stage.validate] = Stage.validate
    window: tuple[SpanRef, ...]
    history: tuple[RowsRef, ...]
    feeds: tuple[FeedRef, ...] = beside()
    texts: tuple[FeedRef, ...] = Field(
        default=(),
        description="versions of the item feed that give texts to rows of ids alone; empty: the rows have texts",
    )
    waiting: str | None = Field(
        default=None, description="folder of rows of earlier spans whose items no feed knew; null: none"
    )
    bases: tuple[CatalogueRef, ...] = beside()
    turn: int = beside(default=0, description=TURN)
    others: tuple[RowsRef, ...] = beside(
        default=(), description="more rows for the catalogue; they replace older versions of their spans"
    )
    catalogue: bool = Field(default=True, description="false: build no catalogue, since nothing will be embedded")
    parent: CheckpointRef | None = Field(
        default=None, description="checkpoint that training starts from; rows are checked by its categories and tokens"
    )
    kept_out: str | None = beside(default=None, description="key of the golden set, whose rows are not trained on")


class HealthInputs(Record):
    stage: Literal[Stage.health] = Stage.health


class WarmupInputs(Record):
    stage: Literal[Stage.warmup] = Stage.warmup
    rows: tuple[RowsRef, ...]
    parent: CheckpointRef | None
    mined: MinedRelease | None = Field(default=None, description="as in train; makes room for negatives in batches")
    items: Weights | None = Field(default=None, description="as in train")


class TrainInputs(Record):
    """`rows` are trained on; the in-loop evaluation also measures the holdout of `history`.

    No query-item pair of a row of either is ever a negative.
    """

    stage: Literal[Stage.train] = Stage.train
    rows: tuple[RowsRef, ...]
    history: tuple[RowsRef, ...]
    parent: CheckpointRef | None
    compiled: CompileRef | None = beside(None)
    mined: MinedRelease | None = Field(
        default=None, description="source of hard negatives; null: not wanted, or no release yet"
    )
    golden: str | None = Field(default=None, description="key of the golden set, whose pairs are never negatives")
    items: Weights | None = Field(
        default=None, description="model whose item vectors queries are trained to find; null: both sides are trained"
    )
    positives: str | None = beside(
        default=None, description="folder of the known pairs that validate wrote; null: they are found from the keys"
    )
    replayed: str | None = beside(
        default=None, description="folder of the replayed rows that validate drew; null: none, or train draws them"
    )


class Rival(Record):
    """A released model, other than the champion, that is measured on the same rows."""

    role: Role
    release: int
    model: ModelRef
    vectors: str | None = Field(description="folder of its release's vectors; null: all items are embedded again")


class EvaluateInputs(Record):
    """Every model is measured on the holdout of all `rows`, against the items of the catalogue."""

    stage: Literal[Stage.evaluate] = Stage.evaluate
    rows: tuple[RowsRef, ...]
    catalogue: CatalogueRef
    challenger: ModelRef
    challenger_vectors: str | None = Field(
        default=None, description="folder of its vectors of the catalogue; null: a small catalogue, embedded here"
    )
    champion: ModelRef | None = beside(description="null: nothing is released yet")
    champion_vectors: str | None = beside(default=None, description="folder of its release's vectors")
    champion_release: int | None = beside(default=None, description="number of its release")
    begun_with: CheckpointRef | None = beside(
        default=None, description="imported initial weights; null: the lineage began with a new model"
    )
    rivals: tuple[Rival, ...] = beside(default=(), description="other releases that gates may compare with")
    golden: str | None = Field(default=None, description="key of the golden set's Parquet file; null: none")
    compiled: CompileRef | None = beside(None)


class InferInputs(Record):
    stage: Literal[Stage.infer] = Stage.infer
    catalogue: CatalogueRef
    model: Weights
    reuse: str | None = beside(default=None, description="folder of earlier vectors of the same model")
    reuse_sha256: str | None = beside(
        default=None, description="SHA-256 of its manifest, from its release; the folder doesn't vouch for itself"
    )
    turn: int = beside(default=0, description=TURN)
    folder: str | None = Field(
        default=None,
        description="name of the vectors' folder, of a refresh or beside one that lost a file; null: the catalogue's",
    )
    compiled: CompileRef | None = beside(None)

    @property
    def vectors_of(self) -> dict[str, str]:
        """The model version and a name, mostly the catalogue's, which name the vectors and their shard notes."""
        return {"version": self.model.version, "catalogue": self.folder or self.catalogue.prefix.rpartition("/")[2]}

    @property
    def vectors(self) -> str:
        """The folder that the vectors are written to."""
        return VECTORS.key(**self.vectors_of)


class Carried(Record):
    """The release that a refresh brings up to date, with the measurements that hold on if few items have changed."""

    release: ReleasedRef
    metrics: dict[str, float] = Field(description="metrics of holdout queries against all vectors")
    unsearched: int = Field(description="items changed since the measurements")


class ReleaseInputs(Record):
    """All vectors, and the vectors of the release `before`, are searched with the holdout queries of `rows`.

    Not so for a refresh with `carried` measurements, unless many items have changed.
    """

    stage: Literal[Stage.release] = Stage.release
    model: ModelRef
    vectors: str
    catalogue: CatalogueRef
    rows: tuple[RowsRef, ...] = Field(default=(), description="rows of all spans that the model was trained on")
    metrics: dict[str, float] = beside(default={}, description="metrics of the evaluation, for the model card")
    by_queries: ByQueries | None = beside(default=None, description="the same by queries, likewise; null: not measured")
    before: ReleasedRef | None = beside(default=None, description="previous release; null: none, or without catalogue")
    overrides: tuple[Override, ...] = beside(default=(), description="overrides of the gates, for the model card")
    carried: Carried | None = beside(default=None, description="release that is refreshed; null: a new model")
    model_sha256: str | None = beside(
        default=None, description="SHA-256 of the model folder's manifest, from its release; null: not released yet"
    )


class ImportInputs(Record):
    """`rows` are needed to build the new model that takes the weights."""

    stage: Literal[Chore.import_checkpoint] = Chore.import_checkpoint
    file: str = Field(description="path on the machine that runs the command")
    copy_key: str | None = Field(description="key of its copy in the workspace, for a worker on another machine")
    sha256: str = Field(description="SHA-256 of the file")
    rows: tuple[RowsRef, ...]


class PublishInputs(Record):
    """One release for one target of the configuration."""

    stage: Literal[Chore.publish] = Chore.publish
    target: str = Field(description="name of the target")
    release: int
    model_version: str = Field(description="model that embeds the queries")
    vectors_by: str = Field(description="model of the vectors; mostly the same")
    vectors: str = Field(description="folder of the release's vectors")
    vectors_sha256: str = Field(description="SHA-256 of that folder's manifest, from the release")
    model: str = Field(description="folder of the release's model, which embeds the queries for a narrow target")
    model_sha256: str = Field(description="SHA-256 of that folder's manifest, from the release")
    rows: tuple[RowsRef, ...] = Field(default=(), description="rows of the spans whose holdout has these queries")
    measured: str | None = Field(default=None, description="table whose recall of these queries is on record")
    only_current: bool = Field(description="true: leave the target alone if another release is current by then")
    swap_alone: bool = Field(default=False, description="true: serve the release's existing table; load nothing")
    take_over: bool = Field(default=False, description="true: also a target that another workspace published to")


Inputs = (
    ValidateInputs
    | HealthInputs
    | WarmupInputs
    | TrainInputs
    | EvaluateInputs
    | InferInputs
    | ReleaseInputs
    | ImportInputs
    | PublishInputs
)


class JobSpec(Record):
    """All inputs of a worker; written to the workspace before the worker starts."""

    version: Literal[1] = 1
    run_key: str
    span: SpanRef
    attempt: int = Field(ge=1)
    submitted_as: int = Field(ge=1, description="the attempt that was submitted; AWS Batch's retries count up from it")
    workspace: str
    workers: int = Field(ge=1)
    config: Config
    inputs: Inputs = Field(discriminator="stage")
    fences: tuple[str, ...] = Field(default=(), description="keys of records that must name this attempt, or be absent")

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
        """The folder of the submitted attempt, which its retries by AWS Batch share."""
        return f"{self.stage_prefix}/attempt-{self.submitted_as}"

    @property
    def sha256(self) -> str:
        """Hex SHA-256 over the spec as it is written to the workspace, where others may write too."""
        return hashlib.sha256(self.to_json()).hexdigest()


def stage_prefix(run_key: str, stage: Stage | Chore) -> str:
    """Return the folder of a stage, or of a chore, of one run."""
    return f"{run_folder(run_key)}/{stage.value}"


def address(workspace: str, key: str) -> str:
    """Return the word that names a spec to its workers: `WORKSPACE#KEY`, or `WORKSPACE#KEY#SHA256`.

    Args:
        key: of the spec, which may end with `#` and its SHA-256.
    """
    return f"{workspace}#{key}"


def cut_address(word: str) -> tuple[str, str]:
    """Return the workspace and the key of a spec's address. It is cut from the right: a folder may be named `a#b`.

    Raises:
        ConfigError: the word is no address.
    """
    if not (found := _ADDRESS.fullmatch(word)):
        raise ConfigError(f"--spec {word!r} is no address of a job spec; give WORKSPACE#KEY or WORKSPACE#KEY#SHA256")
    return found[1], found[2]


_MARK = "@progress "


class Progress(Record):
    """`done` of `total` units, which `what` names; `note` is the current loss or rate."""

    what: str
    done: int
    total: int
    note: str = ""


def report(what: str, done: int, total: int, note: str = "") -> None:
    """Print the progress; workers call it on rank 0."""
    print(_MARK + Progress(what=what, done=done, total=total, note=note).model_dump_json(), flush=True)


def parse_progress(line: str) -> Progress | None:
    """Return the progress in a line of worker output; None for log text and truncated lines."""
    if not line.startswith(_MARK):
        return None
    try:
        return Progress.model_validate(json.loads(line.removeprefix(_MARK)))
    except ValueError:
        return None


class BatchAttempt(Record):
    """One attempt that AWS Batch made of a job, as the ledger records it.

    The first has the number of the submitted attempt; retries by AWS Batch count up from it.
    """

    attempt: int
    failure: FailureClass | None = Field(description="null: it succeeded")
    message: str
    queued: float = Field(description="seconds until it had a machine")
    booting: float = Field(description="seconds from then until the workers' command began")
    running: float = Field(description="seconds that the command ran; the longest of several jobs")
    machines: int = Field(description="machines that it had")
    instance: str | None = Field(
        default=None, description="instance type that AWS Batch names, as for jobs of several nodes; null: none"
    )
    billable_seconds: float = Field(description="seconds that each machine was held, added up over the machines")
    job: str
    hosts: tuple[str, ...]
    stopped_at: float | None = Field(default=None, description="seconds since the epoch, by the clock of AWS")


class Listener(Protocol):
    """Receives a running stage's output."""

    def log(self, line: str) -> None: ...
    def progress(self, progress: Progress) -> None: ...


class Waiter(Listener, Protocol):
    """The process that waits for a stage, as its runner sees it."""

    flow_run: str  # id of the Prefect flow run; empty outside of one

    def tried(self, one: BatchAttempt) -> None:
        """Record an attempt that has ended; after a re-attachment the same one is reported again."""
        ...

    def pulse(self) -> None:
        """Called about every second. Raises CancelledError if the flow run was asked to end."""
        ...


class Runner(Protocol):
    """Runs one stage to its end."""

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        """Start the workers of a stage whose spec is in the workspace, or re-attach to them, and wait until they end.

        Args:
            tries: the maximum number of attempts, including the runner's own retries.

        Raises:
            StageError: class and message of the earliest failure among the workers.
        """
        ...

    def found(self, spec: JobSpec) -> bool:
        """Return True if the work of this spec was started before and can still be waited for."""
        ...
