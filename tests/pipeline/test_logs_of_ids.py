"""From a log of ids and an item feed to a release that is searched: four commands, real workers, a real server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.id_log import WEEKS, IdLog, write_id_log
from tests.support.workspace.shop import SETTINGS, Shop

pytestmark = pytest.mark.pipeline

EVENTS = {
    "impression": {"label": 0},
    "click": {"label": 1},
    "cart": {"label": 1, "weight": 2},
    "purchase": {"label": 1, "weight": 5},
}
OWN = {
    "features": {"numeric": ["price"], "categorical": ["category"], "query": []},
    "validate": {"events": {"column": "event", "values": EVENTS}},
    "train": SETTINGS["train"] | {"epochs": 12, "row_weight": "event_weight", "learning_rate": 5e-3},
    "evaluate": SETTINGS["evaluate"] | {"slices": ["locale"]},
}


class Searched(NamedTuple):
    shop: Shop
    made: IdLog
    first: dict[str, Any]


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, prefect: PrefectServer) -> Searched:
    """A release of the first seven weeks."""
    folder = tmp_path_factory.mktemp("ids")
    made = write_id_log(folder)
    shop = Shop(folder / "workspace", folder / "shop.yaml", prefect.home)
    shop.config_file.write_text(yaml.safe_dump(SETTINGS | OWN))
    ingest_feed(shop, made.feed)
    options = ("--time-column", "at", "--span", "week", "--map", "query=search,item_id=sku", "--json")
    log = shop.millrace("ingest", "--source", str(made.log), "--format", "jsonl", *options).json
    assert [span["name"] for span in log["spans"]] == list(WEEKS)
    return Searched(shop, made, shop.run("--span", WEEKS[6]).json)


def ingest_feed(shop: Shop, feed: Path) -> None:
    options = ("--time-column", "updated_at", "--span", "month", "--map", "id=sku,text=title,deleted=removed")
    done = shop.millrace("ingest", "--items", str(feed), "--format", "jsonl", *options)
    assert done.code == 0, done.err


def outcome(shop: Shop, run: dict[str, Any]) -> dict[str, Any]:
    path = shop.workspace / "runs" / run["report"]["run_key"] / "validate" / "result.json"
    return json.loads(path.read_text())["outcome"]


def clean_rows(shop: Shop, run: dict[str, Any]) -> pa.Table:
    parts = [
        pq.read_table(shop.workspace / rows["prefix"] / "part-00000.parquet") for rows in outcome(shop, run)["rows"]
    ]
    return pa.concat_tables(parts, promote_options="permissive")


def found(shop: Shop, text: str) -> dict[str, str]:
    hits = shop.millrace("search", text, "-k", "10", "--json").json["hits"]
    return {hit["item_id"]: hit["text"] for hit in hits}


def test_four_commands_make_a_release_that_finds_items_in_each_language(searched: Searched) -> None:
    assert (searched.first["state"], searched.first["report"]["release"]) == ("Released", 1)
    for text in ("red lamp", "blaue Tasse", "緑の 椅子"):
        sku = next(sku for sku, title in searched.made.titles.items() if title.startswith(text))
        assert sku in found(searched.shop, text)


def test_rows_have_texts_features_labels_and_weights(searched: Searched) -> None:
    rows = clean_rows(searched.shop, searched.first)
    known = {row["item_id"]: row for row in rows.to_pylist() if row["event"] == "purchase"}
    for sku, row in known.items():
        assert searched.made.titles[sku].startswith(row["item"])
        assert (row["label"], row["event_weight"], row["locale"]) == (1.0, 5.0, sku[:2])
        assert row["price"] > 0
    assert {row["label"] for row in rows.to_pylist() if row["event"] == "impression"} == {0.0}


def test_rows_of_items_that_the_feed_does_not_know_are_set_apart(searched: Searched) -> None:
    value = outcome(searched.shop, searched.first)
    assert list(value["reasons"]) == ["unknown item"]
    assert [feed["name"] for feed in value["texts"]] == ["2025-12"]
    apart = pq.read_table(searched.shop.workspace / value["quarantine"])
    assert set(apart["item_id"].to_pylist()) <= set(searched.made.late)


def test_the_next_run_has_late_rows_and_new_texts_and_drops_deleted_items(searched: Searched) -> None:
    shop, made = searched.shop, searched.made
    ingest_feed(shop, made.feed_later)
    second = shop.run().json
    assert (second["state"], second["report"]["release"]) == ("Released", 2)
    value = outcome(shop, second)
    assert value["rows_late"] == outcome(shop, searched.first)["reasons"]["unknown item"]
    assert (value["reasons"], value["waiting"]) == ({}, None)
    rows = clean_rows(shop, second)["item_id"].to_pylist()
    assert sum(sku in made.late for sku in rows) == made.late_rows
    texts = dict(zip(*(clean_rows(shop, second)[name].to_pylist() for name in ("item_id", "item")), strict=True))
    assert set(made.late) & set(texts)
    assert all(texts[sku] == made.titles[sku] for sku in made.renamed if sku in texts)
    late, gone = made.late[0], made.deleted[0]
    assert found(shop, made.titles[late])[late] == made.titles[late]
    assert gone not in found(shop, made.titles[gone])
