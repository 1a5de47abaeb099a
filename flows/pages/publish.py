"""The page of a stage, made when an attempt is over: `with publishing(publish):` (tasks/stage.py) around the stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prefect.artifacts import create_markdown_artifact

from flows.pages import evaluate, failure, health, infer, release, train, validate, warmup
from infra.store import Store, open_store
from tasks import ledger
from tasks.contracts import RunPlan, Stage
from tasks.errors import StageError

_PAGES: dict[Stage, Callable[[Store, RunPlan, Any], str]] = {
    Stage.validate: validate.page,
    Stage.health: health.page,
    Stage.warmup: warmup.page,
    Stage.train: train.page,
    Stage.evaluate: evaluate.page,
    Stage.infer: infer.page,
    Stage.release: release.page,
}


def publish(plan: RunPlan, stage: str, value: Any) -> None:
    """Make the page of a stage that is done, or failed with the error `value`, of the task run in which this is called.

    Its key names stage and lineage alone, so that the history of a page goes over the spans.

    Raises:
        StoreError: a record of the run is not readable; names the file.
    """
    store, of = open_store(plan.workspace), Stage(stage)
    attempt = ledger.next_attempt(store, plan.run_key, of) - 1
    if isinstance(value, StageError):
        markdown, ended = failure.page(store, plan, of, value), f": {value.failure}"
    else:
        markdown, ended = _PAGES[of](store, plan, value), ""
    create_markdown_artifact(
        key=f"{of}-{plan.config.lineage}",
        markdown=markdown,
        description=f"span {plan.span.name}, attempt {attempt} of {of}{ended}",
    )
