"""The plan of a run: its key, its record in the workspace, and how it is read again.

Which span comes next, and from which checkpoint, is decided in tasks/planning.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Literal

from configs.load import config_hash, to_yaml
from configs.schema.config import Config
from infra.store.base import Conflict, Store
from infra.store.manifest import read_manifest
from infra.store.records import read_record
from tasks.contracts.references import CheckpointRef, CheckpointState, FeedRef, RowsRef, SpanRef
from tasks.contracts.runs import BranchStart, Pruned, RunPlan
from tasks.contracts.workspace import CONFIG, PLAN, PRUNED_RUN
from tasks.data.erased import refuse_unfinished
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, StoreError
from tasks.foundation.records import Record
from tasks.runs import branches

NEW_LINEAGE = "start a new lineage: --set lineage=NAME"
BACKFILL = "millrace backfill --from {first} --to {last}"  # trains spans again, on a branch


class NothingToDo(ConfigError):
    """Every ingested span is trained already. This is not an error of the user."""


class Idle(Record):
    """No run is next: the answer of `plan` and `decide` then."""

    state: Literal["NothingToDo"] = "NothingToDo"
    sentence: str


def plan_window(
    store: Store,
    config: Config,
    window: Sequence[SpanRef],
    parent: tuple[CheckpointRef, CheckpointState] | None,
    branch: BranchStart | None = None,
) -> RunPlan:
    """Plan the run that trains exactly this window after `parent`; the order of the spans is not checked.

    Args:
        branch: the origin of the branch that this run begins.

    Raises:
        ConfigError: rows would be held out by another group than the parent's.
    """
    from tasks.data.holdout import with_rule_of  # loads pyarrow, which readers of plans don't need

    config = with_rule_of(config, parent[1] if parent else None)
    ref, history = (parent[0], parent[1].consumed) if parent else (None, ())
    return RunPlan(
        run_key=run_key(config, window, ref),
        span=window[-1],
        window=tuple(window),
        history=history,
        parent=ref,
        workspace=store.uri,
        config=config,
        branch=branch,
    )


def run_key(config: Config, window: Sequence[SpanRef], parent: CheckpointRef | None) -> str:
    """Return 16 hex digits: a hash of pipeline, span and window with versions, configuration and parent weights."""
    work = {
        "pipeline": config.pipeline,
        "span": window[-1].model_dump(),
        "window": [ref.model_dump() for ref in window],
        "config": config_hash(config),
        "parent": parent.sha256 if parent else "",
    }
    return hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()[:16]


def save_plan(store: Store, plan: RunPlan) -> None:
    """Write `plan.json` (if new) and `config.yaml` of the run, and begin its branch if it has one.

    Raises:
        ConfigError: `millrace prune` has deleted files of this run, so it can't go on; or an erasure was interrupted.
        Conflict: another plan has this run key, or another branch this name.
        StoreError: the stored plan can't be read.
    """
    refuse_unfinished(store)
    if store.exists(PRUNED_RUN.key(run=plan.run_key)):
        span = plan.span.name
        raise ConfigError(
            f"run {plan.run_key} over {span} is over, and its files were deleted by millrace prune; its records stay: "
            f"millrace report --run {plan.run_key}; to train {span} again: {BACKFILL.format(first=span, last=span)}"
        )
    try:
        store.create(PLAN.key(run=plan.run_key), plan.to_json())
    except Conflict:
        # Only the address of the workspace and the compute settings may have changed.
        there = read_plan(store, plan.run_key)
        same = there.config.same_work_as(plan.config)
        if not same or there.model_copy(update={"workspace": plan.workspace, "config": plan.config}) != plan:
            raise Conflict(f"{store.uri}/{PLAN.key(run=plan.run_key)} holds another plan; move it away") from None
    store.write(CONFIG.key(run=plan.run_key), to_yaml(plan.config).encode())
    if plan.branch is not None:
        branches.begin(store, plan.config.lineage, plan.branch.of, plan.parent)


def mark_pruned(store: Store, run_key: str) -> None:
    """Record that files of a run are deleted, before they are, so that it is not taken up again."""
    store.write(PRUNED_RUN.key(run=run_key), Pruned(at=now()).to_json())


def read_plan(store: Store, run_key: str) -> RunPlan:
    """Return the plan of an earlier run. Raises StoreError: there is none, or this version can't read it."""
    return read_record(store, PLAN.key(run=run_key), RunPlan, f"restore it from a backup, or {NEW_LINEAGE}")


def planned_runs(store: Store) -> list[str]:
    """Return the keys of all runs, which are the folders with a plan; a refresh is not one."""
    return [found["run"] for key in store.list("runs") if (found := PLAN.match(key))]


def find_run(store: Store, name: str) -> str:
    """Return the key of the run; its first characters are enough. Raises ConfigError: no run, or several."""
    key = begun_with(planned_runs(store), name, "run")
    if key is None:
        raise ConfigError(f"{store.uri} holds no run {name or repr(name)}; list the runs with: millrace history")
    return key


def begun_with(known: Sequence[str], name: str, kind: str) -> str | None:
    """Return the known name that is `name`, or the only one that begins with it; None if none does.

    Raises:
        ConfigError: several begin with it; `kind` says of what they are names, as in run.
    """
    found = [each for each in known if name and each.startswith(name)]
    if name in found:
        return name
    if len(found) > 1:
        raise ConfigError(f"{len(found)} {kind}s begin with {name!r}: {listed(found)}; name more of it")
    return found[0] if found else None


def with_settings(work: RunPlan, **changes: object) -> RunPlan:
    """Return the same work with some settings of its configuration changed, and so with another run key."""
    config = work.config.model_copy(update=changes)
    return work.model_copy(update={"config": config, "run_key": run_key(config, work.window, work.parent)})


def listed(names: Sequence[str], most: int = 5) -> str:
    """Join names, as in `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def rows_of(store: Store, sources: Iterable[SpanRef | RowsRef | FeedRef]) -> tuple[int, ...] | None:
    """Return the rows of each span or feed; None if a manifest doesn't record them."""
    try:
        facts = [read_manifest(store, each.prefix).facts for each in sources]
    except StoreError:
        return None
    rows = [one.get("rows") for one in facts]
    return tuple(one for one in rows if isinstance(one, int)) if all(isinstance(one, int) for one in rows) else None
