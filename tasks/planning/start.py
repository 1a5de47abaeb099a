"""The start of a lineage's next run: its head or, after a rejection, the last accepted checkpoint.

A run that goes back trains on its own branch, so the checkpoints of rejected models stay in place. Runs continue the
branch once it has a checkpoint that was trained on the rejected spans too. So no span is ever left out.

Hard negatives are mined from the release that was current when the run's warmup first began, and queries alone are
trained to find its vectors. It is recorded then, so that a run that resumes after a release or a rollback has the same.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from pydantic import Field

from configs.schema.config import Config
from infra.store.base import Conflict, Store
from infra.store.records import find_record, read_record
from tasks.contracts.references import CheckpointRef, CheckpointState, MinedRelease, SpanRef, Weights
from tasks.contracts.runs import BranchStart, RunPlan
from tasks.contracts.workspace import MINED_RELEASE
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.runs import branches, lineage, releases
from tasks.runs.plan import listed, plan_window, run_key
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

_AFTER = "-after-"  # in the name of a branch that replaces rejected models

Checkpoint = tuple[CheckpointRef, CheckpointState]
R = TypeVar("R")


class Origin(NamedTuple):
    """The last checkpoint of a lineage, and the parent of its next run; None: a new model."""

    head: Checkpoint | None
    parent: Checkpoint | None

    @property
    def goes_back(self) -> bool:
        """True if the models after the parent were rejected, so that their spans are trained again."""
        return self.head is not self.parent

    @property
    def rejected(self) -> tuple[SpanRef, ...]:
        """The spans that only rejected models have trained, oldest first."""
        return consumed(self.head)[len(consumed(self.parent)) :]


def on_active(store: Store, config: Config) -> Config:
    """Return the configuration with the lineage's adopted branch, if any, as its lineage.

    Raises:
        StoreError: the pointer to the branch is not readable.
    """
    return config.model_copy(update={"lineage": branches.active(store, config.lineage)})


def find_start(store: Store, config: Config) -> Origin:
    """Return the start of the next run of `config.lineage`, which must be the active branch.

    The newest judgement of a model counts: a rejected model that was released later is accepted.

    Raises:
        StoreError: a checkpoint, a branch or a verdict is not readable; names the file.
    """
    head = lineage.head(store, config.lineage)
    if head is None or config.train.after_rejection == "challenger" or not is_rejected(store, head):
        return Origin(head, head)
    return Origin(head, last_accepted(store, config.lineage))


def last_accepted(store: Store, name: str) -> Checkpoint | None:
    """Return the newest checkpoint of a lineage whose model was not rejected; None if all were.

    Raises:
        StoreError: as `find_start`.
    """
    chain = lineage.newest_first(store, name)
    return next((each for each in chain if not is_rejected(store, each)), None)


def is_rejected(store: Store, checkpoint: Checkpoint) -> bool:
    """Return True if the gates refused the model; imported weights are never judged. Raises StoreError: unreadable."""
    state = checkpoint[1]
    return bool(state.consumed) and Run(Snapshot(store, strict=True), state.run_key).rejected


def unfinished_before(store: Store, plan: RunPlan) -> str | None:
    """Return the span of the run that made the plan's parent, if that run neither released nor rejected its model."""
    state = next((s for ref, s in lineage.completed(store, plan.config.lineage) if ref == plan.parent), None)
    if state is None or not state.consumed:  # imported weights: no run made them
        return None
    run = Run(Snapshot(store, strict=True), state.run_key)
    return run.span if run.unfinished else None


def consumed(checkpoint: Checkpoint | None) -> tuple[SpanRef, ...]:
    """Return the spans in a checkpoint, oldest first; empty for None."""
    return tuple(rows.span for rows in checkpoint[1].consumed) if checkpoint is not None else ()


def plan_from(store: Store, config: Config, start: Origin, window: Sequence[SpanRef]) -> RunPlan:
    """Plan the run over `window` from `start`, on a branch if it goes back. The branch's name is a hash of both.

    Raises:
        ConfigError: the checkpoint to go back to was pruned.
    """
    if start.head is None or not start.goes_back:
        return plan_window(store, config, window, start.parent)
    parent = start.parent[0] if start.parent else None
    root = branches.root(store, config.lineage)
    if parent is not None and lineage.is_pruned(store, parent):
        raise ConfigError(
            f"the model of {listed([span.name for span in start.rejected])} was rejected, and the weights of the last "
            f"accepted checkpoint, {parent.prefix}, were deleted by millrace prune. To go on from the rejected one: "
            f"--set train.after_rejection=challenger; to train from an earlier one: millrace backfill"
        )
    work = run_key(config.model_copy(update={"lineage": root}), window, parent)
    name = hashlib.sha256(f"{start.head[0].sha256} {work}".encode()).hexdigest()[:8]
    on_branch = config.model_copy(update={"lineage": f"{root}{_AFTER}{name}"})
    of = parent.lineage if parent is not None else root
    branch = BranchStart(of=of, instead_of=config.lineage, again=start.rejected)
    return plan_window(store, on_branch, window, start.parent, branch)


def is_after_rejection(name: str, root: str) -> bool:
    """Return True if the lineage is a branch that a run of `root` began after a rejection."""
    return name.startswith(f"{root}{_AFTER}")


def adopt_branch(store: Store, plan: RunPlan) -> None:
    """Let runs continue the branch that the run began; call it when the run has trained.

    Does nothing for a run without a branch, or if runs continue another branch by now.

    Raises:
        Conflict: another process just moved the pointer.
        StoreError: the pointer is not readable.
    """
    if plan.branch is None:
        return
    name = branches.root(store, plan.branch.of)
    if branches.active(store, name) == plan.branch.instead_of:
        branches.adopt(store, name, plan.config.lineage, plan.branch.instead_of)


def next_start(store: Store, config: Config) -> str:
    """Return a sentence about the checkpoint from which the next span of `config.lineage` is trained, and the reason.

    Raises:
        StoreError: as `find_start`.
    """
    start = find_start(store, on_active(store, config))
    names = listed([span.name for span in start.rejected])
    again = f"; {names} {'is' if len(start.rejected) == 1 else 'are'} trained again with it" if names else ""
    if start.head is None or start.parent is None:
        return f"The next span starts from nothing, since no model was accepted before{again}."
    ref, state = start.parent
    if not state.consumed:
        return f"The next span starts from the imported weights, since no model was accepted before{again}."
    where = f"The next span starts from step {ref.step} of {state.consumed[-1].span.name}"
    if start.goes_back:
        return f"{where}, the last accepted checkpoint{again}."
    if is_rejected(store, start.parent):
        return f"{where}, whose model was rejected: train.after_rejection is challenger."
    return f"{where}."


_WAY_OUT = "restore it from a backup, or move it away: the run then takes the current release"


class MiningSource(Record):
    """`runs/<run key>/train/mined_release.json`."""

    release: MinedRelease | None = Field(description="null: no release with all items existed")


def mined_release(store: Store, plan: RunPlan) -> MinedRelease | None:
    """Return the release that a run mines; None before the first one, or if the run needs no hard negatives.

    Raises:
        StoreError: the current release, or the record, is not readable; names the file.
    """
    head = plan.config.heads.contrastive
    return None if head is None or head.negatives is None else _recorded_release(store, plan)


def item_side(store: Store, plan: RunPlan) -> Weights | None:
    """Return the model whose item vectors a run trains queries to find; None if it trains both sides.

    Raises:
        ConfigError: there was no release when the run began.
        StoreError: as `mined_release`.
    """
    if plan.config.train.sides == "both":
        return None
    return _found(store, _recorded_release(store, plan)).model.of_items


def require_vectors(store: Store, config: Config) -> None:
    """Raise ConfigError if queries alone are to be trained, and there is no release whose vectors they could find."""
    if config.train.sides == "queries":
        _found(store, releases.current(store))


def _found(store: Store, release: R | None) -> R:
    if release is None:
        raise ConfigError(
            f"train.sides queries: queries are trained to find the vectors of a release, and {store.uri} has none; "
            "train both sides first: --set train.sides=both"
        )
    return release


def _recorded_release(store: Store, plan: RunPlan) -> MinedRelease | None:
    key = MINED_RELEASE.key(run=plan.run_key)
    if not store.exists(key):
        with contextlib.suppress(Conflict):  # another process was faster
            store.create(key, MiningSource(release=_current(store)).to_json())
    return read_record(store, key, MiningSource, _WAY_OUT).release


def chosen_release(store: Store, run_key: str) -> MinedRelease | None:
    """Return the release that a run has recorded, to mine it or to train queries for it; None if it recorded none.

    Raises:
        StoreError: the record is not readable.
    """
    choice = find_record(store, MINED_RELEASE.key(run=run_key), MiningSource, _WAY_OUT)
    return choice.release if choice is not None else None


def _current(store: Store) -> MinedRelease | None:
    release = releases.current(store)
    if release is None:
        return None
    return MinedRelease(
        number=release.number,
        model=release.model,
        vectors=release.vectors_prefix,
        vectors_sha256=release.vectors_sha256,
        catalogue=release.catalogue,
    )
