"""The hand-over of a job of AWS Batch from one stage of a run to the next, by files in the attempts' folders.

The launcher of a job writes `finished.json` and waits; `next.json` names the stage that the job does next. The first
to create `next.json` decides: the runner with a spec, or either side with none, which ends the job.
"""

from pydantic import Field

from infra.store.base import Conflict, Store
from infra.store.placing import settle
from infra.store.records import find_record
from tasks.contracts.jobs import JobSpec, stage_prefix
from tasks.contracts.stages import Layout, Stage, compute_of, workers_of
from tasks.contracts.workspace import SPEC
from tasks.foundation.records import Record

_OWNER, _FINISHED, _NEXT = "owner.json", "finished.json", "next.json"
_WAY_OUT = "move the file away once its job is over"


class Owner(Record):
    """`owner.json` of an attempt: the job that runs it. Times are seconds since the epoch, of the job's machine."""

    job: str
    try_number: int = Field(default=1, description="Batch's number of the try that took the attempt")
    taken_at: float | None = Field(default=None, description="null: the job was submitted for this attempt")
    free_since: float | None = Field(default=None, description="end of the job's stage before; null: none")


class Finished(Record):
    """`finished.json` of an attempt: its stage is done, and its job waits for another stage."""

    job: str
    try_number: int = Field(description="Batch's number of the try that did the stage")
    nodes: int = Field(description="machines of the job")
    at: float = Field(description="end of the workers, in seconds since the epoch, of the job's machine")
    until: float = Field(description="end of the wait, likewise")


class Next(Record):
    """`next.json` of an attempt: the stage that its job does next."""

    spec: str | None = Field(description="key of the spec, `#` and its SHA-256; null: the job ends")

    @property
    def prefix(self) -> str | None:
        """The folder of the attempt that is handed over."""
        return self.spec.rpartition("/")[0] if self.spec else None


def may_share(spec: JobSpec) -> bool:
    """Return True if the stage may run in a job of an earlier stage, or its job do later stages."""
    return spec.config.batch.keep_seconds > 0 and spec.stage.traits.layout is Layout.nodes


def is_followed(spec: JobSpec) -> bool:
    """Return True if the run's next stage needs the machines of this one, so that its job waits for it."""
    stages = list(Stage)
    if not isinstance(spec.stage, Stage) or spec.stage is stages[-1] or not may_share(spec):
        return False
    after, config = stages[stages.index(spec.stage) + 1], spec.config
    same = (after.traits.layout, after.traits.queue) == (spec.stage.traits.layout, spec.stage.traits.queue)
    return same and workers_of(config, after) == spec.workers and compute_of(config, after) == "batch"


def key_of(spec: JobSpec) -> str:
    """Return the key of a spec with its SHA-256, as launchers are given it."""
    return f"{SPEC.of(spec)}#{spec.sha256}"


def find_owner(store: Store, prefix: str) -> Owner | None:
    """Return the owner of the attempt in the folder `prefix`; None if no job has begun it, or the file is damaged."""
    try:
        return Owner.model_validate_json(store.read(f"{prefix}/{_OWNER}"))
    except (FileNotFoundError, ValueError):
        return None


def find_finished(store: Store, prefix: str) -> Finished | None:
    """Return the record of the wait after a stage; None if there was none. Raises StoreError: it is damaged."""
    return find_record(store, f"{prefix}/{_FINISHED}", Finished, _WAY_OUT)


def finish(store: Store, prefix: str, finished: Finished) -> None:
    """Record that the stage is done and its job waits."""
    settle(store, f"{prefix}/{_FINISHED}", finished.to_json())


def find_next(store: Store, prefix: str) -> Next | None:
    """Return the decision about the job that did an attempt; None as long as it is open. Raises StoreError: damaged."""
    return find_record(store, f"{prefix}/{_NEXT}", Next, _WAY_OUT)


def decide(store: Store, prefix: str, spec: str | None) -> Next:
    """Let the job of the attempt do `spec` next, or end (None), unless that is decided; return the decision."""
    wanted = Next(spec=spec)
    try:
        store.create(f"{prefix}/{_NEXT}", wanted.to_json())
    except Conflict:
        return find_next(store, prefix) or wanted
    return wanted


def waits_of(store: Store, run_key: str) -> list[tuple[str, Finished]]:
    """Return the waits of a run's jobs, with the folder of their attempt."""
    folders = [stage_prefix(run_key, stage) for stage in Stage if stage.traits.layout is Layout.nodes]
    keys = [key.rpartition("/") for folder in folders for key in store.list(folder)]
    found = [(prefix, find_finished(store, prefix)) for prefix, _, name in keys if name == _FINISHED]
    return [(prefix, finished) for prefix, finished in found if finished is not None]


def find_handed(store: Store, prefix: str) -> str | None:
    """Return the id of the job that was handed the attempt in the folder `prefix`; None if it was handed to none."""
    for at, finished in waits_of(store, prefix.split("/")[1]):
        after = find_next(store, at)
        if after is not None and after.prefix == prefix:
            return finished.job
    return None


def let_go(store: Store, run_key: str) -> None:
    """End the jobs that wait for another stage of a run. Raises OSError, StoreError: they end by themselves, later."""
    for prefix, _ in waits_of(store, run_key):
        decide(store, prefix, None)


def attempts_of_job(store: Store, prefix: str) -> list[str]:
    """Return the folders of all attempts that the job of the attempt `prefix` was given, that one first."""
    found = [prefix]
    while (after := find_next(store, found[-1])) is not None and after.prefix is not None and after.prefix not in found:
        found.append(after.prefix)
    return found
