"""The whole thing: the installed command, real worker processes, a real server; from a log of searches to releases.

The first month also on AWS Batch with its workspace on S3: Batch is the emulator, which executes the jobs for real.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import duckdb
import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from flows.cli.serving.pages import Pages
from flows.presentation.wording import dollars
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tasks.contracts import workspace
from tasks.contracts.workspace import kind_of
from tests.pipeline.complete import assert_complete, live_items, live_vectors
from tests.support.cloud.cloud import Cloud, Side, open_cloud
from tests.support.cloud.s3 import S3Server
from tests.support.pages.shown import Page
from tests.support.processes.prefect_server import forget
from tests.support.workspace.shop import SPANS, STAGES, Shop, open_shop

pytestmark = pytest.mark.pipeline

# Of the first month: training and evaluation on two nodes, and inference as an array of two, where it is on AWS Batch.
TWO_WORKERS = ("--set", "train.workers=2", "--set", "infer.workers=2", "--set", "infer.shard_rows=32")
ON_BATCH = (
    *("--set", "compute=batch"),
    *("--set", "batch.accelerator_instance=trn1.32xlarge"),
    *("--set", "batch.cpu_instance=m7i.2xlarge"),
)
REFUSING = (
    "--set",
    "evaluate.gates=[{metric: recall@1, direction: higher, threshold: 1.0, baseline: none, severity: critical}]",
)


class Runs(NamedTuple):
    shop: Shop
    first: dict[str, Any]
    second: dict[str, Any]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """The first month by two workers, the second by one. Tests leave this workspace as it is."""
    folder = tmp_path_factory.mktemp("shop")
    shop = open_shop(folder, folder / "prefect", rows_per_span=400)  # the first run starts the server
    try:
        yield Runs(shop, shop.run("--span", SPANS[0], *TWO_WORKERS).json, shop.run("--span", SPANS[1]).json)
    finally:
        shop.millrace("down")


@pytest.fixture
def copied(runs: Runs, tmp_path: Path) -> Shop:
    """The workspace after both runs, free to be changed; under the same server."""
    shutil.copytree(runs.shop.workspace, tmp_path / "workspace")
    return runs.shop._replace(workspace=tmp_path / "workspace")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_both_months_are_released(runs: Runs) -> None:
    for number, output in enumerate((runs.first, runs.second), start=1):
        assert (output["state"], output["report"]["release"]) == ("Released", number)
        assert output["report"]["cached"] == []
        assert [(line["stage"], line["done"], line["cached"]) for line in output["stages"]] == [
            (stage, True, False) for stage in STAGES
        ]
    first, second = runs.first["report"], runs.second["report"]
    assert first["champion"] is None
    assert second["champion_version"] == first["model_version"] != second["model_version"]
    assert set(second["metrics"]) == set(second["champion"]) > {"recall@10", "auc"}
    assert runs.shop.half_written() == []


def test_every_file_has_one_row_of_the_table(runs: Runs) -> None:
    kinds = {kind_of(key)[0] for key in DirectoryStore(runs.shop.workspace).list("")}
    assert {workspace.SPEC, workspace.SHARD, workspace.HELD, workspace.VERDICTS, workspace.REPORT} < kinds


def test_a_release_points_at_one_model_and_its_vectors(runs: Runs) -> None:
    workspace = runs.shop.workspace
    releases = [read_json(workspace / "releases" / f"{number}.json") for number in (1, 2)]
    assert [release["previous"] for release in releases] == [None, 1]
    assert read_json(workspace / "releases" / "CURRENT")["release"] == 2
    for release, span in zip(releases, SPANS, strict=False):
        version = release["model"]["version"]
        assert release["span"]["name"] == span
        assert release["model_prefix"] == f"models/{version}"
        assert release["vectors_prefix"] == f"vectors/{version}/{release['catalogue']['prefix'].rpartition('/')[2]}"
        for prefix in (release["model_prefix"], release["vectors_prefix"]):
            assert (workspace / prefix / "MANIFEST.json").is_file()


def items_of(runs: Runs, *outputs: dict[str, Any]) -> pa.Table:
    """Every item of the rows that validate let pass, with its newest text, by DuckDB from outside."""
    files = []
    for output in outputs:
        result = read_json(runs.shop.workspace / "runs" / output["report"]["run_key"] / "validate" / "result.json")
        for rows in result["outcome"]["rows"]:
            files += map(str, (runs.shop.workspace / rows["prefix"]).glob("*.parquet"))
    newest = "SELECT item_id, arg_max(item, time) AS text FROM read_parquet(?) GROUP BY item_id ORDER BY item_id"
    return duckdb.connect().sql(newest, params=[files]).to_arrow_table()


def vectors_of(runs: Runs, output: dict[str, Any]) -> pa.Table:
    release = read_json(runs.shop.workspace / "releases" / f"{output['report']['release']}.json")
    folder = runs.shop.workspace / release["vectors_prefix"]
    manifest = read_json(folder / "MANIFEST.json")
    table = live_vectors(runs.shop.workspace, release["vectors_prefix"])
    assert manifest["facts"]["vectors"] == release["catalogue"]["items"] == table.num_rows
    return table.sort_by("item_id")


def test_there_is_one_vector_by_one_model_for_each_item_seen_so_far(runs: Runs) -> None:
    for outputs in ([runs.first], [runs.first, runs.second]):
        wanted, found = items_of(runs, *outputs), vectors_of(runs, outputs[-1])
        assert wanted.num_rows > 100
        assert found["item_id"].to_pylist() == wanted["item_id"].to_pylist()
        assert set(found["model_version"].to_pylist()) == {outputs[-1]["report"]["model_version"]}
    first, second = items_of(runs, runs.first), items_of(runs, runs.second)
    assert set(first["item_id"].to_pylist()) - set(second["item_id"].to_pylist()), "else one month alone would do"


def test_the_released_folder_gives_the_released_vectors(runs: Runs) -> None:
    result = read_json(runs.shop.workspace / "runs" / runs.second["report"]["run_key"] / "validate" / "result.json")
    catalogue = runs.shop.workspace / result["outcome"]["catalogue"]["prefix"]
    items = pq.read_table(catalogue / "part-00000.parquet").slice(0, 20).to_pylist()
    vectors = vectors_of(runs, runs.second)
    released = dict(zip(vectors["item_id"].to_pylist(), vectors["vector"].to_pylist(), strict=True))
    folder = runs.shop.workspace / "models" / runs.second["report"]["model_version"]
    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    ours = model.encode(items, normalize_embeddings=True)
    theirs = np.array([released[item["item_id"]] for item in items])
    assert np.sum(ours * theirs, axis=1) == pytest.approx(1.0, abs=1e-4)


def release_record(shop: Shop, number: int) -> dict[str, Any]:
    record: dict[str, Any] = read_json(shop.workspace / "releases" / f"{number}.json")
    return record


def test_a_release_says_what_it_was_made_of_and_what_its_users_get(runs: Runs) -> None:
    first, second = (release_record(runs.shop, number) for number in (1, 2))
    assert [rows["span"]["name"] for rows in first["rows"]] == list(SPANS[:1])
    assert [rows["span"]["name"] for rows in second["rows"]] == list(SPANS[:2])
    assert {"torch", "sentence-transformers"} <= set(second["libraries"])
    assert second["code"] == first["code"]
    assert second["verdicts"][-1]["metric"] == "recall@10 of the items that both hold"
    changes = read_json(runs.shop.workspace / "runs" / second["run_key"] / "release" / "changes.json")
    assert changes["metrics_after"] == second["catalogue_metrics"]
    # The corpus of the evaluation is the same while it is small: every item that the rows know.
    assert second["catalogue_metrics"]["recall@10"] == pytest.approx(second["metrics"]["recall@10"], abs=0.02)
    assert changes["items_after"] - changes["items_before"] == changes["new_items"] > 0
    card = (runs.shop.workspace / second["model_prefix"] / "README.md").read_text()
    assert second["model"]["version"] in card
    assert SPANS[1] in card


def test_a_search_finds_an_item_by_its_own_text(runs: Runs) -> None:
    vectors = vectors_of(runs, runs.first)
    text, item_id = vectors["text"][7].as_py(), vectors["item_id"][7].as_py()
    found = runs.shop.millrace("search", text, "--release", "1", "-k", "3", "--json").json
    assert (found["release"], found["vectors"], len(found["hits"])) == (1, vectors.num_rows, 3)
    assert found["model_version"] == runs.first["report"]["model_version"]
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == sorted(scores, reverse=True)
    assert text in {hit["text"] for hit in found["hits"]} or item_id in {hit["item_id"] for hit in found["hits"]}


def test_the_first_page_searches_both_releases(runs: Runs) -> None:
    text = vectors_of(runs, runs.second)["text"][7].as_py()
    pages = Pages(DirectoryStore(runs.shop.workspace))
    try:
        for query in (text, "waterproof anorak"):  # the workers stay for the second
            found = pages.page("/", urlencode({"q": query, "k": 3}))
            assert found is not None
            page = Page(found.body)
            first, second = (run["report"]["model_version"] for run in (runs.first, runs.second))
            assert page.text.index(f"Release 1 Model {first}") < page.text.index(f"the current one Model {second}")
            assert [row[0] for row in page.rows if row[0].isdigit()] == ["1", "2", "3"] * 2
    finally:
        pages.close()


def test_the_ledger_knows_every_attempt(runs: Runs) -> None:
    status = runs.shop.millrace("status", "--json").json
    assert status["totals"]["runs"] == 2
    assert status["totals"]["attempts"] == status["totals"]["succeeded"] == 2 * len(STAGES)
    assert 0 < status["totals"]["goodput"] <= 1
    assert [span["trained"] for span in status["spans"]] == [["main"], ["main"], []]
    assert status["release"]["number"] == 2
    result = runs.shop.millrace("report", "--span", SPANS[0], "--json").json
    assert [(entry["stage"], entry["attempt"], entry["failure"]) for entry in result["ledger"]] == [
        (stage, 1, None) for stage in STAGES
    ]
    assert next(entry for entry in result["ledger"] if entry["stage"] == "train")["workers"] == 2
    assert result["quarantined"]


def assert_all_cached(shop: Shop, before: dict[str, int], **expected: Any) -> None:
    """The second month again, from what there is: nothing but its being asked for is new, so no worker was started."""
    again = shop.run("--span", SPANS[1]).json
    assert again["report"]["cached"] == STAGES
    assert {name: again["report"][name] for name in expected} == expected
    after = shop.files()
    run = f"runs/{again['report']['run_key']}"
    changed = {name for name in before | after if before.get(name) != after.get(name)}
    asked = {name for name in changed if name.startswith(f"{run}/invocations/")}
    records = {key for key in changed - asked if not key.startswith("packs/")}  # which know of the new invocation
    assert records <= {f"{run}/config.yaml"}  # written again, the same


def test_running_a_span_again_starts_no_worker_and_a_lost_server_loses_nothing(runs: Runs) -> None:
    before = runs.shop.files()
    expected = {name: runs.second["report"][name] for name in ("release", "model_version", "vectors", "metrics")}
    assert_all_cached(runs.shop, before, **expected)
    forget(runs.shop.home)
    assert_all_cached(runs.shop, before, **expected)
    assert runs.shop.millrace("releases", "--json").json["current"] == 2


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


@pytest.mark.proof
def test_a_refresh_embeds_new_items_and_drops_deleted_ones(copied: Shop, runs: Runs, tmp_path: Path) -> None:
    before = vectors_of(runs, runs.second)
    gone, renamed = before["item_id"][0].as_py(), before["item_id"][1].as_py()
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
    # The same model, and so the same vectors of unchanged items and the same queries.
    assert changes["same_item_cosine"] > 0.99
    assert changes["metrics_before"] == release_record(copied, 2)["catalogue_metrics"]
    assert changes["metrics_after"] == release["catalogue_metrics"]

    copied.millrace("rollback", "--to", "1")
    pruned = copied.millrace("prune", "--keep", "1", "--json").json
    assert (pruned["kept"], pruned["releases"], set(pruned["bytes"])) == ([1, 3], [2], {"vectors"})
    assert copied.millrace("search", "a teapot", "--release", "2").code == 74
    assert copied.millrace("search", "a teapot", "-k", "1", "--json").json["release"] == 1
    assert copied.millrace("rollback", "--to", "3", "--json").code == 0
    again = copied.millrace("search", "a teapot that nobody searched for yet", "-k", "1", "--json").json
    assert (again["release"], again["hits"]) == (3, found["hits"])


def test_rollback_moves_model_and_vectors(copied: Shop) -> None:
    result = copied.millrace("rollback", "--json").json
    current = copied.millrace("status", "--json").json["release"]
    assert result["before"]["number"] == 2
    of_file = read_json(copied.workspace / "releases" / "1.json")
    assert of_file == {**current, "sha256": of_file["sha256"]} == {**result["release"], "sha256": of_file["sha256"]}
    assert current["vectors_prefix"].startswith(f"vectors/{current['model_prefix'].removeprefix('models/')}/")
    assert_complete(copied.workspace, SPANS[:1])
    copied.millrace("rollback", "--to", "2")
    assert_complete(copied.workspace, SPANS[:2])


@pytest.mark.proof
def test_a_rejected_month_gives_its_items_to_the_champion(copied: Shop, runs: Runs) -> None:
    output = copied.run("--span", SPANS[2], *REFUSING).json
    assert (output["state"], output["report"]["release"]) == ("Rejected", None)
    release = copied.millrace("status", "--json").json["release"]
    assert (release["number"], release["refreshed"]) == (3, 2)
    assert release["model"]["version"] == runs.second["report"]["model_version"]
    assert release["vectors"] > release_record(copied, 2)["vectors"]
    assert_complete(copied.workspace, SPANS)


def test_a_target_gets_the_release_and_follows_a_rollback(copied: Shop, tmp_path: Path) -> None:
    setting = f"publish.targets=[{{kind: lancedb, name: look, uri: {tmp_path}/lancedb}}]"

    def equal_rows(number: int) -> bool:
        database = lancedb.connect(tmp_path / "lancedb")
        (now,) = database.open_table("look").to_arrow().to_pylist()
        release = read_json(copied.workspace / "releases" / f"{number}.json")
        assert (now["release"], now["model_version"]) == (number, release["model"]["version"])
        columns = ["item_id", "text", "vector"]
        ours = live_vectors(copied.workspace, release["vectors_prefix"]).select(columns)
        theirs = database.open_table(now["table"]).to_arrow().select(columns)
        return theirs.sort_by("item_id").to_pylist() == ours.sort_by("item_id").to_pylist()

    (target,) = copied.millrace("publish", "--config", str(copied.config_file), "--set", setting, "--json").json[
        "targets"
    ]
    assert target["release"] == 2
    assert equal_rows(2)
    own = ("--config", str(copied.config_file), "--set", setting)
    rolled_back = copied.millrace("rollback", *own, "--json").json
    assert [each["release"] for each in rolled_back["targets"]] == [1]
    assert equal_rows(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "train.lerning_rate=1"), "unknown key 'train.lerning_rate'; did you mean 'train.learning_rate'?"),
        (("--set", "lineage=fresh", "--span", "2026-09"), "span '2026-09' was not ingested"),
        (("--span", SPANS[0], "--set", "seed=5"), f"span {SPANS[0]} was trained by run "),
    ],
)
def test_what_cannot_be_planned_changes_nothing(runs: Runs, arguments: tuple[str, ...], message: str) -> None:
    before = runs.shop.files()
    result = runs.shop.run(*arguments)
    assert (result.code, result.out) == (78, "")
    (line,) = result.err.splitlines()
    assert line.startswith("CONFIG: ")
    assert message in line
    assert runs.shop.files() == before


def test_spans_are_trained_in_order(copied: Shop) -> None:
    """The third month can't come before the second in a lineage that has seen the first alone."""
    (lineage,) = copied.millrace("status", "--json").json["lineages"]
    shutil.rmtree(copied.workspace / lineage["checkpoint"])
    before = copied.files()
    result = copied.run("--span", SPANS[2])
    assert (result.code, result.out) == (78, "")
    assert result.err == (
        f"CONFIG: span {SPANS[2]} can't come next in lineage main, which stands at {SPANS[0]}: run {SPANS[1]} first\n"
    )
    assert copied.files() == before


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
