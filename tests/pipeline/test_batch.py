"""The same shop by local workers and on AWS Batch with its workspace on S3: what differs is one line of configuration.

Batch is the emulator, which executes the jobs for real: training on two nodes, inference as an array of two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tests.support.cloud.cloud import Cloud, Side, open_cloud
from tests.support.cloud.s3 import S3Server
from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.shop import SPANS, STAGES, Shop, open_shop

pytestmark = pytest.mark.pipeline

WORKERS = ("--set", "train.workers=2", "--set", "infer.workers=2", "--set", "infer.shard_rows=32")
ON_BATCH = (
    *("--set", "compute=batch"),
    *("--set", "batch.accelerator_dollars_per_node_hour=21.5"),
    *("--set", "batch.cpu_dollars_per_node_hour=0.5"),
)


class Places(NamedTuple):
    local: Side
    batch: Side
    shop: Shop  # the one on AWS Batch


@pytest.fixture(scope="module")
def cloud(s3_server: S3Server) -> Iterator[Cloud]:
    with open_cloud(s3_server) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def places(cloud: Cloud, prefect: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Places:
    local = open_shop(tmp_path_factory.mktemp("local"), prefect.home, rows_per_span=400)
    uri = cloud.s3.new_workspace()
    distant = open_shop(tmp_path_factory.mktemp("batch"), prefect.home, rows_per_span=400, bucket=uri)
    return Places(
        Side(DirectoryStore(local.workspace), local.run("--span", SPANS[0], *WORKERS).json),
        Side(open_store(uri), distant.run("--span", SPANS[0], *WORKERS, *ON_BATCH).json),
        distant,
    )


def test_both_places_release_the_same_model_bit_for_bit(places: Places) -> None:
    local, batch, _ = places
    for side in (local, batch):
        assert side.output["state"] == "Released"
        assert side.output["report"]["cached"] == []
    assert local.digests() == batch.digests()
    assert set(local.digests()) == {"model.safetensors", "optimizer.safetensors"}
    assert local.output["report"]["metrics"] == batch.output["report"]["metrics"]


def test_both_places_give_the_same_vectors(places: Places) -> None:
    local, batch = places.local.vectors(), places.batch.vectors()
    assert local.num_rows == places.local.output["report"]["vectors"] > 100
    assert local.equals(batch)


def test_every_stage_was_one_job_of_its_kind(places: Places, cloud: Cloud) -> None:
    jobs = {job["jobName"].split("-")[1]: job for job in cloud.batch.jobs()}
    assert list(jobs) == STAGES
    assert len(cloud.batch.calls("SubmitJob")) == len(STAGES)
    assert {job["status"] for job in jobs.values()} == {"SUCCEEDED"}
    assert {stage: job["nodeProperties"]["numNodes"] for stage, job in jobs.items() if "nodeProperties" in job} == {
        "health": 2,
        "warmup": 2,
        "train": 2,
    }
    assert {stage: job["arrayProperties"]["size"] for stage, job in jobs.items() if "arrayProperties" in job} == {
        "infer": 2
    }
    assert [stage for stage, job in jobs.items() if job["jobQueue"].endswith("millrace-cpu")] == ["validate", "release"]
    run_key = places.batch.output["report"]["run_key"]
    assert {job["tags"]["millrace-run"] for job in jobs.values()} == {run_key}


def test_the_ledger_has_jobs_machines_and_what_they_cost(places: Places) -> None:
    report = places.shop.millrace("report", "--json").json
    assert [(one["stage"], one["attempt"], one["failure"]) for one in report["ledger"]] == [
        (stage, 1, None) for stage in STAGES
    ]
    for one in report["ledger"]:
        nodes = {"health": 2, "warmup": 2, "train": 2, "infer": 2}.get(one["stage"], 1)
        price = 0.5 if one["stage"] in ("validate", "release") else 21.5
        assert one["dollars_per_hour"] == nodes * price
        assert len(one["hosts"]) == nodes
        assert one["job"]
        assert one["seconds"]["booting"] > 0
        assert one["cost"] > 0
    assert report["report"]["cost"] == pytest.approx(sum(one["cost"] for one in report["ledger"]))


def test_running_the_span_again_asks_aws_batch_nothing(places: Places, cloud: Cloud) -> None:
    calls = len(cloud.batch.calls())
    again = places.shop.run("--span", SPANS[0], *WORKERS, *ON_BATCH).json
    assert again["report"]["cached"] == STAGES
    assert len(cloud.batch.calls()) == calls
