"""The whole thing: the installed command, real worker processes, a real server; from a log of searches to releases."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import duckdb
import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from flows.cli.serving.pages import Pages
from infra.store.directory import DirectoryStore
from tasks.contracts import workspace
from tasks.contracts.workspace import kind_of
from tests.pipeline.complete import assert_complete, live_vectors
from tests.pipeline.two_months import Runs, read_json, release_record, vectors_of
from tests.support.pages.shown import Page
from tests.support.processes.prefect_server import forget
from tests.support.workspace.shop import SPANS, STAGES, Shop

pytestmark = pytest.mark.pipeline


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
    of_stages = {workspace.SHARD, workspace.HELD, workspace.POSITIVES, workspace.VERDICTS}
    assert {workspace.SPEC, workspace.REPORT, *of_stages} < kinds


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
    assert f"span {SPANS[2]} can't" in result.err
    assert f"run {SPANS[1]} first" in result.err
    assert copied.files() == before
