"""Whole runs on this machine, and on AWS Batch with the workspace on S3: equal, also after refreshes and rejections.

Batch is the emulator, which executes the jobs for real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from flows.presentation.wording import dollars
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tasks.contracts import workspace
from tasks.contracts.workspace import kind_of
from tasks.data.rows import ITEM_ID
from tasks.runs import releases
from tasks.runs.plan import read_plan
from tasks.worker.search.changes import holdout_queries
from tests.pipeline.complete import assert_complete, live_items, live_vectors
from tests.pipeline.two_months import TWO_WORKERS, Runs, read_json, release_record, vectors_of
from tests.support.cloud.cloud import Cloud, Side, open_cloud
from tests.support.cloud.s3 import S3Server
from tests.support.workspace.shop import SPANS, STAGES, Shop, open_shop

pytestmark = pytest.mark.pipeline

ON_BATCH = (
    *("--set", "compute=batch"),
    *("--set", "batch.accelerator_instance=trn1.32xlarge"),
    *("--set", "batch.cpu_instance=m7i.2xlarge"),
)
REFUSING = (
    "--set",
    "evaluate.gates=[{metric: recall@1, direction: higher, threshold: 1.0, baseline: none, severity: critical}]",
)


def ingest_feed(shop: Shop, file: Path, gone: str, renamed: str) -> None:
    """An item that no row knows, a new text of one item, and the deletion of another, all later than the rows."""
    at = "2026-10-05T00:00:00Z"
    feed = [
        {"sku": "never-seen", "title": "a teapot that nobody searched for yet", "at": at},
        {"sku": renamed, "title": "renamed by its shop", "at": at},
        {"sku": gone, "title": None, "at": at, "gone": True},
    ]
    file.write_text("".join(json.dumps(item) + "\n" for item in feed))
    form = ("--format", "jsonl", "--time-column", "at", "--span", "month", "--map", "id=sku,text=title,deleted=gone")
    shop.millrace("ingest", "--items", str(file), *form)


def items_without_a_query(shop: Shop, number: int) -> list[str]:
    """Items of a release that no row of its holdout is about."""
    store = open_store(str(shop.workspace))
    release = releases.read(store, number)
    asked = holdout_queries(store, release.rows, read_plan(store, release.run_key).config)[ITEM_ID].to_pylist()
    return sorted({*live_vectors(shop.workspace, release.vectors_prefix)[ITEM_ID].to_pylist()} - {*asked})


@pytest.mark.proof
def test_a_refresh_embeds_new_items_and_drops_deleted_ones(copied: Shop, runs: Runs, tmp_path: Path) -> None:
    before = vectors_of(runs, runs.second)
    gone, renamed = items_without_a_query(copied, 2)[:2]  # so that both releases are measured with the same queries
    ingest_feed(copied, tmp_path / "feed.jsonl", gone, renamed)
    output = copied.millrace("refresh", "--config", str(copied.config_file), "--json").json
    release = output["release"]
    assert (output["state"], output["embedded"], release["number"], release["refreshed"]) == ("Released", 2, 3, 2)
    assert release["model"]["version"] == runs.second["report"]["model_version"]
    after = live_vectors(copied.workspace, release["vectors_prefix"])
    assert live_items(copied.workspace, SPANS[:2]) == {*before["item_id"].to_pylist(), "never-seen"} - {gone}
    assert_complete(copied.workspace, SPANS[:2])
    kept = dict(zip(before["item_id"].to_pylist(), before["vector"].to_pylist(), strict=True))
    same = [row for row in after.to_pylist() if row["item_id"] not in ("never-seen", renamed)]
    assert all(row["vector"] == kept[row["item_id"]] for row in same)
    assert copied.millrace("refresh", "--config", str(copied.config_file), "--json").json["state"] == "NothingToDo"
    found = copied.millrace("search", "a teapot that nobody searched for yet", "-k", "1", "--json").json
    assert [hit["item_id"] for hit in found["hits"]] == ["never-seen"]
    changes = copied.millrace("diff", "--json").json
    assert (changes["before"], changes["after"]) == (2, 3)
    assert (changes["new_items"], changes["gone_items"], changes["changed_items"]) == (1, 1, 1)
    assert [item["text"] for item in changes["new"]] == ["a teapot that nobody searched for yet"]
    # The same model, and so the same vectors of unchanged items.
    assert changes["same_item_cosine"] > 0.99
    assert changes["metrics_before"] == release_record(copied, 2)["catalogue_metrics"]
    assert changes["metrics_after"] == release["catalogue_metrics"]

    copied.millrace("rollback", "--to", "1")
    pruned = copied.millrace("prune", "--keep", "1", "--json").json
    assert (pruned["kept"], pruned["releases"], set(pruned["bytes"])) == ([1, 3], [2], {"vectors", "runs"})
    assert copied.millrace("search", "a teapot", "--release", "2").code == 74
    assert copied.millrace("search", "a teapot", "-k", "1", "--json").json["release"] == 1
    assert copied.millrace("rollback", "--to", "3", "--json").code == 0
    again = copied.millrace("search", "a teapot that nobody searched for yet", "-k", "1", "--json").json
    assert (again["release"], again["hits"]) == (3, found["hits"])


@pytest.mark.proof
def test_a_rejected_month_gives_its_items_to_the_champion(copied: Shop, runs: Runs) -> None:
    output = copied.run("--span", SPANS[2], *REFUSING).json
    assert (output["state"], output["report"]["release"]) == ("Rejected", None)
    release = copied.millrace("status", "--json").json["release"]
    assert (release["number"], release["refreshed"]) == (3, 2)
    assert release["model"]["version"] == runs.second["report"]["model_version"]
    assert release["vectors"] > release_record(copied, 2)["vectors"]
    assert_complete(copied.workspace, SPANS)


# --- on AWS Batch -----------------------------------------------------------------------------------------------


class Places(NamedTuple):
    local: Side
    batch: Side
    distant: Shop


@pytest.fixture(scope="module")
def cloud(s3_server: S3Server) -> Iterator[Cloud]:
    with open_cloud(s3_server) as cloud:
        yield cloud


@pytest.fixture(scope="module")
def places(runs: Runs, cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Places:
    uri = cloud.s3.new_workspace()
    distant = open_shop(tmp_path_factory.mktemp("batch"), runs.shop.home, rows_per_span=400, bucket=uri)
    return Places(
        Side(DirectoryStore(runs.shop.workspace), runs.first),
        Side(open_store(uri), distant.run("--span", SPANS[0], *TWO_WORKERS, *ON_BATCH).json),
        distant,
    )


@pytest.mark.proof
def test_both_places_release_the_same_model_bit_for_bit(places: Places) -> None:
    local, batch = places.local, places.batch
    for side in (local, batch):
        assert side.output["state"] == "Released"
        assert side.output["report"]["cached"] == []
    assert local.digests() == batch.digests()
    assert set(local.digests()) == {"model.safetensors", "optimizer.safetensors"}
    assert local.output["report"]["metrics"] == batch.output["report"]["metrics"]


@pytest.mark.proof
def test_every_object_of_a_bucket_has_one_row_of_the_table(places: Places) -> None:
    kinds = {kind_of(key)[0] for key in places.batch.store.list("")}
    assert {workspace.CLAIM, workspace.OWNER, workspace.SHARD, workspace.RELEASE} < kinds


@pytest.mark.proof
def test_both_places_give_the_same_vectors(places: Places) -> None:
    local, batch = places.local.vectors(), places.batch.vectors()
    assert local.num_rows == places.local.output["report"]["vectors"] > 100
    assert local.equals(batch)


@pytest.mark.proof
def test_every_stage_was_one_job_of_its_kind(places: Places, cloud: Cloud) -> None:
    jobs = {job["jobName"].split("-")[1]: job for job in cloud.batch.jobs()}
    assert list(jobs) == STAGES
    assert len(cloud.batch.calls("SubmitJob")) == len(STAGES)
    assert {job["status"] for job in jobs.values()} == {"SUCCEEDED"}
    assert {stage: job["nodeProperties"]["numNodes"] for stage, job in jobs.items() if "nodeProperties" in job} == {
        "health": 2,
        "warmup": 2,
        "train": 2,
        "evaluate": 2,
    }
    assert {stage: job["arrayProperties"]["size"] for stage, job in jobs.items() if "arrayProperties" in job} == {
        "infer": 2
    }
    assert [stage for stage, job in jobs.items() if job["jobQueue"].endswith("millrace-cpu")] == ["validate", "release"]
    run_key = places.batch.output["report"]["run_key"]
    assert {job["tags"]["millrace-run"] for job in jobs.values()} == {run_key}


@pytest.mark.proof
def test_the_ledger_has_jobs_machines_and_what_they_cost(places: Places, tmp_path: Path) -> None:
    report = places.distant.millrace("report", "--json").json
    assert [(one["stage"], one["attempt"], one["failure"]) for one in report["ledger"]] == [
        (stage, 1, None) for stage in STAGES
    ]
    for one in report["ledger"]:
        nodes = {"health": 2, "warmup": 2, "train": 2, "evaluate": 2, "infer": 2}.get(one["stage"], 1)
        on_cpu = one["stage"] in ("validate", "release")
        instance, price = ("m7i.2xlarge", 0.4032) if on_cpu else ("trn1.32xlarge", 21.5)
        assert (one["machines"], one["instance"], one["price"]["dollars_per_hour"]) == (nodes, instance, price)
        assert len(one["hosts"]) == nodes
        assert one["job"]
        assert one["seconds"]["booting"] > 0
        assert one["billable_seconds"] > 0
        assert one["cost"] == pytest.approx(one["billable_seconds"] / 3600 * price)
    assert report["report"]["cost"] == pytest.approx(sum(one["cost"] for one in report["ledger"]))
    by_hand = sum(one["billable_seconds"] / 3600 * one["price"]["dollars_per_hour"] for one in report["ledger"])
    for words in (("report", "--full"), ("history", "--ledger"), ("history",), ("status",)):
        shown = " ".join(places.distant.millrace(*words).out.split())
        assert f"{dollars(by_hand)} (on demand, us-east-1, 2026-07-20)" in shown
    places.distant.millrace("report", "--html", str(tmp_path / "report.html"))
    assert f"{dollars(by_hand)} (on demand, us-east-1, 2026-07-20)" in (tmp_path / "report.html").read_text()


@pytest.mark.proof
def test_running_the_span_again_asks_aws_batch_nothing(places: Places, cloud: Cloud) -> None:
    calls = len(cloud.batch.calls())
    again = places.distant.run("--span", SPANS[0], *TWO_WORKERS, *ON_BATCH).json
    assert again["report"]["cached"] == STAGES
    assert len(cloud.batch.calls()) == calls


def place(arn: str) -> str:
    """The name of a queue or a job definition."""
    return arn.rpartition("/")[2].partition(":")[0]


@pytest.mark.proof
def test_a_bucket_holds_every_live_item_once_after_all_that_can_happen_to_a_release(
    places: Places, cloud: Cloud, tmp_path: Path
) -> None:
    """Refreshed with new, changed and deleted items, kept after a rejection, rolled back, pruned; all on AWS Batch."""
    shop = places.distant
    first = places.batch.vectors()
    gone, renamed = first["item_id"][0].as_py(), first["item_id"][1].as_py()
    ingest_feed(shop, tmp_path / "feed.jsonl", gone, renamed)
    jobs = len(cloud.batch.jobs())
    refreshed = shop.millrace("refresh", "--config", str(shop.config_file), *TWO_WORKERS, *ON_BATCH, "--json").json
    assert (refreshed["state"], refreshed["embedded"], refreshed["release"]["number"]) == ("Released", 2, 2)
    assert {job["status"] for job in cloud.batch.jobs()} == {"SUCCEEDED"}
    of_refresh = [(place(job["jobQueue"]), place(job["jobDefinition"])) for job in cloud.batch.jobs()[jobs:]]
    assert of_refresh == [("millrace-cpu", f"millrace-{name}") for name in ("validate", "cpu-infer", "release")]
    second = cloud.s3.copied(shop.bucket, tmp_path / "refreshed")
    attempts = [read_json(path) for path in (second / "refreshes").glob("*/*/attempt-*/ledger.json")]
    assert {(one["instance"], one["price"]["dollars_per_hour"]) for one in attempts} == {("m7i.2xlarge", 0.4032)}
    assert live_items(second, SPANS[:1]) == {*first["item_id"].to_pylist(), "never-seen"} - {gone}
    assert_complete(second, SPANS[:1])

    rejected = shop.run("--span", SPANS[1], *REFUSING, *TWO_WORKERS, *ON_BATCH).json
    assert (rejected["state"], rejected["report"]["release"]) == ("Rejected", None)
    third = cloud.s3.copied(shop.bucket, tmp_path / "rejected")
    records = [read_json(third / "releases" / f"{number}.json") for number in (1, 2, 3)]
    assert [record["refreshed"] for record in records] == [None, 1, 2]
    assert len({record["model"]["version"] for record in records}) == 1
    assert_complete(third, SPANS[:2])

    shop.millrace("rollback", "--to", "1")
    pruned = shop.millrace("prune", "--keep", "1", "--json").json
    assert (pruned["kept"], pruned["releases"]) == ([1, 3], [2])
    assert "models" not in pruned["bytes"]
    assert places.batch.vectors().equals(first)
    assert not places.batch.store.list(records[1]["vectors_prefix"])
    assert shop.millrace("rollback", "--to", "3", "--json").code == 0
    assert_complete(cloud.s3.copied(shop.bucket, tmp_path / "pruned"), SPANS[:2])
    found = shop.millrace("search", "a teapot that nobody searched for yet", "-k", "1", "--json").json
    assert (found["release"], [hit["item_id"] for hit in found["hits"]]) == (3, ["never-seen"])
