"""The same shop by local workers and on AWS Batch with its workspace on S3: what differs is one line of configuration.

Batch is the emulator, which executes the jobs for real: training on two nodes, inference as an array of four.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.manifest import read_manifest
from infra.store import DirectoryStore, Store, open_store
from tests.support.batch import BatchServer
from tests.support.s3 import S3Server
from tests.support.shop import SPANS, STAGES, Shop, open_shop

pytestmark = pytest.mark.pipeline

WORKERS = ("--set", "train.workers=2", "--set", "infer.workers=4", "--set", "infer.shard_rows=32")
ON_BATCH = (
    *("--set", "compute=batch"),
    *("--set", "batch.accelerator_dollars_per_node_hour=21.5"),
    *("--set", "batch.cpu_dollars_per_node_hour=0.5"),
)


class Side(NamedTuple):
    """One of the two places."""

    shop: Shop
    store: Store
    output: dict[str, Any]

    def digests(self) -> dict[str, str]:
        """SHA-256 of the files of the trained checkpoint that hold numbers."""
        (state,) = (key for key in self.store.list("lineages/main") if key.endswith("/state.json"))
        manifest = read_manifest(self.store, state.removesuffix("/state.json"))
        return {entry.name: entry.sha256 for entry in manifest.files if entry.name.endswith(".safetensors")}

    def vectors(self) -> pa.Table:
        report = self.output["report"]
        prefix = f"vectors/{report['model_version']}/{report['span']}"
        names = [entry.name for entry in read_manifest(self.store, prefix).files]
        return pa.concat_tables(pq.read_table(self.store.local(f"{prefix}/{name}")) for name in names)


class Cloud(NamedTuple):
    batch: BatchServer
    s3: S3Server


@pytest.fixture(scope="module")
def cloud(s3_server: S3Server) -> Iterator[Cloud]:
    with pytest.MonkeyPatch.context() as patch:
        s3_server.forget()
        patch.setenv("AWS_ENDPOINT_URL", s3_server.url)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        batch = BatchServer()
        try:
            batch.register_all()
            for service in ("BATCH", "CLOUDWATCH_LOGS"):
                patch.setenv(f"AWS_ENDPOINT_URL_{service}", batch.url)
            yield Cloud(batch, s3_server)
        finally:
            batch.stop()


@pytest.fixture(scope="module")
def sides(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Side]]:
    local = open_shop(tmp_path_factory.mktemp("local"), rows_per_span=400)
    uri = cloud.s3.new_workspace()
    distant = open_shop(tmp_path_factory.mktemp("batch"), rows_per_span=400, bucket=uri)._replace(home=local.home)
    try:
        yield {
            "local": Side(local, DirectoryStore(local.workspace), local.run("--span", SPANS[0], *WORKERS).json),
            "batch": Side(distant, open_store(uri), distant.run("--span", SPANS[0], *WORKERS, *ON_BATCH).json),
        }
    finally:
        local.millrace("down")


def test_both_places_release_the_same_model_bit_for_bit(sides: dict[str, Side]) -> None:
    local, batch = sides["local"], sides["batch"]
    for side in (local, batch):
        assert side.output["state"] == "Released"
        assert side.output["report"]["cached"] == []
    assert local.digests() == batch.digests()
    assert set(local.digests()) == {"model.safetensors", "optimizer.safetensors"}
    assert local.output["report"]["metrics"] == batch.output["report"]["metrics"]


def test_both_places_give_the_same_vectors(sides: dict[str, Side]) -> None:
    local, batch = sides["local"].vectors(), sides["batch"].vectors()
    assert local.num_rows == sides["local"].output["report"]["vectors"] > 100
    assert local.drop_columns(["model_version"]).equals(batch.drop_columns(["model_version"]))


def test_every_stage_was_one_job_of_its_kind(sides: dict[str, Side], cloud: Cloud) -> None:
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
        "infer": 4
    }
    assert [stage for stage, job in jobs.items() if job["jobQueue"].endswith("millrace-cpu")] == ["validate", "release"]
    run_key = sides["batch"].output["report"]["run_key"]
    assert {job["tags"]["millrace-run"] for job in jobs.values()} == {run_key}


def test_the_ledger_has_jobs_machines_and_what_they_cost(sides: dict[str, Side]) -> None:
    report = sides["batch"].shop.millrace("report", "--json").json
    assert [(one["stage"], one["attempt"], one["failure"]) for one in report["ledger"]] == [
        (stage, 1, None) for stage in STAGES
    ]
    for one in report["ledger"]:
        nodes = {"health": 2, "warmup": 2, "train": 2, "infer": 4}.get(one["stage"], 1)
        price = 0.5 if one["stage"] in ("validate", "release") else 21.5
        assert one["dollars_per_hour"] == nodes * price
        assert len(one["hosts"]) == nodes
        assert one["job"]
        assert one["seconds"]["booting"] > 0
        assert one["cost"] > 0
    assert report["report"]["cost"] == pytest.approx(sum(one["cost"] for one in report["ledger"]))


def test_running_the_span_again_asks_aws_batch_nothing(sides: dict[str, Side], cloud: Cloud) -> None:
    calls = len(cloud.batch.calls())
    again = sides["batch"].shop.run("--span", SPANS[0], *WORKERS, *ON_BATCH).json
    assert again["report"]["cached"] == STAGES
    assert len(cloud.batch.calls()) == calls
