"""What the workers of one machine ask of the bucket: as much as one worker alone."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from infra.store.factory import open_store
from tasks.contracts.jobs import EvaluateInputs, TrainInputs
from tasks.contracts.references import CatalogueRef, RowsRef
from tasks.worker import evaluate, train
from tasks.worker.process.job import Rank
from tests.support.cloud.s3 import S3Server
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import (
    FEATURES,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    write_rows,
)

CONFIG = (
    *FEATURES,
    "train.keep_best={metric: mrr@10, rows: 20, patience: null}",
    "train.averaging={parent_share: 0.3}",
)


def train_and_evaluate(
    rank: Rank, uri: str, endpoint: str, history: RowsRef, rows: RowsRef, catalogue: CatalogueRef
) -> None:
    """Two trainings of a lineage and an evaluation of the second, by workers of one machine."""
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    store, config, ours = open_store(uri), tiny_config(*CONFIG), replace(rank, local_world=rank.world)
    first = train.run(make_job(store, config, TrainInputs(rows=(history,), history=(), parent=None), "one", rank=ours))
    inputs = TrainInputs(rows=(rows,), history=(history,), parent=first.checkpoint)
    second = train.run(make_job(store, config, inputs, "two", rank=ours))
    models = {"challenger": model_of(second), "champion": model_of(first)}
    evaluate.run(
        make_job(store, config, EvaluateInputs(rows=(history, rows), catalogue=catalogue, **models), rank=ours)
    )


def test_four_workers_of_a_machine_ask_the_bucket_for_what_one_asks(tmp_path: Path, s3: S3Server) -> None:
    store, history = make_workspace(tmp_path)
    rows = write_rows(store, "2026-02", 160, tmp_path)
    catalogue = make_catalogue(store, tiny_config(*CONFIG), history, rows)
    asked = []
    for workers in (1, 4):
        uri = s3.new_workspace()
        bucket = open_store(uri)
        for key in store.list(""):
            bucket.upload(store.path(key), key)
        s3.forget()
        run_ranks(workers, train_and_evaluate, uri, s3.url, history, rows, catalogue)
        asked.append(Counter(_without_names(request, uri) for request in s3.requests if request.startswith("GET ")))
    alone, together = asked
    assert together - alone == Counter()
    assert alone - together == Counter()


def _without_names(request: str, uri: str) -> str:
    """A request, without what differs between two workspaces and two runs."""
    bucket = uri.removeprefix("s3://").partition("/")[0]
    return re.sub(r"[0-9a-f]{16,}", "HASH", request.replace(f"/{bucket}", "", 1))
