"""The windows of a backfill: the spans of each run. A window has one span, or several that a run trained together."""

from collections.abc import Sequence

from tasks.contracts.checkpoints import CheckpointState
from tasks.contracts.references import SpanRef
from tasks.data import span_versions
from tasks.foundation.errors import ConfigError
from tasks.runs.plan import listed


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
