"""Two months that were run and released by the installed command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from tests.pipeline.complete import live_vectors
from tests.support.workspace.shop import Shop

# Of the first month. On AWS Batch, two nodes train and evaluate, and an array of two jobs embeds.
TWO_WORKERS = ("--set", "train.workers=2", "--set", "infer.workers=2", "--set", "infer.shard_rows=32")


class Runs(NamedTuple):
    shop: Shop
    first: dict[str, Any]
    second: dict[str, Any]


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def vectors_of(runs: Runs, output: dict[str, Any]) -> pa.Table:
    release = read_json(runs.shop.workspace / "releases" / f"{output['report']['release']}.json")
    folder = runs.shop.workspace / release["vectors_prefix"]
    manifest = read_json(folder / "MANIFEST.json")
    table = live_vectors(runs.shop.workspace, release["vectors_prefix"])
    assert manifest["facts"]["vectors"] == release["catalogue"]["items"] == table.num_rows
    return table.sort_by("item_id")


def release_record(shop: Shop, number: int) -> dict[str, Any]:
    record: dict[str, Any] = read_json(shop.workspace / "releases" / f"{number}.json")
    return record
