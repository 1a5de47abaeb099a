"""How long a backfill should take: trainings one after the other, evaluation and inference beside them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from configs.schema import Config
from infra.store import Store
from tasks.backfill_plan import SpanPlan
from tasks.contracts import Stage
from tasks.expected import Expected, Past, expected_work, rows_of
from tasks.results import result_key

_TRAINING = (Stage.validate, Stage.health, Stage.warmup, Stage.train)


class Takes(NamedTuple):
    """The spans with what each takes, and the whole: wall seconds and dollars, None where a stage was never done."""

    spans: list[SpanPlan]
    seconds: float | None
    dollars: float | None
    attempts_seen: int


def expect(store: Store, config: Config, past: Past, spans: Sequence[SpanPlan], parallel: int) -> Takes:
    """What is left of each span, and of all together with `parallel` spans evaluated and inferred at once."""
    parts = [_parts(store, config, past, span) for span in spans]
    told = [
        _told(span, [one for one in of_span if one is not None], None in of_span)
        for span, of_span in zip(spans, parts, strict=True)
    ]
    if any(None in of_span for of_span in parts):
        return Takes(told, None, None, 0)
    known = [[one for one in of_span if one is not None] for of_span in parts]
    seen = [one.attempts_seen for of_span in known for one in of_span if one.seconds]
    return Takes(
        told,
        seconds=wall_seconds([(train.seconds, beside.seconds) for train, beside, _ in known], parallel)
        + sum(release.seconds for _, _, release in known),
        dollars=sum(one.dollars for of_span in known for one in of_span),
        attempts_seen=min(seen, default=0),
    )


def wall_seconds(work: Iterable[tuple[float, float]], parallel: int) -> float:
    """When all is done, for (training, evaluation and inference) of each span: the former one by one."""
    slots = [0.0] * parallel
    trained = 0.0
    for training, beside in work:
        trained += training
        if beside:
            heapq.heapreplace(slots, max(slots[0], trained) + beside)
    return max(trained, *slots)


def _parts(
    store: Store, config: Config, past: Past, span: SpanPlan
) -> tuple[Expected | None, Expected | None, Expected | None]:
    """Training, evaluation with inference, and release, as far as they are left."""
    rows = rows_of(store, span.window)
    key = span.run_key
    training = [stage for stage in _TRAINING if key is None or not store.exists(result_key(key, stage))]
    beside = [stage for stage in (Stage.evaluate, Stage.infer) if span.action(stage.value) == "run"]
    release = [Stage.release] if span.release == "run" else []
    left = (training if span.train == "run" else [], beside, release)
    train, other, last = (expected_work(past, config, stages, rows) for stages in left)
    return train, other, last


def _told(span: SpanPlan, parts: list[Expected], unknown: bool) -> SpanPlan:
    if unknown:
        return span
    told = {
        "expected_seconds": round(sum(one.seconds for one in parts), 3),
        "expected_dollars": sum(one.dollars for one in parts),
    }
    return span.model_copy(update=told)
