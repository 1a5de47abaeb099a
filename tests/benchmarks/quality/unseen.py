"""Recall of unseen and of seen queries, measured again from a release by sentence-transformers alone.

Reads a workspace's files as they lie and ranks with code of its own: the model folder of the newest release, the rows
of its evaluation, all items of the catalogue. Each text is embedded again. Exits with 1 if a number differs.
"""

from __future__ import annotations

import argparse
import json
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

TIE = 1e-6  # scores closer than this are equal, and equal ones rank before the own item
SAME = 1e-6  # largest difference of a recall


def main(arguments: list[str] | None = None) -> int:
    """Print a table of both parts, and compare it with the evaluation's record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    root = parser.parse_args(arguments).workspace
    release = max((read(path) for path in root.glob("releases/*.json")), key=lambda each: each["number"])
    run = root / "runs" / release["run_key"]
    config, outcome = read(run / "plan.json")["config"], read(run / "evaluate" / "verdicts.json")["outcome"]
    measured = pd.read_parquet(root / outcome["rows_key"])
    measured = measured[measured["pair"] & (measured["span"] != "(golden)")].reset_index(drop=True)
    ranks = rank(root, release, config, measured)
    print(f"release {release['number']} of {root}: {len(measured):,} pairs, {outcome['catalogue_items']:,} items")
    print("| queries | pairs | recall@10 here | recall@10 recorded | ranks that differ |\n|---|---:|---:|---:|---:|")
    wrong = False
    for name, among in (("unseen", measured["unseen"].to_numpy()), ("seen", ~measured["unseen"].to_numpy())):
        here = float((ranks[among] <= 10).mean())
        there = outcome["by_queries"]["challenger"][name]["metrics"]["recall@10"]
        other = int((ranks[among] != measured["challenger.rank"].to_numpy()[among]).sum())
        wrong |= abs(here - there) > SAME
        print(f"| {name} | {among.sum():,} | {here:.6f} | {there:.6f} | {other} |", flush=True)
    trained = seen_in_training(root, release, measured)
    recorded = outcome["by_queries"]["challenger"]["seen_trained"]
    print(f"seen rows whose query a training row has: {trained:.6f} here, {recorded:.6f} recorded")
    return int(wrong or abs(trained - recorded) > SAME)


def rank(root: Path, release: Mapping[str, Any], config: Mapping[str, Any], measured: pd.DataFrame) -> np.ndarray:
    """Return the filtered rank of each row's own item among all items, int64 (rows,), from 1."""
    from sentence_transformers import SentenceTransformer

    rows = all_rows(root, release)
    items = table(root, release["catalogue"]["prefix"], "part-*.parquet")
    items = items[items["item_id"].isin(table(root, release["vectors_prefix"], "part-*.parquet")["item_id"])]
    items = items.reset_index(drop=True)
    asked = rows.set_index(["span", "row_id"]).loc[list(zip(measured["span"], measured["row_id"], strict=True))]
    model = SentenceTransformer(str(root / release["model_prefix"]), trust_remote_code=True, device="cpu")
    of_query = [name for name in config["features"]["query"] if name in asked]
    of_item = [*config["features"]["numeric"], *config["features"]["categorical"]]
    queries = model.encode_query(inputs(asked, "query", of_query), show_progress_bar=False)
    documents = model.encode_document(inputs(items, "text", of_item), show_progress_bar=False)
    place = {item: at for at, item in enumerate(items["item_id"])}
    normal = [normal_text(text) for text in items["text"]]
    with_text = defaultdict(set)
    for at, text in enumerate(normal):
        with_text[text].add(at)
    right = defaultdict(set)
    pairs = rows[is_pair(rows, config)]
    for query, item in zip(pairs["query"], pairs["item_id"], strict=True):
        if item in place:
            right[normal_text(query)] |= with_text[normal[place[item]]]
    found = []
    for at, (query, item) in enumerate(zip(asked["query"], measured["item_id"], strict=True)):
        scores = documents @ queries[at]
        own = place[item]
        others = (right[normal_text(query)] | with_text[normal[own]]) - {own}
        ahead = set(np.flatnonzero(scores >= scores[own] - TIE).tolist()) - others
        found.append(len(ahead))
    return np.array(found)


def seen_in_training(root: Path, release: Mapping[str, Any], measured: pd.DataFrame) -> float:
    """Return the share of the seen rows whose query a training row has: one neither held out nor left out."""
    rows, aside = all_rows(root, release), set()
    for ref in release["rows"]:
        name = ref["span"]["name"]
        aside |= {(name, each) for each in table(root, ref["held"], "rows-*.parquet")["row_id"]}
        if ref["sides"] is not None:
            aside |= {(name, each) for each in table(root, ref["sides"], "left_out.parquet")["row_id"]}
    query_of = dict(zip(zip(rows["span"], rows["row_id"], strict=True), map(normal_text, rows["query"]), strict=True))
    trained = {query for key, query in query_of.items() if key not in aside}
    seen = measured[~measured["unseen"]]
    keys = zip(seen["span"], seen["row_id"], strict=True)
    return float(np.mean([query_of[key] in trained for key in keys])) if len(seen) else float("nan")


def is_pair(rows: pd.DataFrame, config: Mapping[str, Any]) -> pd.Series:
    """Return True for the rows that pair a query with a right item."""
    heads = config["heads"]
    if not heads["contrastive"]["positives_only"]:
        return pd.Series(True, index=rows.index)
    return rows["label"] >= heads["classification"]["positive_min"]


def all_rows(root: Path, release: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of all spans of the release's lineage, with their span."""
    parts = [
        table(root, each["prefix"], "part-*.parquet").assign(span=each["span"]["name"]) for each in release["rows"]
    ]
    return pd.concat(parts, ignore_index=True)


def table(root: Path, prefix: str, pattern: str) -> pd.DataFrame:
    """Return the Parquet files of a folder as one table."""
    return pd.concat([pd.read_parquet(path) for path in sorted((root / prefix).glob(pattern))], ignore_index=True)


def inputs(rows: pd.DataFrame, text: str, features: Iterable[str]) -> list[Any]:
    """Return the inputs of the model: texts, or texts with their features."""
    if not features:
        return rows[text].tolist()
    known = rows[list(features)].astype(object).where(rows[list(features)].notna(), None).to_dict("records")
    return [{"text": each, **values} for each, values in zip(rows[text], known, strict=True)]


def normal_text(text: str) -> str:
    """Return the text as texts are compared: NFKC, case folded, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
