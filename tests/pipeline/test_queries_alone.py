"""A month on which queries alone are trained: its release keeps the vectors, and all that follows knows their model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

from tests.pipeline.complete import assert_complete, live_vectors
from tests.pipeline.two_months import read_json, release_record
from tests.support.processes.command import CommandResult
from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.shop import SPANS, Shop, open_shop

pytestmark = pytest.mark.pipeline
QUERIES = ("--set", "train.sides=queries")


class Trained(NamedTuple):
    shop: Shop
    too_early: CommandResult
    first: dict[str, Any]
    second: dict[str, Any]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, prefect: PrefectServer) -> Trained:
    """A month of both sides, then a month of queries alone, by two workers. The tests go on from there, in order."""
    shop = open_shop(tmp_path_factory.mktemp("queries"), prefect.home, rows_per_span=400)
    early = shop.run("--span", SPANS[0], *QUERIES)
    first = shop.run("--span", SPANS[0]).json
    return Trained(shop, early, first, shop.run("--span", SPANS[1], *QUERIES, "--set", "train.workers=2").json)


def vectors_of(shop: Shop, number: int) -> dict[str, tuple[str, np.ndarray]]:
    """Return the model and the vector of each item of a release, by id."""
    table: pa.Table = live_vectors(shop.workspace, release_record(shop, number)["vectors_prefix"])
    columns = (table[name].to_pylist() for name in ("item_id", "model_version", "vector"))
    return {item_id: (by, np.array(vector)) for item_id, by, vector in zip(*columns, strict=True)}


def weights_of(shop: Shop, number: int) -> dict[str, np.ndarray]:
    return load_file(shop.workspace / release_record(shop, number)["model_prefix"] / "model.safetensors")


def test_queries_need_vectors_to_find(trained: Trained) -> None:
    assert trained.too_early.code == 78
    assert "--set train.sides=both" in trained.too_early.err


def test_the_items_keep_their_vectors_and_new_ones_get_the_same_models(trained: Trained) -> None:
    shop, first, second = trained.shop, vectors_of(trained.shop, 1), vectors_of(trained.shop, 2)
    by = trained.first["report"]["model_version"]
    assert trained.second["report"]["release"] == 2
    assert first.keys() < second.keys()
    assert {model for model, _ in second.values()} == {by}
    assert all((second[item_id][1] == vector).all() for item_id, (_, vector) in first.items())
    record = release_record(shop, 2)["model"]
    assert record["version"] == trained.second["report"]["model_version"] != by == record["items"]["version"]
    infer = read_json(shop.workspace / "runs" / trained.second["report"]["run_key"] / "infer" / "result.json")
    assert infer["outcome"]["vectors_reused"] == len(first)
    assert_complete(shop.workspace, SPANS[:2])


def test_the_model_of_the_queries_is_another_one(trained: Trained) -> None:
    before, after = weights_of(trained.shop, 1), weights_of(trained.shop, 2)
    assert [name for name in before if "word_embeddings" in name and (before[name] != after[name]).any()]
    folder = trained.shop.workspace / release_record(trained.shop, 2)["model_prefix"]
    assert "of queries alone" in (folder / "README.md").read_text()


def test_the_release_is_searched_with_it(trained: Trained) -> None:
    shop, text = trained.shop, "red lamp"
    found = json.loads(shop.millrace("search", text, "-k", "3", "--json").out)
    model: Any = SentenceTransformer(
        str(shop.workspace / release_record(shop, 2)["model_prefix"]), device="cpu", trust_remote_code=True
    )
    query, items = model.encode_query(text), vectors_of(shop, 2)
    best = sorted(items, key=lambda item_id: -float(items[item_id][1] @ query))[:3]
    assert [hit["item_id"] for hit in found["hits"]] == best
    assert found["model_version"] == trained.second["report"]["model_version"]


def test_the_comparison_of_both_models_is_over_the_same_vectors(trained: Trained) -> None:
    outcome = read_json(
        trained.shop.workspace / "runs" / trained.second["report"]["run_key"] / "evaluate" / "result.json"
    )["outcome"]
    vectors = {each["role"]: each["vectors"] for each in outcome["measured"]}
    assert vectors["challenger"]["same_item_cosine"] == pytest.approx(1.0, abs=1e-6)
    assert outcome["challenger"] != outcome["champion"]


def test_a_refresh_embeds_new_items_by_the_model_of_the_vectors(trained: Trained, tmp_path: Path) -> None:
    shop, before = trained.shop, vectors_of(trained.shop, 2)
    feed = tmp_path / "new.jsonl"
    feed.write_text(json.dumps({"sku": "new-1", "title": "a green lamp", "at": "2026-10-05T00:00:00Z"}) + "\n")
    form = ("--format", "jsonl", "--time-column", "at", "--span", "month", "--map", "id=sku,text=title")
    done = shop.millrace("ingest", "--items", str(feed), *form)
    assert done.code == 0, done.err
    made = shop.millrace("refresh", "--config", str(shop.config_file), "--json")
    assert made.json["release"]["number"] == 3, made.err
    after = vectors_of(shop, 3)
    assert after.keys() - before.keys() == {"new-1"}
    assert after["new-1"][0] == trained.first["report"]["model_version"]
    assert release_record(shop, 3)["model"] == release_record(shop, 2)["model"]
    assert_complete(shop.workspace, SPANS[:2])


def test_a_rollback_goes_to_the_model_before_and_a_prune_keeps_the_weights_of_the_items(trained: Trained) -> None:
    shop = trained.shop
    assert shop.millrace("rollback", "--json").json["release"]["number"] == 1
    assert shop.millrace("rollback", "--to", "3", "--json").json["release"]["number"] == 3
    pruned = shop.millrace("prune", "--config", str(shop.config_file), "--keep", "1", "--json")
    assert pruned.code == 0, pruned.err
    items = release_record(shop, 3)["model"]["items"]
    assert (shop.workspace / items["checkpoint"]["prefix"] / "MANIFEST.json").is_file()


def test_the_next_month_trains_both_sides_and_embeds_all_items(trained: Trained) -> None:
    shop = trained.shop
    third = shop.run("--span", SPANS[2]).json["report"]
    record = release_record(shop, third["release"])
    assert record["model"]["items"] is None
    assert {by for by, _ in vectors_of(shop, third["release"]).values()} == {third["model_version"]}
    assert_complete(shop.workspace, SPANS)
