"""Forward scores given to runs that measured none, as the runs of fake workers."""

from __future__ import annotations

from infra.store.base import Store
from tasks.contracts.evaluation import ForwardScore
from tasks.contracts.workspace import VERDICTS
from tasks.runs.results import read_judgement


def give_score(store: Store, run_key: str, span: str, release: int, points: float, error: float = 0.1) -> None:
    """Let a run have measured `release` on its span, `points` better than the one before it, within `error` points."""
    judged = read_judgement(store, run_key)
    assert judged is not None
    score = ForwardScore(
        release=release, span=span, rows=10_000, metric="recall@10", value=0.5 + points / 100,
        previous=release - 1, previous_value=0.5, low=(points - error) / 100, high=(points + error) / 100,
        untrained=None, challenger=None,
    )  # fmt: skip
    store.write(VERDICTS.key(run=run_key), judged.model_copy(update={"forward": score}).to_json())
