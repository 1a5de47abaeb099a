"""The start of a backfill's branch: an accepted checkpoint, after the kept runs."""

from collections.abc import Sequence
from typing import NamedTuple

from configs.differences import differences
from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.checkpoints import CheckpointState
from tasks.contracts.references import CheckpointRef, SpanRef
from tasks.planning.next_run import position
from tasks.planning.start import consumed, is_rejected
from tasks.runs.plan import listed, read_plan

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
