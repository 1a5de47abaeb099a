"""Which spans a backfill's runs are made of: mostly one each, but what a lineage began with stays together."""

from __future__ import annotations

from collections.abc import Sequence

from tasks import catalog
from tasks.contracts import CheckpointState, SpanRef
from tasks.errors import ConfigError
from tasks.plan import listed


def windows(
    spans: Sequence[SpanRef], states: Sequence[CheckpointState], first: str, last: str, lineage: str
) -> list[tuple[SpanRef, ...]]:
    """The windows of the runs from `first` to `last`, in their newest versions, oldest first.

    Args:
        spans: all that are ingested, oldest first.
        states: of the lineage's checkpoints, in order.

    Raises:
        ConfigError: the range is none, or leaves out what has to come before it; says what can be asked for.
    """
    if not spans:
        raise ConfigError(
            "the workspace holds no ingested span, so there is nothing to fill; begin with: millrace ingest"
        )
    names = [span.name for span in spans]
    start, end = (spans.index(catalog.find(spans, name)) for name in (first, last))
    if start > end:
        raise ConfigError(f"--from {first} is later than --to {last}; did you mean --from {last} --to {first}?")
    begun = [state.consumed for state in states if state.consumed]
    if not begun:
        return [tuple(spans[: start + 1]), *((span,) for span in spans[start + 1 : end + 1])]
    together = [names.index(rows.span.name) for rows in begun[0] if rows.span.name in names]
    newest = max(names.index(rows.span.name) for rows in begun[-1] if rows.span.name in names)
    if end < together[0]:
        raise ConfigError(
            f"lineage {lineage} begins with {names[together[0]]}, and the range from {first} to {last} lies before it: "
            f"a model of these spans alone would lack all that it has learnt; go on at least to --to "
            f"{names[together[-1]]}, or start a new lineage: --set lineage=NAME"
        )
    if gap := names[newest + 1 : start]:
        raise ConfigError(
            f"lineage {lineage} stands at {names[newest]}, and {listed(gap)} would be left out before {first}; "
            f"spans are trained in order, so begin with --from {gap[0]}"
        )
    if len(together) == 1 or start > together[-1]:
        return [(span,) for span in spans[start : end + 1]]
    if end < together[-1]:
        raise ConfigError(
            f"lineage {lineage} trained {names[together[0]]} to {names[together[-1]]} together in its first run, so "
            f"there is no run that ends with {last}; go on to --to {names[together[-1]]}"
        )
    start = min(start, together[0])
    first_run = tuple(spans[start : together[-1] + 1])
    return [first_run, *((span,) for span in spans[together[-1] + 1 : end + 1])]
