"""Plans runs: what a run will do follows from the ingested spans and from the head of the lineage.

`plan_run` writes nothing, and planning the same work twice gives the same run key. If the lineage has adopted a branch,
the run is planned on that branch, and the plan's configuration names it.
"""

import datetime as dt
import hashlib
import json
from collections.abc import Sequence

from configs.differences import differences
from configs.load import config_hash, to_yaml
from configs.schema.config import Config
from infra.store.base import Conflict, Store
from infra.store.records import read_record
from tasks.contracts.checkpoints import CheckpointState
from tasks.contracts.references import CheckpointRef, RowsRef, SpanRef
from tasks.contracts.runs import REFRESH, Pruned, RunPlan, RunState
from tasks.contracts.spans import first_day
from tasks.data import span_versions
from tasks.data.holdout_rule import with_rule_of
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError
from tasks.runs import branches, lineage
from tasks.runs.run_state import reached_state

NEW_LINEAGE = "start a new lineage: --set lineage=NAME"
BACKFILL = "millrace backfill --from {first} --to {last}"  # trains spans again, on a branch


class NothingToDo(ConfigError):
    """Every ingested span is trained already. This is not an error of the user."""


def plan_run(store: Store, config: Config, span: str | None = None) -> RunPlan:
    """Plan the run over `span`, by default over the oldest span not yet trained. A finished run keeps its plan.

    A lineage with only imported weights begins like a new one, but from those weights. Without a span, a run that was
    interrupted after its training comes first, if the configuration has not changed since.

    Raises:
        NothingToDo: no span was named, and the lineage has trained all spans.
        ConfigError: there are no spans, the span is unknown, or it can't come next; says which can, and the way out.
            Or another share or group of rows would be held out than the lineage holds out.
        StoreError: the lineage's head or an earlier plan is not readable.
    """
    config = on_active(store, config)
    spans, wanted = _spans(store, span)
    head = lineage.head(store, config.lineage)
    config = with_rule_of(store, config, head[1] if head else None)
    if head is None:
        return _plan(store, config, _first_window(spans, wanted), history=(), parent=None)
    parent, state = head
    if not state.consumed:
        return _plan(store, config, _first_window(spans, wanted), history=(), parent=parent)
    if wanted is None and (unfinished := _unfinished(store, config, state)) is not None:
        return unfinished
    if wanted is not None and (trained := _trained(state, wanted)) is not None:
        return _again(store, config, wanted, trained, state.consumed[-1].span.name)
    window = [_next(config.lineage, spans, state, wanted)]
    return _plan(store, config, window, history=state.consumed, parent=parent)


def plan_work(store: Store, config: Config, span: str) -> RunPlan:
    """Plan the work over `span` with these settings, to be done outside of the lineage.

    The work is that of `plan_run`. If the lineage has trained the span, with these or other settings, it is the same
    spans from the same checkpoint. Raises as `plan_run` does.
    """
    config = on_active(store, config)
    head = lineage.head(store, config.lineage)
    trained = None if head is None else next((rows.span for rows in head[1].consumed if rows.span.name == span), None)
    if trained is None:
        return plan_run(store, config, span)
    assert head is not None
    then = _plan_that_trained(store, config.lineage, trained)
    config = with_rule_of(store, config, head[1])
    return _plan(store, config, then.window, then.history, then.parent)


def plan_import(store: Store, config: Config, span: str | None = None) -> RunPlan:
    """Plan the first run of a new lineage, whose model gets imported weights.

    If the lineage already holds such an import and was not trained since, it is the plan of that import.

    Raises:
        ConfigError: the lineage has begun in another way; or as `plan_run`.
        StoreError: as `plan_run`.
    """
    config = on_active(store, config)
    spans, wanted = _spans(store, span)
    config = with_rule_of(store, config, None)
    plan = _plan(store, config, _first_window(spans, wanted), history=(), parent=None)
    head = lineage.head(store, config.lineage)
    if head is None:
        if partial := lineage.partial(store, config.lineage):
            raise ConfigError(
                f"lineage {config.lineage} has begun: a run of it left {partial[-1]} and was not finished; "
                f"nothing is imported on top of that, so {NEW_LINEAGE}"
            )
    elif head[1].consumed or head[1].run_key != plan.run_key:
        state = "was trained already" if head[1].consumed else "holds imported weights already"
        raise ConfigError(
            f"lineage {config.lineage} {state} ({head[0].prefix}); weights are imported only into a lineage that has "
            f"not begun, so {NEW_LINEAGE}"
        )
    return plan


def plan_window(
    store: Store, config: Config, window: Sequence[SpanRef], head: tuple[CheckpointRef, CheckpointState] | None
) -> RunPlan:
    """Plan the run that trains exactly this window after `head`; the order of the spans is not checked."""
    config = with_rule_of(store, config, head[1] if head else None)
    parent, history = (head[0], head[1].consumed) if head else (None, ())
    return _plan(store, config, window, history, parent)


def on_active(store: Store, config: Config) -> Config:
    """Return the configuration with the branch that its lineage has adopted, if any, as its lineage.

    Raises:
        StoreError: the pointer to the branch is not readable.
    """
    return config.model_copy(update={"lineage": branches.active(store, config.lineage)})


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
    """Write `plan.json` and `config.yaml` of the run, unless they are there.

    Raises:
        ConfigError: `millrace prune` has deleted files of this run, so it can't go on.
        Conflict: another plan has this run key.
        StoreError: the stored plan can't be read.
    """
    if store.exists(_pruned_key(plan.run_key)):
        span = plan.span.name
        raise ConfigError(
            f"run {plan.run_key} over {span} is over, and its files were deleted by millrace prune; its records stay: "
            f"millrace report --run {plan.run_key}; to train {span} again: {BACKFILL.format(first=span, last=span)}"
        )
    try:
        store.create(plan_key(plan.run_key), plan.to_json())
    except Conflict:
        # Where it is stored and where it runs may have changed since; nothing else may.
        there = read_plan(store, plan.run_key)
        same = there.config.same_work_as(plan.config)
        if not same or there.model_copy(update={"workspace": plan.workspace, "config": plan.config}) != plan:
            raise Conflict(f"{store.uri}/{plan_key(plan.run_key)} holds another plan; move it away") from None
    store.write(f"runs/{plan.run_key}/config.yaml", to_yaml(plan.config).encode())


def mark_pruned(store: Store, run_key: str) -> None:
    """Record that files of a run are deleted, before they are, so that it is not taken up again."""
    store.write(_pruned_key(run_key), Pruned(at=now()).to_json())


def read_plan(store: Store, run_key: str) -> RunPlan:
    """Return the plan of an earlier run. Raises StoreError: there is none, or this version can't read it."""
    return read_record(store, plan_key(run_key), RunPlan, f"restore it from a backup, or {NEW_LINEAGE}")


def _plan(
    store: Store, config: Config, window: Sequence[SpanRef], history: tuple[RowsRef, ...], parent: CheckpointRef | None
) -> RunPlan:
    return RunPlan(
        run_key=run_key(config, window, parent),
        span=window[-1],
        window=tuple(window),
        history=history,
        parent=parent,
        workspace=store.uri,
        config=config,
    )


def _pruned_key(run_key: str) -> str:
    return f"runs/{run_key}/pruned.json"


def plan_key(run_key: str) -> str:
    """Return where the plan of a run is stored."""
    return f"runs/{run_key}/plan.json"


def planned_runs(store: Store) -> list[str]:
    """Return the keys of all runs, which are the folders with a plan; a refresh is not one."""
    keys = (key.split("/")[1] for key in store.list("runs") if key.endswith("/plan.json"))
    return [key for key in keys if not key.startswith(REFRESH)]


def with_settings(work: RunPlan, **changes: object) -> RunPlan:
    """Return the same work with some settings of its configuration changed, and so with another run key."""
    config = work.config.model_copy(update=changes)
    return work.model_copy(update={"config": config, "run_key": run_key(config, work.window, work.parent)})


def _spans(store: Store, name: str | None) -> tuple[list[SpanRef], SpanRef | None]:
    """Return all spans in order, at least one, and the span of this name if a name is given."""
    spans = sorted(span_versions.list_spans(store), key=_position)
    if not spans:
        raise ConfigError(
            f"{store.uri} holds no ingested span; first: "
            f"millrace ingest --source FILE --time-column COLUMN --span quarter --map query=...,item=... "
            f"--workspace {store.uri}"
        )
    return spans, None if name is None else span_versions.find(spans, name)


def _first_window(spans: Sequence[SpanRef], wanted: SpanRef | None) -> Sequence[SpanRef]:
    """Return what a lineage's first run trains on: the oldest span, or all spans up to the wanted one."""
    return spans[:1] if wanted is None else spans[: spans.index(wanted) + 1]


def _position(span: SpanRef) -> tuple[dt.date, str]:
    return first_day(span.name), span.name


def _trained(state: CheckpointState, span: SpanRef) -> SpanRef | None:
    return next((rows.span for rows in state.consumed if rows.span.name == span.name), None)


def _next(name: str, spans: Sequence[SpanRef], state: CheckpointState, wanted: SpanRef | None) -> SpanRef:
    """Return the one span that may be trained now. Raises ConfigError if `wanted` is another."""
    watermark = max((rows.span for rows in state.consumed), key=_position)
    later = [span for span in spans if _position(span) > _position(watermark)]
    if wanted is None:
        if later:
            return later[0]
        raise NothingToDo(
            f"nothing to do: lineage {name} has trained all spans up to {watermark.name}{_left_out(spans, state)}"
        )
    if wanted not in later:
        raise ConfigError(
            f"span {wanted.name} is older than {watermark.name}, which lineage {name} has trained already; "
            f"spans are trained in order, so train it and all after it again: "
            f"{BACKFILL.format(first=wanted.name, last=watermark.name)}, or {NEW_LINEAGE}"
        )
    if before := [span.name for span in later[: later.index(wanted)]]:
        raise ConfigError(
            f"span {wanted.name} can't come next in lineage {name}, which stands at {watermark.name}: "
            f"run {listed(before)} first"
        )
    return wanted


def _left_out(spans: Sequence[SpanRef], state: CheckpointState) -> str:
    """Return a clause about the spans that arrived too late for this lineage; empty if none did."""
    late = [span.name for span in spans if _trained(state, span) != span]
    if not late:
        return ""
    backfill = BACKFILL.format(first=late[0], last=spans[-1].name)
    return f"; arrived too late for it: {listed(late)} (to train on them: {backfill})"


def _again(store: Store, config: Config, wanted: SpanRef, trained: SpanRef, last: str) -> RunPlan:
    """Return the plan of the run that trained this span. Raises ConfigError if its data or settings were others."""
    if wanted.version != trained.version:
        raise ConfigError(
            f"lineage {config.lineage} trained span {wanted.name} as v{trained.version}, and v{wanted.version} is the "
            f"newest now; no span is trained twice, so train it and all after it again: "
            f"{BACKFILL.format(first=wanted.name, last=last)}, or {NEW_LINEAGE}"
        )
    plan = _plan_that_trained(store, config.lineage, trained)
    asked = _in_the_lineage_of(plan, config)
    if run_key(asked, plan.window, plan.parent) != plan.run_key:
        raise ConfigError(
            f"span {wanted.name} was trained by run {plan.run_key} with other settings: "
            f"{listed(differences(plan.config, asked))}. Ask with the same ones (runs/{plan.run_key}/config.yaml), "
            f"train it and all after it again with these ({BACKFILL.format(first=wanted.name, last=last)}), "
            f"or {NEW_LINEAGE}"
        )
    return plan.model_copy(update={"workspace": store.uri, "config": asked})


def _in_the_lineage_of(plan: RunPlan, config: Config) -> Config:
    """Return the configuration with the lineage of the plan: a branch may have inherited the run."""
    return config.model_copy(update={"lineage": plan.config.lineage})


def _plan_that_trained(store: Store, name: str, span: SpanRef) -> RunPlan:
    states = [state for _, state in lineage.completed(store, name)]
    last = [state for state in states if state.consumed and state.consumed[-1].span == span]
    if not last:
        raise ConfigError(
            f"lineage {name} trained span {span.name} together with later spans in its first run, so there "
            f"is no run of that span alone; name a later span, or {NEW_LINEAGE}"
        )
    return read_plan(store, last[-1].run_key)


def _unfinished(store: Store, config: Config, state: CheckpointState) -> RunPlan | None:
    """Return the plan of the last run if it was neither released nor rejected and has this configuration."""
    if reached_state(store, state.run_key) is not RunState.UNFINISHED:
        return None
    plan = read_plan(store, state.run_key)
    asked = _in_the_lineage_of(plan, config)
    if run_key(asked, plan.window, plan.parent) != plan.run_key:
        return None
    return plan.model_copy(update={"workspace": store.uri, "config": asked})


def listed(names: Sequence[str], most: int = 5) -> str:
    """Join names, as in `a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
