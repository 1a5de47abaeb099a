"""What must hold of a workspace after a run, whatever was done to it. It is read as a stranger would read it.

Only the documented layout is relied on (docs/architecture.md): keys, JSON, Parquet and the checksums of manifests.
"""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq

from infra.store.base import Store

# Below runs/ only what is named by its content: records of attempts hold times.
_TIMELESS = ("spans/", "catalogue/", "tokens/", "negatives/", "lineages/", "models/", "vectors/", "quarantine/")
_TIMELESS_OF_RUNS = ("validate/rows/", "validate/sides/", "validate/held/", "validate/keys/", "plan.json")
_OF_THE_MOMENT = {"created_at", "sha256", "write"}  # keys of a release, with the hash over all of it; of the pointer


def content(store: Store) -> dict[str, str]:
    """Return the hex SHA-256 of everything in a workspace that must not depend on what happened on the way.

    That is data, checkpoints, models, vectors, and releases without their times; names of runs, but not their records.
    """
    return {key: hashlib.sha256(data).hexdigest() for key, data in _timeless(store)}


def problems(store: Store, expected: dict[str, str]) -> list[str]:
    """Return what does not hold of a workspace whose last run was released, a sentence each.

    Args:
        expected: `content` of the workspace of the undisturbed run.
    """
    found = [*_differences(content(store), expected), *of_attempts(store)]
    if not store.exists("releases/CURRENT"):
        return [*found, "nothing is released"]
    try:
        return [*found, *of_release(store), *of_lineage(store)]
    except (FileNotFoundError, KeyError, ValueError) as error:
        return [*found, f"the release can't be read: {type(error).__name__}: {error}"]


def _timeless(store: Store) -> Iterator[tuple[str, bytes]]:
    for key in store.list(""):
        if key.startswith("releases/"):
            record = json.loads(store.read(key))
            kept = {name: value for name, value in record.items() if name not in _OF_THE_MOMENT}
            yield key, json.dumps(kept, sort_keys=True).encode()
        elif key.startswith(("runs/", "refreshes/")):
            within = key.split("/", 2)[2]
            if within == "plan.json":
                yield key, b""  # it names the workspace
            elif within.startswith(_TIMELESS_OF_RUNS):
                yield key, store.read(key)
        elif key.startswith(_TIMELESS) and not key.endswith((".lease", ".run", ".refresh")):
            yield key, store.read(key)


def _differences(found: dict[str, str], expected: dict[str, str]) -> Iterator[str]:
    for key in sorted(found.keys() | expected.keys()):
        if key not in found:
            yield f"{key} is missing, which the undisturbed run has"
        elif key not in expected:
            yield f"{key} is there, which the undisturbed run has not"
        elif found[key] != expected[key]:
            yield f"{key} has other content than in the undisturbed run"


def of_release(store: Store) -> Iterator[str]:
    """Yield where a release binds vectors to another model than its own, or lacks some."""
    current = _json(store, "releases/CURRENT")["release"]
    release = _json(store, f"releases/{current}.json")
    model, vectors = release["model_prefix"], release["vectors_prefix"]
    for prefix in (model, vectors, release["model"]["checkpoint"]["prefix"], release["catalogue"]["prefix"]):
        yield from damaged(store, prefix)
    of_catalogue, of_vectors = (_ids(store, release["catalogue"]["prefix"]), Counter[str]())
    for key in _parts(store, vectors):
        table = pq.read_table(io.BytesIO(store.read(key)), columns=["item_id", "model_version"])
        of_vectors.update(table.column("item_id").to_pylist())
        if others := set(table.column("model_version").to_pylist()) - {release["model"]["version"]}:
            yield f"{key} has vectors of {sorted(others)} in a release of {release['model']['version']}"
    if of_vectors != of_catalogue:
        yield f"{vectors} has other items than the catalogue of release {current}"


def of_lineage(store: Store) -> Iterator[str]:
    """Yield where a span was trained twice or skipped, and checkpoints that no run completed."""
    release = _json(store, f"releases/{_json(store, 'releases/CURRENT')['release']}.json")
    prefix = release["model"]["checkpoint"]["prefix"]
    trained = [rows["span"]["name"] for rows in _json(store, f"{prefix}/state.json")["consumed"]]
    there = sorted({key.split("/")[1] for key in store.list("spans")})
    if trained != there:
        yield f"{prefix} is trained on {trained}, but the spans are {there}"
    for key in store.list(prefix.rpartition("/")[0]):
        if key.endswith("/state.json") and not _json(store, key)["complete"]:
            yield f"{key.rpartition('/')[0]} is a checkpoint from the middle of a run"


def of_attempts(store: Store) -> Iterator[str]:
    """Yield attempts whose records are open, and stages that came to their end more often than once."""
    done = Counter[str]()
    for key in (*store.list("runs"), *store.list("refreshes")):
        if key.endswith("/ledger.json"):
            record = _json(store, key)
            if record["ended_at"] is None:
                yield f"{key} is open, though no process works on it"
            elif record["failure"] is None:
                done[key.rpartition("/attempt-")[0]] += 1
    for stage, count in done.items():
        if count != 1:
            yield f"{stage} was done {count} times"


def damaged(store: Store, prefix: str) -> Iterator[str]:
    """Yield files of a folder that its manifest does not describe."""
    manifest = _json(store, f"{prefix}/MANIFEST.json")
    for entry in manifest["files"]:
        key = entry.get("at", f"{prefix}/{entry['name']}")
        if not store.exists(key) or hashlib.sha256(store.read(key)).hexdigest() != entry["sha256"]:
            yield f"{key} is not what its manifest names"


def _ids(store: Store, prefix: str) -> Counter[str]:
    found = Counter[str]()
    for key in _parts(store, prefix):
        found.update(pq.read_table(io.BytesIO(store.read(key)), columns=["item_id"]).column("item_id").to_pylist())
    return found


def _parts(store: Store, prefix: str) -> list[str]:
    entries = _json(store, f"{prefix}/MANIFEST.json")["files"]
    return [entry.get("at", f"{prefix}/{entry['name']}") for entry in entries if entry["name"].endswith(".parquet")]


def _json(store: Store, key: str) -> Any:
    return json.loads(store.read(key))
