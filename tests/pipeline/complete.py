"""Whether the current release of a workspace holds every live item exactly once, counted by DuckDB from outside."""

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import duckdb
import pyarrow as pa


def assert_complete(workspace: Path, spans: Sequence[str]) -> None:
    """Compare the current release with the clean rows of these spans and with all item feeds."""
    number = json.loads((workspace / "releases" / "CURRENT").read_text())["release"]
    release = json.loads((workspace / "releases" / f"{number}.json").read_text())
    table = live_vectors(workspace, release["vectors_prefix"])
    found = list(zip(table["item_id"].to_pylist(), table["model_version"].to_pylist(), strict=True))
    assert len(found) == release["vectors"] == release["catalogue"]["items"]
    assert sorted(item_id for item_id, _ in found) == sorted(live_items(workspace, spans))
    assert {model for _, model in found} == {(release["model"]["items"] or release["model"])["version"]}


def files_of(workspace: Path, folder: str) -> list[str]:
    """Return the files that a manifest names, wherever they lie, as docs/data.md says."""
    entries = json.loads((workspace / folder / "MANIFEST.json").read_text())["files"]
    return [str(workspace / entry.get("at", f"{folder}/{entry['name']}")) for entry in entries]


def live_vectors(workspace: Path, folder: str) -> pa.Table:
    """Return the rows of a folder of vectors that count, as docs/data.md says."""
    newest = (
        "SELECT * EXCLUDE filename FROM (SELECT * FROM read_parquet($files, filename = true) QUALIFY row_number() "
        "OVER (PARTITION BY item_id ORDER BY list_position($files, filename) DESC) = 1) "
        "WHERE content_sha256 IS NOT NULL"
    )
    return duckdb.connect().sql(newest, params={"files": files_of(workspace, folder)}).to_arrow_table()


def live_items(workspace: Path, spans: Sequence[str]) -> set[str]:
    """Return the ids of the items in the clean rows of some spans or in a feed, without those that a feed deleted."""
    rows: dict[str, list[str]] = {span: [] for span in spans}
    for result in sorted(workspace.glob("runs/*/validate/result.json")):
        for ref in json.loads(result.read_text())["outcome"]["rows"]:
            if ref["span"]["name"] in rows:
                rows[ref["span"]["name"]] = [str(file) for file in (workspace / ref["prefix"]).glob("*.parquet")]
    assert all(rows.values()), f"not validated: {rows}"
    seen = "SELECT DISTINCT item_id FROM read_parquet(?)"
    items = {item_id for (item_id,) in duckdb.connect().sql(seen, params=[[*chain(*rows.values())]]).fetchall()}
    if feeds := [str(path) for path in workspace.glob("items/*/v*/*.parquet")]:
        newest = "SELECT item_id, arg_max(deleted, time) FROM read_parquet(?) GROUP BY item_id"
        for item_id, deleted in duckdb.connect().sql(newest, params=[feeds]).fetchall():
            (items.discard if deleted else items.add)(item_id)
    return items
