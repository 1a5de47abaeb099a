"""Specs of any stage; what their inputs name need not exist."""

from __future__ import annotations

import datetime as dt
from typing import Any

from configs.schema.operations import Price
from infra.store.base import Store
from tasks.contracts.jobs import (
    HealthInputs,
    ImportInputs,
    InferInputs,
    Inputs,
    JobSpec,
    PublishInputs,
    ReleaseInputs,
    TrainInputs,
    ValidateInputs,
    WarmupInputs,
)
from tasks.contracts.references import CatalogueRef, CheckpointRef, ModelRef, RowsRef, SpanRef
from tasks.contracts.stages import Chore, Stage
from tests.support.fakes.fake_runner import small_config

SPAN = SpanRef(name="2026-01", version=1)
ROWS = RowsRef(span=SPAN, prefix="rows", rows=1)
CATALOGUE = CatalogueRef(prefix="catalogue/c", items=1, partitions=1, sha256="0")
MADE_BY: dict[str, Any] = {"code": "0.1.0+fake", "libraries": {"torch": "0"}}  # of an export or a release
SEALED: dict[str, Any] = dict.fromkeys(("model_sha256", "vectors_sha256", "ids_sha256"), "0")  # a release without files
MODEL = ModelRef(version="m", checkpoint=CheckpointRef(prefix="c", step=1, sha256="0"))
INPUTS: dict[Stage | Chore, Inputs] = {
    Stage.validate: ValidateInputs(window=(SPAN,), history=(), feeds=(), bases=()),
    Stage.health: HealthInputs(),
    Stage.warmup: WarmupInputs(rows=(ROWS,), parent=None),
    Stage.train: TrainInputs(rows=(ROWS,), history=(), parent=None),
    Stage.infer: InferInputs(catalogue=CATALOGUE, model=MODEL),
    Stage.release: ReleaseInputs(model=MODEL, vectors="v", catalogue=CATALOGUE),
    Chore.import_checkpoint: ImportInputs(file="f", copy_key=None, sha256="0", rows=(ROWS,)),
    Chore.publish: PublishInputs(
        target="look",
        release=1,
        model_version="m",
        vectors_by="m",
        vectors="v",
        vectors_sha256="0",
        model="models/m",
        model_sha256="0",
        only_current=True,
    ),
}


def spec_of(
    stage: Stage | Chore, workers: int = 1, *overrides: str, attempt: int = 1, workspace: str = "s3://b/w"
) -> JobSpec:
    return JobSpec(
        run_key="f00d",
        span=SPAN,
        attempt=attempt,
        submitted_as=attempt,
        workspace=workspace,
        workers=workers,
        config=small_config("compute=batch", *overrides),
        inputs=INPUTS[stage],
    )


def price_at(dollars_per_hour: float | None, instance: str = "trn1.32xlarge") -> Price | None:
    """A price on demand; None for None."""
    if dollars_per_hour is None:
        return None
    return Price(
        instance=instance,
        region="us-east-1",
        basis="on_demand",
        dollars_per_hour=dollars_per_hour,
        date=dt.date(2026, 7, 20),
        source="a test",
    )


def written_spec(store: Store, stage: Stage | Chore, workers: int = 1, *overrides: str, attempt: int = 1) -> JobSpec:
    """A spec in the workspace, written as the control plane does before the work starts."""
    spec = spec_of(stage, workers, *overrides, attempt=attempt, workspace=store.uri)
    store.create(f"{spec.attempt_prefix}/spec.json", spec.to_json())
    return spec
