"""Metrics of unseen and of seen queries, measured again from a release by sentence-transformers alone.

Reads a workspace's files as they lie and ranks with code of its own: the model folders of the newest and of the first
release and the pretrained folder, the rows of the newest release's evaluation, all items of the catalogue. Each text is
embedded again. Exits with 1 if a number differs.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TIE = 1e-6  # scores closer than this are equal, and equal ones rank before the own item
SAME = 1e-6  # largest difference of a metric
HEAD = """\
| model | queries | pairs | recall@10 here | recorded, 95 % interval | nDCG@10 here | recorded | ranks that differ |
|---|---|---:|---:|---:|---:|---:|---:|"""


def main(arguments: list[str] | None = None) -> int:
    """Print a table of each model and both parts, and compare it with the evaluation's record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workspace", type=Path)
    root = parser.parse_args(arguments).workspace
    release = max((read(path) for path in root.glob("releases/*.json")), key=lambda each: each["number"])
    run = root / "runs" / release["run_key"]
    config, outcome = read(run / "plan.json")["config"], read(run / "evaluate" / "verdicts.json")["outcome"]
    measured: Any = pd.read_parquet(root / outcome["rows_key"])  # the stubs of pandas lose the type of a filter
    measured = measured[measured["pair"] & (measured["span"] != "(golden)")].reset_index(drop=True)
    print(f"release {release['number']} of {root}: {len(measured):,} pairs, {outcome['catalogue_items']:,} items")
    print(HEAD)
    wrong = False
    for role, model in models(root, release, config).items():
        if f"{role}.rank" not in measured:
            continue  # a first release has no other before it
        ranks = rank(root, model, release, config, measured)
        for name, among in (("unseen", measured["unseen"].to_numpy()), ("seen", ~measured["unseen"].to_numpy())):
            here, part = metrics(ranks[among]), outcome["by_queries"][role][name]
            other = int((ranks[among] != measured[f"{role}.rank"].to_numpy()[among]).sum())
            wrong |= any(abs(value - part["metrics"][metric]) > SAME for metric, value in here.items())
            recall, ndcg = (f"{part['metrics'][metric]:.6f}" for metric in here)
            print(
                f"| {role} | {name} | {among.sum():,} | {here['recall@10']:.6f} | {recall} ({part['low']:.3f} to "
                f"{part['high']:.3f}) | {here['ndcg@10']:.6f} | {ndcg} | {other} |",
                flush=True,
            )
    trained = seen_in_training(root, release, measured)
    recorded = outcome["by_queries"]["challenger"]["seen_trained"]
    print(f"seen rows whose query a training row has: {trained:.6f} here, {recorded:.6f} recorded")
    return int(wrong or abs(trained - recorded) > SAME)


def models(root: Path, release: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, SentenceTransformer]:
    """Return each model that has a folder, by its role in the evaluation."""
    from sentence_transformers import SentenceTransformer

    first = min((read(path) for path in root.glob("releases/*.json")), key=lambda each: each["number"])
    found = {
        role: SentenceTransformer(str(root / each["model_prefix"]), trust_remote_code=True, device="cpu")
        for role, each in {"challenger": release, "first": first}.items()
    }
    model = config["model"]
    if model["pretrained"] and model["embedding_width"] is None and model["interaction"]["kind"] == "none":
        found["untrained"] = SentenceTransformer(str(pretrained(model["pretrained"])), device="cpu")
        found["untrained"].max_seq_length = config["infer"]["max_tokens"]
    return found


def pretrained(folder: str) -> Path:
    """Return the path of a pretrained folder: `package:name/folder` lies in an installed package."""
    name, _, rest = folder.removeprefix("package:").partition("/")
    spec = importlib.util.find_spec(name) if folder.startswith("package:") else None
    return Path(next(iter(spec.submodule_search_locations or ()))) / rest if spec else Path(folder)


def metrics(ranks: np.ndarray) -> dict[str, float]:
    """Return recall and nDCG at 10 of ranks from 1, for one right item a row."""
    return {
        "recall@10": float((ranks <= 10).mean()),
        "ndcg@10": float(np.where(ranks <= 10, 1 / np.log2(ranks + 1), 0).mean()),
    }


def rank(
    root: Path,
    model: SentenceTransformer,
    release: Mapping[str, Any],
    config: Mapping[str, Any],
    measured: pd.DataFrame,
) -> np.ndarray:
    """Return the filtered rank of each row's own item among all items by a model, int64 (rows,), from 1."""
    rows = all_rows(root, release)
    items: Any = table(root, release["catalogue"]["prefix"], "part-*.parquet")
    items = items[items["item_id"].isin(table(root, release["vectors_prefix"], "part-*.parquet")["item_id"])]
    items = items.reset_index(drop=True)
    asked: Any = rows.set_index(["span", "row_id"]).loc[list(zip(measured["span"], measured["row_id"], strict=True))]
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
    values: Any = rows[list(features)].astype(object)
    known = values.where(rows[list(features)].notna(), None).to_dict("records")
    return [{"text": each, **values} for each, values in zip(rows[text], known, strict=True)]


def normal_text(text: str) -> str:
    """Return the text as texts are compared: NFKC, case folded, single spaces."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_bytes())


if __name__ == "__main__":
    sys.exit(main())
