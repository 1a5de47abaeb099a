"""Plan backfills: the finished spans, the spans to train again in windows, the start of their branch, the reasons.

It writes nothing. Planning the same backfill again gives the same id, with less work left. A branch starts from an
accepted checkpoint, after the kept runs.
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from configs.load import config_hash, differences
from configs.schema.config import Config
from infra.store.base import Store
from tasks.campaigns.campaign import BACKFILL_STAGES, BackfillPlan, Cell, Step
from tasks.campaigns.estimate import estimate_backfill
from tasks.contracts.references import CheckpointRef, CheckpointState, SpanRef
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.data import span_versions
from tasks.data.holdout import with_rule_of
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError
from tasks.monitoring.estimates import past
from tasks.planning.decisions import spans_to_train
from tasks.planning.next_run import position
from tasks.planning.start import consumed, is_rejected
from tasks.preflight.checks import check_window
from tasks.runs import branches, lineage, releases
from tasks.runs.branches import branch_of
from tasks.runs.plan import listed, read_plan, run_key
from tasks.runs.results import Judgement, UnusableResult, read_judgement
from tasks.runs.snapshot import Snapshot

Chain = list[tuple[CheckpointRef, CheckpointState]]


class BranchPoint(NamedTuple):
    """The windows of all runs, the keys of the kept runs, the checkpoint after them, and a reason per window."""

    windows: list[tuple[SpanRef, ...]]
    kept: list[str]
    base: CheckpointRef | None
    reasons: list[str]


def find_branch_point(
    store: Store, config: Config, spans: Sequence[SpanRef], chain: Chain, windows: list[tuple[SpanRef, ...]]
) -> BranchPoint:
    """Compare the windows with the runs of the lineage, up to the first window that must be trained again.

    If the branch would start from a rejected model, it starts from the last accepted one before it, unless
    `train.after_rejection` is challenger. The rejected models' spans then join the first window.

    Args:
        spans: all trainable spans, in their newest version.
        chain: the checkpoints of the lineage, in order.

    Raises:
        StoreError: a plan, release or verdict is not readable.
    """
    count = count_before(chain, windows[0])
    kept: list[str] = []
    reasons: list[str] = []
    for window in windows:
        if _reason(store, config, chain, count, window) is not None:
            break
        kept.append(chain[count][1].run_key)
        reasons.append(_together("as it was trained before", window))
        count += 1
    trained = {span.name: span for span in consumed(chain[-1] if chain else None)}
    cause = windows[len(kept)][-1].name if len(kept) < len(windows) else ""
    for number, window in enumerate(windows[len(kept) :]):
        own = _reason(store, config, chain, count, window) if number == 0 else _corrected(trained, window)
        follows = f"follows {cause}, which is trained again" if window[-1].name in trained else "not trained yet"
        reasons.append(_together(own or follows, window))
    found = BranchPoint(windows, kept, chain[count - 1][0] if count else None, reasons)
    if len(kept) == len(windows) or config.train.after_rejection == "challenger":
        return found
    return _around_rejected(store, spans, chain, count, found)


def _around_rejected(
    store: Store, spans: Sequence[SpanRef], chain: Chain, count: int, found: BranchPoint
) -> BranchPoint:
    """Let the branch start from an accepted checkpoint; `count` counts the checkpoints before the branch."""
    accepted = count
    while accepted and is_rejected(store, chain[accepted - 1]):
        accepted -= 1
    if accepted == count:
        return found
    before = chain[accepted - 1] if accepted else None
    rejected = consumed(chain[count - 1])[len(consumed(before)) :]
    names = {span.name for span in rejected}
    again = tuple(span for span in spans if span.name in names)
    dropped = {state.run_key for _, state in chain[accepted:count]}
    kept = [key for key in found.kept if key not in dropped]
    own, later = len(kept), len(found.kept)
    reason = f"{found.reasons[later]}; with {listed([span.name for span in again])}, whose model was rejected"
    return BranchPoint(
        windows=[*found.windows[:own], (*again, *found.windows[later]), *found.windows[later + 1 :]],
        kept=kept,
        base=before[0] if before else None,
        reasons=[*found.reasons[:own], reason, *found.reasons[later + 1 :]],
    )


def count_before(chain: Chain, window: tuple[SpanRef, ...]) -> int:
    """Return the number of checkpoints before the one that has, or should have, this window's first span."""
    names = {span.name for span in window}
    count = 0
    for _, state in chain:
        if any(rows.span.name in names for rows in state.consumed):
            break
        if state.consumed and position(state.consumed[-1].span) > position(window[0]):
            break
        count += 1
    return count


def _reason(store: Store, config: Config, chain: Chain, position: int, window: tuple[SpanRef, ...]) -> str | None:
    """Return the reason to train the window; None if the lineage's run at this position did exactly this work."""
    if position >= len(chain):
        return "not trained yet"
    state = chain[position][1]
    if found := _corrected({rows.span.name: rows.span for rows in state.consumed}, window):
        return found
    before = len(chain[position - 1][1].consumed) if position else 0
    if tuple(rows.span for rows in state.consumed[before:]) != window:
        return "arrived after later spans were trained"
    plan = read_plan(store, state.run_key)
    requested = config.model_copy(update={"lineage": plan.config.lineage})
    if not requested.same_work_as(plan.config):
        return f"settings changed: {listed(differences(plan.config, requested), most=3)}"
    return None


def _corrected(consumed: dict[str, SpanRef], window: tuple[SpanRef, ...]) -> str | None:
    changed = [span for span in window if span.name in consumed and consumed[span.name] != span]
    if not changed:
        return None
    return "corrected: " + listed([f"{s.name} v{consumed[s.name].version} -> v{s.version}" for s in changed])


def _together(reason: str, window: tuple[SpanRef, ...]) -> str:
    others = [span.name for span in window[:-1]]
    return f"{reason}; together with {listed(others)} in one run" if others else reason


def windows(
    spans: Sequence[SpanRef], states: Sequence[CheckpointState], first: str, last: str, lineage: str
) -> list[tuple[SpanRef, ...]]:
    """Return the windows of the runs from `first` to `last`, oldest first, with the newest version of each span.

    Args:
        spans: all ingested spans, oldest first.
        states: the lineage's checkpoints, in order.

    Raises:
        ConfigError: the range is empty, or skips spans that must be trained first; names a possible range.
    """
    if not spans:
        raise ConfigError("the workspace has no spans, so there is nothing to backfill; start with: millrace look FILE")
    names = [span.name for span in spans]
    start, end = (spans.index(span_versions.find(spans, name)) for name in (first, last))
    if start > end:
        raise ConfigError(f"--from {first} is later than --to {last}; did you mean --from {last} --to {first}?")
    ranges = _ranges(names, states)
    if not ranges:
        return [tuple(spans[: start + 1]), *((span,) for span in spans[start + 1 : end + 1])]
    oldest, newest = ranges[0][0], max(last for _, last in ranges)
    if end < oldest:
        raise ConfigError(
            f"lineage {lineage} starts with {names[oldest]}, and the range from {first} to {last} is before it: a "
            f"model of this range alone would not know the later spans; extend the range to --to "
            f"{names[ranges[0][1]]} or later, or start a new lineage: --set lineage=NAME"
        )
    if gap := names[newest + 1 : start]:
        raise ConfigError(
            f"lineage {lineage} is trained up to {names[newest]}, and {listed(gap)} would be skipped before {first}; "
            f"spans are trained in order, so start with --from {gap[0]}"
        )
    several = [(begin, until) for begin, until in ranges if begin < until]
    if several and several[0][0] == oldest and start < oldest:
        several[0] = (start, several[0][1])  # spans that arrived before the first run's range join it
    for begin, until in several:
        if begin <= end < until:
            raise ConfigError(
                f"lineage {lineage} trained {names[begin]} to {names[until]} together in one run, so "
                f"no run ends with {last}; extend the range to --to {names[until]}"
            )
        if begin < start <= until:
            start = begin
    found: list[tuple[SpanRef, ...]] = []
    while start <= end:
        until = next((until for begin, until in several if begin == start), start)
        found.append(tuple(spans[start : until + 1]))
        start = until + 1
    return found


def _ranges(names: Sequence[str], states: Sequence[CheckpointState]) -> list[tuple[int, int]]:
    """Return each run's first and last trained span, as indices of `names`; skipped spans are left out."""
    found, before = [], 0
    for state in states:
        new = [names.index(rows.span.name) for rows in state.consumed[before:] if rows.span.name in names]
        before = len(state.consumed)
        if new:
            found.append((min(new), max(new)))
    return found


def plan_backfill(
    store: Store,
    config: Config,
    first: str,
    last: str,
    stages: Sequence[str] = BACKFILL_STAGES,
    reason: str = "",
    parallel: int = 2,
) -> BackfillPlan:
    """Plan the work left for the spans from `first` to `last`, both included.

    Args:
        stages: some of train, evaluate, infer and release; train includes validate, health and warmup.
        reason: stored with the backfill, for display.
        parallel: number of spans evaluated and inferred at once, for the expected time.

    Raises:
        ConfigError: the range or the stages are not possible (names the possible ones); the earlier spans have
            another holdout group; or the settings fail in `check_window`.
        DataError: a span lacks a column that the settings name.
        StoreError: a checkpoint, plan or result is not readable; names the file.
    """
    requested = _checked_stages(stages)
    on = branches.active(store, config.lineage)
    chain = lineage.completed(store, on)
    spans = spans_to_train(store, on, first, last)
    wanted = windows(spans, [state for _, state in chain], first, last, config.lineage)
    before = chain[: count_before(chain, wanted[0])]
    config = with_rule_of(config, before[-1][1] if before else None)
    start = find_branch_point(store, config, spans, chain, wanted)
    wanted = start.windows
    retrained = wanted[len(start.kept) :]
    if retrained and start.base is not None and lineage.is_pruned(store, start.base):
        raise ConfigError(_no_base(store, chain, start.base, retrained[0][0].name))
    kept = () if retrained else start.kept
    work = _hash(config.lineage, on, start.base, retrained or wanted, config_hash(config), *kept)
    branch = f"{config.lineage}-backfill-{work[:8]}" if retrained else None
    keys = [*start.kept, *_keys_on_branch(store, config, branch, start.base, retrained)]
    to_do = [
        _cell(store, requested, window, key, reason, branch if number >= len(start.kept) else None)
        for number, (window, key, reason) in enumerate(zip(wanted, keys, start.reasons, strict=True))
    ]
    to_do[-1] = _with_release(store, requested, to_do[-1], adopted=branch is None or on == branch)
    _check_trained(to_do, requested)
    for span in to_do:
        if "train" in span.left:
            check_window(store, config, span.window, begins=start.base is None and span is to_do[0])
    consumed = chain[-1][1].consumed if chain else ()
    expected = estimate_backfill(store, config, past(Snapshot(store), consumed), to_do, parallel)
    beyond = [rows.span for rows in consumed] if retrained else []
    serving = releases.current(store)
    after = {span.name for window in retrained for span in window}
    at = now()
    return BackfillPlan(
        id=_hash(work, first, last, sorted(requested)),
        lineage=config.lineage,
        on=on,
        branch=branch,
        base=start.base if retrained else None,
        first=first,
        last=last,
        stages=tuple(stage for stage in BACKFILL_STAGES if stage in requested),
        parallel=parallel,
        reason=reason,
        workspace=store.uri,
        config=config,
        spans=tuple(expected.spans),
        invalidated=tuple(_after(beyond, retrained, after)) if retrained else (),
        serving=serving.span if serving else None,
        expected_seconds=expected.seconds,
        expected_dollars=expected.dollars,
        attempts_seen=expected.attempts_seen,
        began_at=at,
        updated_at=at,
    )


def _checked_stages(stages: Sequence[str]) -> set[str]:
    known = ", ".join(BACKFILL_STAGES)
    if unknown := [stage for stage in stages if stage not in BACKFILL_STAGES]:
        raise ConfigError(
            f"stage {unknown[0]!r} can't be chosen; choose from {known} (train includes validate, health and warmup)"
        )
    if not stages:
        raise ConfigError(f"no stage given; choose from {known}")
    requested = set(stages)
    if "release" in requested and (missing := {"evaluate", "infer"} - requested):
        raise ConfigError(
            f"release needs {' and '.join(sorted(missing))} as well: a release has passed the gates and has vectors; "
            "add them to --stages, or remove release"
        )
    return requested


def _no_base(store: Store, chain: Chain, base: CheckpointRef, first: str) -> str:
    """Return the error message for a pruned start checkpoint, with the nearest possible start."""
    position = next(number for number, (ref, _) in enumerate(chain) if ref == base)
    while position and lineage.is_pruned(store, chain[position - 1][0]):
        position -= 1
    span = chain[position][1].consumed[-1].span.name
    return (
        f"{first} would be trained again from {base.prefix}, whose weights were deleted by millrace prune; the nearest "
        f"earlier start is --from {span}"
    )


def _keys_on_branch(
    store: Store, config: Config, branch: str | None, base: CheckpointRef | None, retrained: list[tuple[SpanRef, ...]]
) -> list[str | None]:
    """Return the run keys on the branch; None for a run whose parent checkpoint is not made yet."""
    if branch is None:
        return []
    own = lineage.completed(store, branch) if branch_of(store, branch) is not None else []
    made = {state.run_key: ref for ref, state in own}
    on_branch = config.model_copy(update={"lineage": branch})
    keys: list[str | None] = []
    parent, known = base, True
    for window in retrained:
        key = run_key(on_branch, window, parent) if known else None
        keys.append(key)
        parent = made.get(key) if key is not None else None
        known = parent is not None
    return keys


def _cell(
    store: Store, requested: set[str], window: tuple[SpanRef, ...], key: str | None, reason: str, branch: str | None
) -> Cell:
    def action(stage: Stage) -> Step:
        if stage.value not in requested or stage is Stage.release:  # _with_release adds the release
            return "not asked"
        done = key is not None and store.exists(RESULT.key(run=key, stage=stage))
        return "done" if done and (stage is not Stage.evaluate or _judged(store, key) is not None) else "run"

    actions: dict[str, Any] = {stage: action(Stage(stage)) for stage in BACKFILL_STAGES}
    return Cell(
        span=window[-1],
        window=window,
        branch=branch,
        run_key=key,
        trained=key is not None and store.exists(RESULT.key(run=key, stage=Stage.train)),
        **actions,
        why=reason,
    )


def _with_release(store: Store, requested: set[str], span: Cell, adopted: bool) -> Cell:
    """Add the release to the last span. If the gates refused it, its vectors are not needed either."""
    if "release" not in requested:
        return span
    judged = _judged(store, span.run_key) if span.evaluate == "done" else None
    if judged is not None and judged.refused:
        infer: Step = "done" if span.infer == "done" else "refused"
        return span.model_copy(update={"infer": infer, "release": "refused"})
    released = span.run_key is not None and releases.of_run(store, span.run_key) is not None
    return span.model_copy(update={"release": "done" if released and adopted else "run"})


def _judged(store: Store, key: str | None) -> Judgement | None:
    try:
        return read_judgement(store, key) if key is not None else None
    except UnusableResult:  # the gates judge the run again
        return None


def _check_trained(spans: Sequence[Cell], requested: set[str]) -> None:
    untrained = [span for span in spans if not span.trained]
    if "train" in requested or not untrained:
        return
    raise ConfigError(
        f"{len(untrained)} of {len(spans)} spans are not trained with this data and these settings: "
        f"{listed([f'{span.span.name} ({span.why})' for span in untrained], most=3)}; add train to --stages"
    )


def _after(consumed: Sequence[SpanRef], retrained: list[tuple[SpanRef, ...]], within: set[str]) -> list[SpanRef]:
    """Return the lineage's spans after the first retrained window that this backfill does not train."""
    return [span for span in consumed if span.name not in within and _later(span, retrained[0][0])]


def _later(span: SpanRef, other: SpanRef) -> bool:
    return (first_day(span.name), span.name) > (first_day(other.name), other.name)


def _hash(*parts: object) -> str:
    text = json.dumps(parts, sort_keys=True, default=lambda value: value.model_dump(mode="json"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
