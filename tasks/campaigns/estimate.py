"""The expected time and cost of a campaign's cells.

Spans are trained in sequence, and evaluated and inferred in parallel; the expected time counts on it.
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from configs.prices import sum_dollars
from configs.schema.config import Config
from infra.store.base import Store
from tasks.campaigns.campaign import Cell
from tasks.contracts.stages import BackfillPhase, stages_in
from tasks.contracts.workspace import RESULT
from tasks.monitoring.estimates import Past, work_cost
from tasks.runs.plan import rows_of


class BackfillEstimate(NamedTuple):
    """Each span with its estimate, and wall seconds and dollars of all spans; None if a stage is not known."""

    spans: list[Cell]
    seconds: float | None
    dollars: float | None
    attempts_seen: int


class _SpanWork(NamedTuple):
    """The work left for one span: seconds of its phases, in order, and the dollars of all; None if not known."""

    seconds: tuple[float, float, float]
    dollars: float | None
    attempts_seen: int | None  # None: nothing is left


def estimate_backfill(
    store: Store, config: Config, past: Past, spans: Sequence[Cell], parallel: int
) -> BackfillEstimate:
    """Estimate each span, and all spans together if `parallel` of them are evaluated and inferred at once."""
    works = [_span_work(store, config, past, span) for span in spans]
    estimated = [_with_estimate(span, work) for span, work in zip(spans, works, strict=True)]
    known = [work for work in works if work is not None]
    if len(known) < len(works):
        return BackfillEstimate(estimated, None, None, 0)
    wall = wall_seconds([work.seconds[:2] for work in known], parallel)
    return BackfillEstimate(
        estimated,
        seconds=wall + sum(work.seconds[2] for work in known),
        dollars=sum_dollars(work.dollars for work in known),
        attempts_seen=min((work.attempts_seen for work in known if work.attempts_seen is not None), default=0),
    )


def wall_seconds(work: Iterable[tuple[float, float]], parallel: int) -> float:
    """Return the time until all is done, for (training, evaluation and inference) seconds of each span, in order."""
    slots = [0.0] * parallel
    trained = 0.0
    for training, evaluation_and_inference in work:
        trained += training
        if evaluation_and_inference:
            heapq.heapreplace(slots, max(slots[0], trained) + evaluation_and_inference)
    return max(trained, *slots)


def _span_work(store: Store, config: Config, past: Past, span: Cell) -> _SpanWork | None:
    rows = rows_of(store, span.window)
    key = span.run_key
    training = [
        stage
        for stage in stages_in(BackfillPhase.training)
        if span.train == "run" and (key is None or not store.exists(RESULT.key(run=key, stage=stage)))
    ]
    judging = [stage for stage in stages_in(BackfillPhase.judging) if span.step(stage) == "run"]
    releasing = [stage for stage in stages_in(BackfillPhase.release) if span.step(stage) == "run"]
    parts = [work_cost(past, config, stages, rows) for stages in (training, judging, releasing)]
    seconds = [part.seconds for part in parts if part.seconds is not None]
    if len(seconds) < len(parts):
        return None
    seen = [part.attempts_seen for part in parts if part.seconds]
    train, evaluate_and_infer, release = seconds
    dollars = sum_dollars(part.dollars for part in parts)
    return _SpanWork((train, evaluate_and_infer, release), dollars, min(seen, default=None))


def _with_estimate(span: Cell, work: _SpanWork | None) -> Cell:
    if work is None:
        return span
    return span.model_copy(update={"expected_seconds": round(sum(work.seconds), 3), "expected_dollars": work.dollars})
