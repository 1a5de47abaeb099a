"""Plan runs from the ingested spans, grouped into windows, and the checkpoints of the lineage.

Planning writes nothing, and planning the same work twice gives the same run key. If the lineage has adopted a branch,
the run is planned on that branch, and the configuration of the plan names it. The span of a scheduled run, and
earlier spans that were missed, depend on the workspace and the scheduled time, not on the present time.
"""

import contextlib
import datetime as dt
from collections.abc import Sequence

from configs.load import differences
from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.references import CheckpointState, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.spans import SpanKind, first_day, kind_of, last_over
from tasks.data import span_versions
from tasks.data.holdout import with_rule_of
from tasks.foundation.errors import ConfigError, DataError
from tasks.planning import decisions
from tasks.planning.decisions import skips, spans_to_train
from tasks.planning.start import Origin, consumed, find_start, on_active, plan_from, require_vectors
from tasks.runs import branches, lineage
from tasks.runs.plan import BACKFILL, NEW_LINEAGE, NothingToDo, listed, plan_window, read_plan, rows_of, run_key
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot


def position(span: SpanRef) -> tuple[dt.date, str]:
    """Return the sort key of a span."""
    return first_day(span.name), span.name


def after(spans: Sequence[SpanRef], trained: Sequence[SpanRef]) -> list[SpanRef]:
    """Return the spans after the newest of `trained`; all if nothing was trained."""
    newest = max(map(position, trained), default=None)
    return [span for span in spans if newest is None or position(span) > newest]


def windows(
    store: Store,
    config: Config,
    spans: Sequence[SpanRef],
    merge: bool | None = None,
    wanted: SpanRef | None = None,
) -> list[list[SpanRef]]:
    """Return the windows in which runs train these consecutive spans: one span each, unless some wait for the next.

    A span with fewer ingested rows than `validate.min_rows` may be merged with the spans after it until they have
    enough. A span that waits by a decision is merged with the next one. The last spans are left out if they wait.

    Args:
        merge: True to merge small spans; None: as in `validate.small_spans`.
        wanted: span that does not wait, whatever was decided, because a person or the schedule names it.

    Raises:
        StoreError: a decision is not readable.
    """
    merge = config.validate_.small_spans == "merge" if merge is None else merge
    postponed = [span for span in decisions.waiting(store, config, spans) if span != wanted]
    if not merge and not postponed:
        return [[span] for span in spans]
    found: list[list[SpanRef]] = []
    window: list[SpanRef] = []
    for span in spans:
        window.append(span)
        rows = rows_of(store, window) if merge else None
        if span not in postponed and (rows is None or sum(rows) >= config.validate_.min_rows):
            found.append(window)
            window = []
    return found


def first_windows(store: Store, config: Config, spans: Sequence[SpanRef]) -> list[list[SpanRef]]:
    """Return the windows of a new lineage. Its first one has at least `validate.min_rows` rows if the spans do."""
    first = next(iter(windows(store, config, spans, merge=True)), None)
    if first is None:
        return [] if config.validate_.small_spans == "merge" else [list(spans)]
    return [first, *windows(store, config, spans[len(first) :])]


def plan_run(store: Store, config: Config, span: str | None = None) -> RunPlan:
    """Plan the run over `span`, by default over the oldest span not yet trained. A finished run keeps its plan.

    If the last models were rejected, the run starts from the checkpoint before them, and their spans are in its window
    (`train.after_rejection`). Such a span may be named again after a change of its data or the settings. A lineage with
    only imported weights begins like a new one, but from these weights. Without a span, a run that was interrupted
    after its training comes first, if the configuration has not changed since.

    Raises:
        NothingToDo: no span was named, and the lineage has trained all spans; or the span is skipped, or has too few
            rows and waits for the next one.
        ConfigError: no spans exist, the span is unknown, or it can't come next (names the spans that can, and the
            remedy); or the holdout group differs from the lineage's; or no release has vectors that queries could find.
        StoreError: the lineage's head or an earlier plan is not readable.
    """
    require_vectors(store, config)
    config = on_active(store, config)
    spans, wanted = trainable(store, config, span)
    start = find_start(store, config)
    config = with_rule_of(config, start.parent[1] if start.parent else None)
    if start.head is None or not start.head[1].consumed:
        return plan_window(store, config, first_window(store, config, spans, wanted), start.head)
    state = start.head[1]
    if wanted is None and (unfinished := _unfinished(store, config, state)) is not None:
        return unfinished
    if wanted is not None and (trained := _trained(state, wanted)) is not None:
        if trained not in start.rejected:
            return _again(store, config, wanted, trained, state.consumed[-1].span.name)
        with contextlib.suppress(ConfigError):  # its data or the settings have changed since it was rejected
            return _again(store, config, wanted, trained, state.consumed[-1].span.name)
    window = _next_window(store, config, spans, start, wanted)
    return plan_from(store, decisions.as_decided(store, config, window[-1]), start, window)


def plan_work(store: Store, config: Config, span: str) -> RunPlan:
    """Plan the work over `span` with these settings, to be done outside of the lineage.

    The work is as in `plan_run`. If the lineage has trained the span, with these or other settings, it is the same
    spans from the same checkpoint. Raises as `plan_run` does.
    """
    config = on_active(store, config)
    head = lineage.head(store, config.lineage)
    trained = None if head is None else next((rows.span for rows in head[1].consumed if rows.span.name == span), None)
    if head is None or trained is None:
        return plan_run(store, config, span)
    config = with_rule_of(config, head[1])
    then = _plan_that_trained(store, config.lineage, trained)
    key = run_key(config, then.window, then.parent)
    return then.model_copy(update={"config": config, "run_key": key, "workspace": store.uri, "branch": None})


def trainable(store: Store, config: Config, name: str | None) -> tuple[list[SpanRef], SpanRef | None]:
    """Return the spans that are not skipped, in order, and the span with this name if given.

    Raises:
        NothingToDo: all spans are skipped, or the named one is.
        ConfigError: no spans exist, or the named one does not.
    """
    spans = sorted(span_versions.list_spans(store), key=position)
    if not spans:
        raise ConfigError(
            f"{store.uri} holds no ingested span; first: millrace look FILE --workspace {store.uri}, which prints the "
            "command that ingests it"
        )
    wanted = None if name is None else span_versions.find(spans, name)
    left_out = skips(store, config.lineage)
    if wanted is not None and wanted in left_out:
        raise NothingToDo(f"nothing to do: {name} v{wanted.version} is skipped: {left_out[wanted].reason}")
    kept = [span for span in spans if span not in left_out]
    if not kept:
        raise NothingToDo(f"nothing to do: all spans are skipped: {listed([span.name for span in spans])}")
    return kept, wanted


def first_window(store: Store, config: Config, spans: Sequence[SpanRef], wanted: SpanRef | None) -> Sequence[SpanRef]:
    """Return the spans of a lineage's first run: the oldest ones with enough rows, or all up to the wanted one.

    Raises NothingToDo: the spans wait for more rows.
    """
    if wanted is not None:
        return spans[: spans.index(wanted) + 1]
    if found := first_windows(store, config, spans):
        return found[0]
    raise NothingToDo(_waits(store, config, spans))


def _next_window(
    store: Store, config: Config, spans: Sequence[SpanRef], start: Origin, wanted: SpanRef | None
) -> Sequence[SpanRef]:
    """Return the spans of the next run: the rejected models' spans, and the next window after the head.

    Raises:
        NothingToDo: nothing is left, or the spans left wait for more rows.
        ConfigError: `wanted` can't come next.
    """
    later = after(spans, consumed(start.head))
    again = [span for span in after(spans, consumed(start.parent)) if span not in later]
    if wanted is not None and wanted in again:
        return again[: again.index(wanted) + 1]
    following = next(iter(windows(store, config, later, wanted=wanted)), None)
    if wanted is None:
        if following is not None:
            return [*again, *following]
        if again and tuple(again) != start.rejected:
            return again
        raise NothingToDo(_waits(store, config, later) if later else _nothing_left(config, spans, start))
    if following is not None and wanted == following[-1]:
        return [*again, *following]
    raise _not_next(store, config, start, later, following, wanted)


def _not_next(
    store: Store,
    config: Config,
    start: Origin,
    later: list[SpanRef],
    following: list[SpanRef] | None,
    wanted: SpanRef,
) -> ConfigError:
    """Return the error that names the reason why the wanted span can't come next, and the spans that can."""
    watermark = max(consumed(start.head), key=position).name
    if wanted not in later:
        return ConfigError(
            f"span {wanted.name} is older than {watermark}, which lineage {config.lineage} has trained already; "
            f"spans are trained in order, so train it and all after it again: "
            f"{BACKFILL.format(first=wanted.name, last=watermark)}, or {NEW_LINEAGE}"
        )
    if following is None:
        return NothingToDo(_waits(store, config, later))
    if wanted in following:
        return NothingToDo(
            f"nothing to do: {wanted.name} has fewer rows than validate.min_rows {config.validate_.min_rows}, so it is "
            f"trained together with {following[-1].name}: millrace run --span {following[-1].name}"
        )
    before = [span.name for span in later[: later.index(wanted)]]
    return ConfigError(
        f"span {wanted.name} can't come next in lineage {config.lineage}, which stands at {watermark}: "
        f"run {listed(before)} first"
    )


def _waits(store: Store, config: Config, spans: Sequence[SpanRef]) -> str:
    if postponed := decisions.waiting(store, config, spans):
        last = max(postponed, key=position)
        return (
            f"nothing to do yet: {listed([span.name for span in postponed])} waits for the next span, by the decision "
            f"of {postponed[last].at[:10]}: {postponed[last].why} To train now: millrace run --span {last.name}"
        )
    names = listed([span.name for span in spans])
    have = "has" if len(spans) == 1 else "have together"
    return (
        f"nothing to do yet: {names} {have} fewer rows than validate.min_rows {config.validate_.min_rows}, so wait "
        f"for the next span (validate.small_spans is merge)"
    )


def _nothing_left(config: Config, spans: Sequence[SpanRef], start: Origin) -> str:
    """Return the message that nothing is left, with late spans, new versions, and the spans of rejected models."""
    watermark = max(consumed(start.head), key=position)
    text = f"nothing to do: lineage {config.lineage} has trained all spans up to {watermark.name}"
    if start.rejected:
        names = [span.name for span in start.rejected]
        return (
            f"{text}; the last model was rejected, and {listed(names)} will be trained again with the next span, or "
            f"with other settings: millrace run --span {names[-1]} --set KEY=VALUE"
        )
    trained = {span.name: span.version for span in consumed(start.head)}
    late = [span.name for span in spans if span.name not in trained]
    again = [span.name for span in spans if span.version > trained.get(span.name, span.version)]
    if late:
        text += f"; arrived too late for it: {listed(late)}"
    if again:
        text += f"; have a newer version, by a correction or an erasure: {listed(again)}"
    if not late and not again:
        return text
    first = next(span.name for span in spans if span.name in (*late, *again))
    return f"{text} (to train on them: {BACKFILL.format(first=first, last=spans[-1].name)})"


def _trained(state: CheckpointState, span: SpanRef) -> SpanRef | None:
    return next((rows.span for rows in state.consumed if rows.span.name == span.name), None)


def _again(store: Store, config: Config, wanted: SpanRef, trained: SpanRef, last: str) -> RunPlan:
    """Return the plan of the run that trained this span. Raises ConfigError if its data or settings differ."""
    if wanted.version != trained.version:
        raise ConfigError(
            f"lineage {config.lineage} trained span {wanted.name} as v{trained.version}, and v{wanted.version} is the "
            f"newest now; no span is trained twice, so train it and all after it again: "
            f"{BACKFILL.format(first=wanted.name, last=last)}, or {NEW_LINEAGE}"
        )
    plan = _plan_that_trained(store, config.lineage, trained)
    asked = _in_the_lineage_of(plan, decisions.as_decided(store, config, plan.span))
    if not asked.same_work_as(plan.config):
        raise ConfigError(
            f"span {wanted.name} was trained by run {plan.run_key} with other settings: "
            f"{listed(differences(plan.config, asked))}. Ask with the same ones (runs/{plan.run_key}/config.yaml), "
            f"train it and all after it again with these ({BACKFILL.format(first=wanted.name, last=last)}), "
            f"or {NEW_LINEAGE}"
        )
    return plan.model_copy(update={"workspace": store.uri, "config": asked})


def _in_the_lineage_of(plan: RunPlan, config: Config) -> Config:
    """Return the configuration with the plan's lineage, as a branch may have inherited the run."""
    return config.model_copy(update={"lineage": plan.config.lineage})


def _plan_that_trained(store: Store, name: str, span: SpanRef) -> RunPlan:
    states = [state for _, state in lineage.completed(store, name)]
    last = [state for state in states if state.consumed and state.consumed[-1].span == span]
    if not last:
        raise ConfigError(
            f"lineage {name} trained span {span.name} together with later spans in one run, so there "
            f"is no run of that span alone; name a later span, or {NEW_LINEAGE}"
        )
    return read_plan(store, last[-1].run_key)


def _unfinished(store: Store, config: Config, state: CheckpointState) -> RunPlan | None:
    """Return the plan of the last run if it was neither released nor rejected and has this configuration."""
    run = Run(Snapshot(store, strict=True), state.run_key)
    if not run.unfinished:
        return None
    plan = read_plan(store, run.run_key)
    asked = _in_the_lineage_of(plan, decisions.as_decided(store, config, plan.span))
    if not asked.same_work_as(plan.config):
        return None
    return plan.model_copy(update={"workspace": store.uri, "config": asked})


def due_span(store: Store, scheduled: dt.datetime, zone: str) -> str:
    """Return the newest span that has ended at `scheduled` by the calendar of `zone`, arrived or not.

    Raises:
        ConfigError: the zone is unknown, or the workspace's spans have several lengths.
        DataError: the workspace has no span yet, so their length is not known.
    """
    return last_over(scheduled, zone, span_kind(store))


def span_kind(store: Store) -> SpanKind:
    """Return the length of the spans of a workspace.

    Raises:
        ConfigError: they have several lengths.
        DataError: no span exists.
    """
    names = [span.name for span in span_versions.list_spans(store)]
    by_kind = {kind_of(name): name for name in names}
    if not by_kind:
        raise DataError(f"{store.uri} holds no ingested span, so nothing can be due; first: millrace look FILE")
    if len(by_kind) > 1:
        raise ConfigError(
            f"{store.uri} holds spans of several lengths ({', '.join(by_kind.values())}), so which one is due can't be "
            "said; keep one length to a workspace, or name the span"
        )
    return next(iter(by_kind))


def missed(store: Store, config: Config, up_to: str) -> list[str]:
    """Return the arrived spans up to and including `up_to` that come after the lineage's trained spans.

    Skipped spans are left out, and small ones that are trained together with a later one or wait for it. A new lineage
    has missed nothing: its first run trains all spans up to its own.

    Raises:
        StoreError: a checkpoint, or the record of a branch, is not readable.
    """
    config = on_active(store, config)
    trained = consumed(lineage.head(store, config.lineage))
    if not trained:
        return []
    later = after(spans_to_train(store, config.lineage), trained)
    due = [span for span in later if first_day(span.name) <= first_day(up_to)]
    return [window[-1].name for window in windows(store, config, due)]


def require_arrived(store: Store, span: str) -> str:
    """Return `span`, which is due. Raises DataError: it has not arrived; the message names the next step."""
    if span_versions.latest_version(store, span) is None:
        names = [ref.name for ref in span_versions.list_spans(store)]
        newest = f"the newest that has is {names[-1]}" if names else "none has"
        raise DataError(
            f"span {span} is due and has not arrived in {store.uri} ({newest}). Once `millrace ingest` has put it "
            f"there, the deployed watch starts its run; sooner by hand: millrace run --span {span}"
        )
    return span


def run_of(store: Store, config: Config, span: str) -> str:
    """Return the last span of the run that trained `span`.

    Raises:
        StoreError: a checkpoint, or the record of a branch, is not readable.
    """
    for _, state in lineage.completed(store, branches.active(store, config.lineage)):
        names = [rows.span.name for rows in state.consumed]
        if span in names:
            return names[-1]
    return span
