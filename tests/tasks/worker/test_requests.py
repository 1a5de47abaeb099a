"""What the workers of one machine ask of the bucket: as much as one worker alone."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

from infra.store.factory import open_store
from tasks.contracts.jobs import EvaluateInputs, InferInputs, Inputs, TrainInputs
from tasks.contracts.outcomes import Outcome
from tasks.worker import evaluate, infer, train
from tasks.worker.process.job import Rank
from tests.support.cloud.s3 import S3Server
from tests.support.processes.ranks import finish, run_ranks, start
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


@pytest.mark.proof
def test_eight_workers_of_infer_ask_for_little_more_than_one(tmp_path: Path, s3: S3Server) -> None:
    """Each has a machine of its own; what they load of the model and the catalogue isn't counted."""
    config = tiny_config(*FEATURES, "infer.shard_rows=10")
    store, rows = make_workspace(tmp_path, rows=130, distinct=100)
    model = model_of(train_model(store, config, rows))
    inputs = InferInputs(catalogue=make_catalogue(store, config, rows), model=model)
    assert inputs.catalogue.partitions == 16
    asked = {}
    for workers in (1, 2, 4, 8):
        uri = s3.new_workspace()
        bucket = open_store(uri)
        for key in store.list(""):
            bucket.upload(store.path(key), key)
        s3.forget()
        started = [start(embed_as_child, child, workers, uri, s3.url, inputs) for child in range(workers)]
        assert [finish(process) for process in started] == [0] * workers
        asked[workers] = sum("infer" in request or inputs.vectors in request for request in s3.requests)
    print(asked)
    assert max(asked.values()) <= 1.3 * asked[1], asked


def embed_as_child(child: int, children: int, uri: str, endpoint: str, inputs: InferInputs) -> None:
    """One worker of an array."""
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    config = tiny_config(*FEATURES, "infer.shard_rows=10")
    rank = Rank(0, 1, 0, child=child, children=children)
    infer.run(make_job(open_store(uri), config, inputs, "array", rank=rank))
