"""What the workers of one machine ask of the bucket: as much as one worker alone."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from infra.store.factory import open_store
from tasks.contracts.jobs import EvaluateInputs, Inputs, TrainInputs
from tasks.contracts.outcomes import Outcome
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
    train_model,
    with_held,
    write_rows,
)

CONFIG = tiny_config(
    *FEATURES, "train.keep_best={metric: mrr@10, rows: 8, patience: null}", "train.averaging={merge_with_parent: 0.3}"
)


def work(rank: Rank, uri: str, endpoint: str, inputs: Inputs) -> Outcome:
    """A stage, as one of the workers of one machine."""
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    stage = train if isinstance(inputs, TrainInputs) else evaluate
    return stage.run(make_job(open_store(uri), CONFIG, inputs, "two", rank=rank))


@pytest.mark.proof
@pytest.mark.shows("one copy")
def test_four_workers_of_a_machine_ask_the_bucket_for_what_one_asks(tmp_path: Path, s3: S3Server) -> None:
    store, first = make_workspace(tmp_path, rows=40)
    history, rows = with_held(store, CONFIG, first, write_rows(store, "2026-02", 40, tmp_path))
    parent = train_model(store, CONFIG, history, run_key="one")
    training = TrainInputs(rows=(rows,), history=(history,), parent=parent.checkpoint)
    catalogue = make_catalogue(store, CONFIG, history, rows)
    asked = []
    for workers in (1, 4):
        uri = s3.new_workspace()
        bucket = open_store(uri)
        for key in store.list(""):
            bucket.upload(store.path(key), key)
        s3.forget()
        trained = run_ranks(workers, work, uri, s3.url, training)[0]
        evaluation = EvaluateInputs(
            rows=(history, rows), catalogue=catalogue, challenger=model_of(trained), champion=model_of(parent)
        )
        run_ranks(workers, work, uri, s3.url, evaluation)
        asked.append(Counter(_without_names(request, uri) for request in s3.requests if request.startswith("GET ")))
    alone, together = asked
    assert (together - alone, alone - together) == (Counter(), Counter())


def _without_names(request: str, uri: str) -> str:
    """A request, without what differs between two workspaces and two runs."""
    bucket = uri.removeprefix("s3://").partition("/")[0]
    return re.sub(r"[0-9a-f]{16,}", "HASH", request.replace(f"/{bucket}", "", 1))
