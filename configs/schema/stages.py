"""The configuration of the stages apart from train: every key, its meaning, unit and bounds.

The search services that get every release are at the end.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from configs.schema.compute import Compute, MachineConfig, Positive
from configs.schema.gates import METRICS, Family, GateConfig, names_of
from tasks.foundation.passwords import holds_password
from tasks.foundation.records import Record, beside

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class Bounds(Record):
    """Two limits of a share: above `warn` it is a warning, above `stop` the run or release stops; null: never."""

    warn: Share | None = Field(description="share above which a warning is reported; null: never")
    stop: Share | None = Field(description="share above which the run or the release is stopped; null: never")

    @model_validator(mode="after")
    def _warns_first(self) -> Self:
        if self.warn is not None and self.stop is not None and self.warn > self.stop:
            raise ValueError(f"warn {self.warn:g} is above stop {self.stop:g}, so nothing would ever only be warned of")
        return self


class StageConfig(Record):
    """The section of any stage."""

    compute: Compute | None = Field(
        default=None,
        description="machines of the stage; null: the top-level key's, for health, warmup and evaluate train's",
    )


class WorkersConfig(StageConfig):
    """The section of a stage that runs with any number of workers."""

    workers: Positive = beside(description="worker processes; results do not depend on their number")


# The default is for plans of the time when each of these stages had one worker.
ONE_WORKER = beside(default=1, description="worker processes; results do not depend on their number")


class HealthConfig(StageConfig):
    """Limits that a worker must meet before it may train."""

    min_memory_gib: float = Field(ge=0, description="least free memory of a worker's machine, in GiB")
    min_disk_gib: float = Field(ge=0, description="least free disk of a worker's machine, in GiB")
    matmul_size: Positive = Field(description="rows and columns of the matrix product whose result is known")
    all_reduce_mib: Positive = Field(description="size of the all-reduce that is timed, in MiB")
    max_slowest_to_median: float = Field(gt=1, description="greatest ratio of a worker's time to the median")
    machine: str | None = Field(description="kind of node, one of `machines`; null: unknown, and not checked")
    machines: dict[str, MachineConfig] = Field(
        description="kinds of node by name, each with its least hardware and speeds"
    )
    strikes: Positive = Field(description="suspicions of one host after which it is excluded")
    exclude_hours: float = Field(gt=0, description="hours that a strike counts and an exclusion lasts")

    @model_validator(mode="after")
    def _machine_is_known(self) -> Self:
        if self.machine is not None and self.machine not in self.machines:
            raise ValueError(f"health.machine {self.machine!r} is not in health.machines: {', '.join(self.machines)}")
        return self


class WarmupConfig(StageConfig):
    """The trial run before a training."""

    steps: Positive = Field(description="training steps of the trial run, on one batch")


class NearDuplicatesConfig(Record):
    """Near-duplicate rows, which must not be on both sides of the holdout."""

    similarity: Annotated[float, Field(ge=0.8, le=1.0)] = Field(
        description="Jaccard similarity of two rows' runs of three words from which they are near-duplicates"
    )


class EvaluateConfig(StageConfig):
    """The holdout and the gates before a release."""

    holdout_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="share held out, by stable hashes: one half of whole queries, the other of groups"
    )
    group: str | None = Field(
        min_length=1,
        description=(
            "rows that are held out together: of one `query_and_item`, `query` or `item`, or of one value of a "
            "column such as a user's id; null: as the lineage began, else query_and_item"
        ),
    )
    near_duplicates: NearDuplicatesConfig | None = Field(
        default=None,
        description="search for near-duplicates across the holdout; null: equal texts or ids alone",
    )
    slices: tuple[str, ...] = beside(description="columns; metrics are also reported for each of their values")
    min_slice_rows: Positive = beside(description="least number of holdout rows of a slice")
    max_rows: Positive = Field(
        default=20_000,
        description="most holdout rows that are measured; of more, a sample of whole queries by a stable hash",
    )
    corpus_items: Positive = Field(
        default=20_000,
        description=(
            "largest catalogue, in items, that every model searches whole; in a larger one, models without vectors "
            "search a sample of this size"
        ),
    )
    golden: str | None = beside(
        default=None,
        description="Parquet, CSV or JSON Lines file with the columns query, item and optionally item_id, on which all "
        "models are measured too; null: none",
    )
    min_shared: Share = beside(
        default=0.5,
        description="least share of a larger catalogue's items that a release must hold too",
    )
    champion_loss: Bounds = beside(
        default=Bounds(warn=0.1, stop=0.3),
        description="relative drop of the champion's recall@10 in the newest span, also for each value of a slice",
    )
    label_loss: Bounds = beside(
        default=Bounds(warn=0.3, stop=0.6),
        description=(
            "relative drop of the champion's 2 AUC - 1 of the labels in the newest span, also for each value of a slice"
        ),
    )
    gates: tuple[GateConfig, ...] = beside(description="conditions of a release")
    answer_hours: Annotated[float, Field(gt=0)] = beside(
        default=72.0,
        description="hours in which a person can answer a gate with `undecided: ask`",
    )


class InferConfig(WorkersConfig):
    """Offline batch inference."""

    max_tokens: Positive = Field(description="longest text of an item or query, in tokens; longer ones are cut")
    sequence_tokens: Positive = Field(description="length of the sequences that texts are packed into, in tokens")
    batch_sequences: Positive = Field(description="sequences in one worker's batch, or as many tokens on a CPU")
    shard_rows: Positive = Field(description="approximate number of items in one partition of the catalogue")
    precision: Literal["auto", "bf16", "fp32"] = Field(
        description="arithmetic of the encoder: `fp32`, `bf16`, or `auto` (bf16 if the device is fast at it)"
    )
    vectors: Literal["fp32", "fp16"] = Field(default="fp32", description="type that vectors are stored in")
    max_bad_share: Share = Field(
        default=0.001, description="greatest share of items without a usable vector; more stop the run"
    )

    @model_validator(mode="after")
    def _texts_fit(self) -> Self:
        if self.max_tokens > self.sequence_tokens:
            raise ValueError(
                f"infer.max_tokens {self.max_tokens} is longer than infer.sequence_tokens {self.sequence_tokens}: a "
                "text is packed into one sequence"
            )
        return self


ExportKind = Literal["onnx", "onnx-int8", "openvino", "torchscript", "neuron"]


class ReleaseConfig(WorkersConfig):
    """The last checks of a release: the exported folder reproduces the released vectors, and a search finds items."""

    workers: Positive = ONE_WORKER
    min_cosine: Annotated[float, Field(gt=0, lt=1)] = Field(
        description="lowest cosine between a released vector and the exported folder's"
    )
    probe_rows: Positive = Field(
        description="number of items, by chance, and of queries that are encoded again with the exported folder"
    )
    queries: Positive = Field(
        default=2000, description="number of newest holdout queries that search all vectors of the release"
    )
    exports: tuple[ExportKind, ...] = beside(
        default=(),
        description="forms of a new model for other runtimes, in its folder; `serve --online` takes the first that it "
        "can open",
    )
    export_max_loss: Share = beside(
        default=0.005,
        description="greatest loss of recall@10 by an export. An fp32 graph must reach `min_cosine` too",
    )
    exports_required: bool = beside(default=False, description="true: a refused export stops the release")
    gates: tuple[GateConfig, ...] = beside(
        default=(),
        description="conditions on that search's ranking metrics; the champion is the current release",
    )

    @field_validator("exports")
    @classmethod
    def _exports_differ(cls, exports: tuple[ExportKind, ...]) -> tuple[ExportKind, ...]:
        if len(set(exports)) < len(exports):
            raise ValueError("release.exports names one twice")
        return exports

    @field_validator("gates")
    @classmethod
    def _search_ranks(cls, gates: tuple[GateConfig, ...]) -> tuple[GateConfig, ...]:
        for gate in gates:
            if METRICS[gate.metric].family is not Family.ranking:
                names = ", ".join(names_of(Family.ranking))
                raise ValueError(f"a search gives no {gate.metric}; gates of a release are on {names}")
            part = any((gate.slice, gate.span, gate.width)) or gate.queries != "all"
            chosen = gate.rows != "holdout" or gate.min_rows or part or gate.undecided == "ask"
            if chosen or gate.confidence is not None or gate.baseline not in ("none", "champion"):
                raise ValueError(
                    f"the gate of release on {gate.metric}: its search compares with none or the champion, over all "
                    "queries, without interval; put rows, queries, slice, span, width, min_rows, confidence and ask "
                    "into evaluate.gates"
                )
        return gates


def _without_password(address: str) -> str:
    if holds_password(address):
        raise ValueError("it holds a password; leave it out, and name an environment variable that has it")
    return address


Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=30)]
Address = Annotated[str, Field(min_length=1), AfterValidator(_without_password)]
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"

Form = Literal["int8", "binary"]
_FORM: Any = Field(
    default=None,
    description=(
        "form of the vectors in the index: `int8`, or `binary`, one bit for each number; null: as the vectors"
    ),
)
_WIDTH: Any = Field(
    default=None,
    description="first numbers of each vector: one of heads.contrastive.matryoshka; null: all",
)


class LancedbTarget(Record):
    """A LanceDB database. On S3, it uses the workspace's credentials."""

    kind: Literal["lancedb"] = Field(
        description="`lancedb`: a LanceDB database; on S3 with the workspace's credentials"
    )
    name: Name = Field(description="name under which consumers read")
    uri: Address = Field(description="folder, or s3://bucket/prefix")
    encoder: Address | None = Field(
        default=None,
        pattern=r"^https?://",
        description=(
            "address of `millrace serve --online`, which embeds the texts of LanceDB's clients; null: they search "
            "with vectors alone"
        ),
    )
    form: Form | None = _FORM
    width: Positive | None = _WIDTH

    @property
    def is_folder(self) -> bool:
        """True: the database is a folder on the worker's machine."""
        return "://" not in self.uri


class PgvectorTarget(Record):
    """A Postgres database with the extension `vector`."""

    kind: Literal["pgvector"] = Field(description="`pgvector`: a Postgres database with the extension `vector`")
    name: Name = Field(description="name under which consumers read")
    dsn: Address = Field(description="address without a password: postgresql://user@host/database")
    password_env: str | None = Field(
        default=None,
        pattern=_VARIABLE,
        description="environment variable with the password; null: PGPASSWORD, or libpq's own sources",
    )
    form: Literal["binary"] | None = _FORM
    width: Positive | None = _WIDTH

    @property
    def is_folder(self) -> bool:
        """False: Postgres is a server."""
        return False


class QdrantTarget(Record):
    """A Qdrant server, or Qdrant's local mode in a folder."""

    kind: Literal["qdrant"] = Field(description="`qdrant`: a Qdrant server, or Qdrant's local mode in a folder")
    name: Name = Field(description="name under which consumers read")
    url: Address = Field(description="address, as in http://host:6333, or a folder")
    api_key_env: str | None = Field(
        default=None, pattern=_VARIABLE, description="environment variable with the API key; null: no key"
    )
    form: None = Field(default=None, description="null: a target of this kind has no form")
    width: Positive | None = _WIDTH

    @field_validator("form", mode="before")
    @classmethod
    def _no_form(cls, form: object) -> object:
        if form is not None:
            raise ValueError(
                "Qdrant's quantisation is not offered, as no server was there to prove it; take width, or another kind"
            )
        return form

    @property
    def is_folder(self) -> bool:
        """True: it is Qdrant's local mode, a folder on the worker's machine."""
        return "://" not in self.url


class OpensearchTarget(Record):
    """An OpenSearch or Elasticsearch cluster."""

    kind: Literal["opensearch"] = Field(description="`opensearch`: an OpenSearch or Elasticsearch cluster")
    name: Name = Field(description="name under which consumers read")
    url: Address = Field(description="address without a password, as in https://host:9200")
    user: str | None = Field(default=None, description="name of the user; null: no proof of identity")
    password_env: str | None = Field(
        default=None, pattern=_VARIABLE, description="environment variable with the user's password"
    )
    form: Form | None = _FORM
    width: Positive | None = _WIDTH

    @property
    def is_folder(self) -> bool:
        """False: it is a server."""
        return False

    @model_validator(mode="after")
    def _user_has_a_password(self) -> Self:
        if (self.user is None) != (self.password_env is None):
            raise ValueError(f"target {self.name}: give both of user and password_env, or none")
        return self


AnyTarget = Annotated[LancedbTarget | PgvectorTarget | QdrantTarget | OpensearchTarget, Field(discriminator="kind")]
KINDS: dict[str, type[Record]] = {
    "lancedb": LancedbTarget,
    "opensearch": OpensearchTarget,
    "pgvector": PgvectorTarget,
    "qdrant": QdrantTarget,
}


def narrowing(target: AnyTarget) -> str:
    """Return the form and the width of a target's vectors, as in `binary, 64 numbers`; empty: as in the release."""
    width = f"{target.width} numbers" if target.width is not None else None
    return ", ".join(each for each in (target.form, width) if each is not None)


class PublishConfig(StageConfig):
    """The services that get each release. They don't change a run's model, so they are not part of its key."""

    targets: tuple[AnyTarget, ...] = Field(default=(), description="search services that get each release")
    min_recall: Share = Field(
        default=0.95, description="lowest recall@10 of a target's index, compared with exact search"
    )
    max_loss: Share = Field(
        default=0.02,
        description=(
            "greatest loss of recall@10 by a target with `form` or `width`, against an exact search of the release"
        ),
    )

    @field_validator("targets")
    @classmethod
    def _names_differ(cls, targets: tuple[AnyTarget, ...]) -> tuple[AnyTarget, ...]:
        names = [target.name for target in targets]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two targets are named {twice[0]}; consumers read under that name")
        return targets
