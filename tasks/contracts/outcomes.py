"""The outcomes of the stages, and the end of an attempt: its result or its failure.

Records hold references (keys of the workspace), never data. `outputs` names the folders that must stay complete.
`result.json` is of a finished stage, the error file of a failed worker. `kept.json` has the work of a running
attempt that would survive if it were killed.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from configs.schema.gates import Severity
from tasks.contracts.evaluation import ByQueries, Measurement, Role, SpanMetrics
from tasks.contracts.profiles import ColumnDrift, SampleRow
from tasks.contracts.references import (
    CatalogueRef,
    CheckpointRef,
    CompileRef,
    CurvePoint,
    FeedRef,
    HeadSolved,
    LabelHeadSolved,
    RowsRef,
    Weights,
)
from tasks.contracts.search import MeasuredExport, NarrowRecall, SharedSearch
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.usage import (
    CheckpointUse,
    Communication,
    DeviceUse,
    GraphUse,
    MinedNegatives,
    RateUse,
    ShapeTiming,
    TokenUse,
)
from tasks.foundation.records import Record

Action = Literal["proceed", "retry elsewhere", "exclude host", "stop"]


class Check(Record):
    """One expectation and its result. `sentence` is for people and contains the numbers."""

    name: str
    passed: bool
    severity: Severity
    observed: float | None
    sentence: str
    host: str = Field(default="", description="machine that was checked; empty: all machines, or the input")
    action: Action = Field(default="proceed", description="action after a failure")

    @classmethod
    def critical(
        cls, name: str, passed: bool, sentence: str, otherwise: Action = "proceed", observed: float | None = None,
        host: str = "",
    ) -> Check:  # fmt: skip
        """Return a check whose failure stops the stage; `otherwise` is the action after a failure."""
        action: Action = "proceed" if passed else otherwise
        return cls(name=name, passed=passed, severity="critical", observed=observed, sentence=sentence, host=host,
                   action=action)  # fmt: skip


class ValidateOutcome(Record):
    stage: Literal[Stage.validate] = Stage.validate
    rows: tuple[RowsRef, ...]
    rows_in: int
    rows_clean: int
    rows_quarantined: int
    reasons: dict[str, int] = Field(description="quarantine reason -> rows")
    quarantine: str | None = Field(description="key of the Parquet file with the bad rows")
    checks: tuple[Check, ...]
    catalogue: CatalogueRef | None = Field(default=None, description="null: not requested, or a check failed")
    profiles: dict[str, str] = Field(default={}, description="span -> key of the profile of its clean rows")
    drifts: tuple[ColumnDrift, ...] = Field(
        default=(), description="compared columns, the one with the most drift first"
    )
    texts: tuple[FeedRef, ...] = Field(
        default=(),
        description="versions of the item feed that gave the texts of rows of ids alone; empty: no such rows",
    )
    waiting: str | None = Field(
        default=None,
        description="folder of the rows whose items no feed knows yet, which later runs look up; null: none",
    )
    rows_late: int = Field(
        default=0, description="rows of earlier spans in `rows_in`, whose items the feed knows since"
    )
    samples: tuple[SampleRow, ...] = Field(default=(), description="a few bad rows, if a check stopped the run")
    # Null: a check failed before the search.
    left_out_of_training: int | None = Field(default=None, description="clean near-duplicates of a holdout row")
    left_out_of_holdout: int | None = Field(
        default=None, description="clean near-duplicates of an earlier training row"
    )
    left_out_as_golden: int | None = Field(
        default=None, description="rows of the golden set in `left_out_of_training`; null: no golden set"
    )

    golden: str | None = Field(default=None, description="key of the golden set that was kept out; null: none")
    positives: str | None = Field(
        default=None,
        description="folder of the items that any row pairs with the run's queries, which are never their negatives; "
        "null: train finds them",
    )
    replayed: str | None = Field(
        default=None, description="folder of the rows of earlier spans that the run trains on again; null: none"
    )

    @property
    def outputs(self) -> tuple[str, ...]:
        rows = (folder for rows in self.rows for folder in rows.folders)
        return (
            *rows,
            *((self.waiting,) if self.waiting else ()),
            *((self.catalogue.prefix,) if self.catalogue else ()),
        )


class HealthOutcome(Record):
    """Numbers by rank, and the bandwidth and latency of the collectives."""

    stage: Literal[Stage.health] = Stage.health
    device: str
    matmul_gflops: tuple[float, ...]
    slowest_to_median: float
    free_memory_gib: tuple[float, ...]
    free_disk_gib: float
    collectives: dict[str, float] = Field(description="GB/s and microseconds, by name; empty for one worker")
    checks: tuple[Check, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()


class WarmupOutcome(Record):
    stage: Literal[Stage.warmup] = Stage.warmup
    device: str
    shapes: tuple[ShapeTiming, ...]
    validation_seconds: float
    checkpoint_seconds: float
    peak_memory_gib: float
    compiled: CompileRef | None = Field(description="null on devices that compile nothing")
    graphs: GraphUse | None = Field(description="null on devices that compile nothing")
    trial_losses: tuple[float, ...] = Field(description="losses of the trial's steps; only for comparing trials")
    trial_metrics: dict[str, float] = Field(description="holdout metrics after the trial's steps; likewise")
    environment: dict[str, str] = Field(description="compiler and runtime variables that were set")

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.compiled.prefix,) if self.compiled else ()


class TrainOutcome(Record):
    stage: Literal[Stage.train] = Stage.train
    checkpoint: CheckpointRef
    model_version: str
    items: Weights | None = Field(
        default=None, description="model of the item vectors that queries were trained for; null: both sides"
    )
    first_step: int
    last_step: int
    resumed_at_step: int | None
    rows_trained: int
    pairs_per_second: float
    tokens: TokenUse | None = Field(default=None, description="null: no step was taken")
    losses: tuple[CurvePoint, ...]
    curve: tuple[CurvePoint, ...]
    rows_replayed: int = Field(default=0, description="rows of earlier spans in `rows_trained`")
    development: tuple[CurvePoint, ...] = Field(
        default=(), description="metrics on the development rows, by which train.keep_best chooses"
    )
    kept_step: int | None = Field(default=None, description="step chosen by train.keep_best; null: the last step")
    precision: str
    graphs: GraphUse | None = Field(description="null on devices that compile nothing")
    environment: dict[str, str] = Field(description="compiler and runtime variables that were set")
    head: HeadSolved | None = Field(default=None, description="null: no head was solved after the last step")
    label_heads: dict[str, LabelHeadSolved] = Field(default={}, description="solved label heads, by name")
    device_use: tuple[DeviceUse, ...] | None = Field(
        default=None, description="one record per node; null: not measured, as on devices other than NeuronCores"
    )
    communication: Communication | None = Field(
        default=None, description="null: one worker, or not known on this device"
    )
    mined: MinedNegatives | None = Field(default=None, description="null: no hard negatives were requested, or found")
    checkpoints: CheckpointUse | None = Field(default=None, description="null: no step was taken")
    learning_rate: RateUse | None = Field(default=None, description="null: no step was taken")
    answers_key: str | None = Field(
        default=None, description="answers to each evaluated holdout row after the last step; null: no such row"
    )

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.checkpoint.prefix,)


class EvaluateOutcome(Record):
    """Metrics of challenger and champion on the same rows. The control plane judges the gates."""

    stage: Literal[Stage.evaluate] = Stage.evaluate
    holdout_rows: int = Field(description="measured holdout rows")
    holdout_pairs: int = Field(
        default=0, description="measured holdout rows that are pairs, over which ranking metrics are means"
    )
    holdout_there: int = Field(
        default=0, description="holdout rows of all spans; `holdout_rows` may be a sample of them"
    )
    corpus_items: int = Field(description="items that every model was measured on")
    challenger: dict[str, float] = Field(
        description="its metrics; ranking is among the items that it and the champion hold, or the whole catalogue"
    )
    champion: dict[str, float] | None = Field(description="its metrics, among the same items")
    by_queries: dict[Role, ByQueries] = Field(
        default={}, description="metrics of each model on unseen and on seen queries, with intervals, ranked likewise"
    )
    champion_version: str | None
    catalogue_items: int = Field(default=0, description="items of the catalogue that the corpus was chosen from")
    whole_items: int | None = Field(
        default=None, description="items of the whole catalogue, if ranked among too; null: the corpus is the catalogue"
    )
    shared_items: dict[Role, int] = Field(
        default={},
        description="items that challenger and a release both hold by id, if the corpus is a part of the catalogue",
    )
    embedded_again: dict[Role, int] = Field(
        default={},
        description="items of the whole catalogue that a release's model embedded again, since their text or a feature "
        "that it uses differs from its release",
    )
    rows_left_out: int = Field(default=0, description="holdout rows of deleted items")
    champion_read: int = Field(default=0, description="items whose vectors were read from the champion's release")
    champion_embedded: int = Field(default=0, description="the other items, which the champion embedded")
    measured: tuple[Measurement, ...] = Field(default=(), description="measurements, the challenger's first")
    rows_key: str | None = Field(default=None, description="key of the Parquet file of row results")
    spans: tuple[SpanMetrics, ...] = Field(default=(), description="the newest spans with holdout rows, oldest first")
    golden_rows: int = Field(default=0, description="rows of the golden set, which no other number counts")
    golden: dict[Role, dict[str, float]] = Field(default={}, description="each model's metrics on the golden set")
    golden_trained: int = Field(default=0, description="rows of the golden set that the challenger was trained on")

    @property
    def sampled_from(self) -> int | None:
        """The number of holdout rows that the sample was drawn from; None if all were measured."""
        return self.holdout_there if self.holdout_there > self.holdout_rows + self.rows_left_out else None

    @property
    def ranked_among(self) -> int:
        """The number of items among which challenger and champion were ranked."""
        return self.shared_items.get(Role.champion, self.whole_items or self.corpus_items)

    @property
    def golden_leak(self) -> str:
        """A sentence about rows of the golden set that were trained on; empty if none was."""
        if not self.golden_trained:
            return ""
        return (
            f"{self.golden_trained} of the {self.golden_rows} rows of the golden set were trained on, in spans that "
            "were validated before the file had them, so its numbers are too good; take other rows, or start a new "
            "lineage."
        )

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()


class InferOutcome(Record):
    """Every item of the catalogue has a vector in `prefix` or is in `quarantine`."""

    stage: Literal[Stage.infer] = Stage.infer
    prefix: str
    vectors: int
    width: int
    shards: int = Field(description="partitions with a vector")
    deltas: int = Field(default=0, description="files over the shards, with the changes of refreshes")
    written: int = Field(default=0, description="bytes in the folder's own files; the others are named on")
    shards_reused: int = Field(description="partitions that an earlier attempt had made")
    texts_per_second: float
    catalogue: CatalogueRef
    vectors_reused: int = Field(
        default=0, description="vectors of unchanged items, copied from the same model's earlier vectors"
    )
    accelerators: tuple[str, ...] = Field(
        default=(), description="accelerators that made the vectors, copied ones too; empty: not recorded"
    )
    bad: int = Field(default=0, description="items without a vector; `quarantine` has the reasons")
    quarantine: str | None = Field(default=None, description="key of the Parquet file with the bad items")
    ids_sha256: str = Field(description="SHA-256 over the ids of all items with a vector")

    @property
    def vectors_made(self) -> int:
        return self.vectors - self.vectors_reused

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.prefix,)


class ReleaseOutcome(Record):
    """The exported, probed model folder; the control plane moves the pointer.

    The metrics compare the holdout queries with all vectors, as users of the release do.
    """

    stage: Literal[Stage.release] = Stage.release
    model: str
    model_sha256: str = Field(description="SHA-256 of the folder's manifest, as exported here or released before")
    min_cosine: float
    probed: int
    min_query_cosine: float | None = Field(default=None, description="as min_cosine, over the probed queries")
    head_difference: float | None = Field(
        default=None, description="maximum difference of a probability between exported and trained head"
    )
    label_difference: float | None = Field(
        default=None,
        description="maximum difference between exported and trained label heads, as a share of the largest output",
    )
    queries: int = Field(default=0, description="holdout queries that all vectors were searched with")
    metrics: dict[str, float] = Field(default={}, description="metrics of these queries; empty: no queries")
    before: int | None = Field(default=None, description="number of the release that it is compared with")
    shared: SharedSearch | None = Field(
        default=None, description="comparison of both models among the same items; null: no release before"
    )
    changes: str | None = Field(default=None, description="key of the record of the changes since that release")
    unsearched: int = Field(
        default=0, description="items changed since the metrics were measured; 0: all vectors were searched here"
    )
    exports: tuple[MeasuredExport, ...] = Field(
        default=(), description="exports of release.exports; empty for a model that was released before"
    )
    code: str = Field(description="version of Millrace, with a hash of its source")
    libraries: dict[str, str] = Field(description="versions of the libraries that made the vectors")

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.model,)


class ImportOutcome(Record):
    """Imported weights as a lineage's first checkpoint. Names are the file's, except in `new`."""

    stage: Literal[Chore.import_checkpoint] = Chore.import_checkpoint
    checkpoint: CheckpointRef
    sha256: str = Field(description="SHA-256 of the file")
    mapped: int = Field(description="imported tensors")
    ignored: tuple[str, ...] = Field(description="tensors of the file that the model does not have")
    new: tuple[str, ...] = Field(description="weights of the model that the file lacks; they start as in a new model")

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.checkpoint.prefix,)


class PublishOutcome(Record):
    """The table that a target serves after a publication."""

    stage: Literal[Chore.publish] = Chore.publish
    table: str | None = Field(description="table it serves, complete and checked; null: another release is current now")
    served_before: str | None = Field(description="table it served before")
    vectors: int
    loaded: int = Field(description="vectors that the target lacked")
    index: str | None = Field(
        default=None, description="name of the table's index; null: the service searches exactly, or not looked at"
    )
    recall: float | None = Field(description="recall@10 compared with exact search; null: not measured")
    query_ms: float | None = Field(description="median time of warm queries, from the worker; null: not measured")
    queries: int | None = Field(default=None, description="sampled queries of both measurements; null: not measured")
    narrow: NarrowRecall | None = Field(
        default=None, description="recall of the holdout queries; null: whole vectors, or on record already"
    )
    dropped: tuple[str, ...] = Field(description="tables of earlier releases")

    @property
    def outputs(self) -> tuple[str, ...]:
        return ()


Outcome = (
    ValidateOutcome
    | HealthOutcome
    | WarmupOutcome
    | TrainOutcome
    | EvaluateOutcome
    | InferOutcome
    | ReleaseOutcome
    | ImportOutcome
    | PublishOutcome
)


class Phases(Record):
    """An attempt's wall time in seconds by phase; the phases add up to it, apart from rounding.

    A finished attempt lost nothing. A failed one was productive up to its last checkpoint (infer: its last shard); its
    later work is lost, since it is repeated. All work is lost if none was kept, for example if health refused the
    machines. A killed attempt leaves no account: all seconds after its last checkpoint are lost. Training a model that
    the gates refuse is not lost: the refusal is a result.
    """

    queued: float = Field(default=0.0, description="seconds of waiting for machines, which cost nothing")
    booting: float = Field(
        default=0.0, description="seconds of starting and ending containers and processes, of imports and checks"
    )
    compiling: float = Field(default=0.0, description="seconds of making graphs, or of reading compiled ones back")
    restoring: float = Field(default=0.0, description="seconds of reading the model, the checkpoint and the rows")
    productive: float = Field(default=0.0, description="seconds of work on steps, rows and vectors that was kept")
    lost: float = Field(default=0.0, description="seconds of a failed attempt's work that is done again")

    @property
    def total(self) -> float:
        return sum(getattr(self, phase) for phase in Phases.model_fields)

    @property
    def paid(self) -> float:
        """Seconds in which the machines were held."""
        return self.total - self.queued


class KeptWork(Record):
    """`kept.json` of an attempt: its seconds until its last checkpoint or shard, which survives a kill."""

    version: Literal[1] = 1
    phases: Phases


class StageResult(Record):
    """`result.json`: written last, after all outputs are complete and checksummed."""

    version: Literal[1] = 1
    run_key: str
    attempt: int
    config_sha256: str
    phases: Phases
    outcome: Outcome = Field(discriminator="stage")


class WorkerFailure(Record):
    """`error-rank<r>.json`: the failure of one worker process; the earliest among the ranks is the root cause."""

    version: Literal[1] = 1
    rank: int
    at: float = Field(description="seconds since the epoch")
    failure: str
    message: str
    traceback: str
    phases: Phases
