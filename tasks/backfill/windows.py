"""The windows of a backfill: the spans of each run. A window has one span, except for a lineage's first run."""

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
        ConfigError: the range is empty, or skips spans that must be trained first; says which range is possible.
    """
    if not spans:
        raise ConfigError("the workspace has no spans, so there is nothing to backfill; start with: millrace ingest")
    names = [span.name for span in spans]
    start, end = (spans.index(span_versions.find(spans, name)) for name in (first, last))
    if start > end:
        raise ConfigError(f"--from {first} is later than --to {last}; did you mean --from {last} --to {first}?")
    runs = [state.consumed for state in states if state.consumed]
    if not runs:
        return [tuple(spans[: start + 1]), *((span,) for span in spans[start + 1 : end + 1])]
    together = [names.index(rows.span.name) for rows in runs[0] if rows.span.name in names]
    newest = max(names.index(rows.span.name) for rows in runs[-1] if rows.span.name in names)
    if end < together[0]:
        raise ConfigError(
            f"lineage {lineage} starts with {names[together[0]]}, and the range from {first} to {last} is before it: a "
            f"model of this range alone would not know the later spans; extend the range to --to "
            f"{names[together[-1]]} or later, or start a new lineage: --set lineage=NAME"
        )
    if gap := names[newest + 1 : start]:
        raise ConfigError(
            f"lineage {lineage} is trained up to {names[newest]}, and {listed(gap)} would be skipped before {first}; "
            f"spans are trained in order, so start with --from {gap[0]}"
        )
    if len(together) == 1 or start > together[-1]:
        return [(span,) for span in spans[start : end + 1]]
    if end < together[-1]:
        raise ConfigError(
            f"lineage {lineage} trained {names[together[0]]} to {names[together[-1]]} together in its first run, so "
            f"no run ends with {last}; extend the range to --to {names[together[-1]]}"
        )
    start = min(start, together[0])
    first_run = tuple(spans[start : together[-1] + 1])
    return [first_run, *((span,) for span in spans[together[-1] + 1 : end + 1])]
