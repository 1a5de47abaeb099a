"""A workspace after a run, and each thing that can be wrong with it."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from tests.benchmarks.disturbed.invariants import content, problems

CHECKPOINT, MODEL, CATALOGUE, VECTORS = "lineages/main/step-00000009", "models/m-9", "catalogue/c", "vectors/m-9/c"
ATTEMPT = "runs/r2/train/attempt-1/ledger.json"


def put(store: DirectoryStore, key: str, record: Any) -> None:
    store.write(key, json.dumps(record).encode())


def folder(store: DirectoryStore, prefix: str, **files: bytes) -> None:
    """A folder with its manifest."""
    for name, data in files.items():
        store.write(f"{prefix}/{name}", data)
    entries = [{"name": name, "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()]
    put(store, f"{prefix}/MANIFEST.json", {"files": entries})


def parquet(items: Sequence[str], **columns: str) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"item_id": items} | {name: [text] * len(items) for name, text in columns.items()}), sink)
    return sink.getvalue()


def state(*spans: str, complete: bool = True) -> bytes:
    return json.dumps({"consumed": [{"span": {"name": span}} for span in spans], "complete": complete}).encode()


def vectors(store: DirectoryStore, items: Sequence[str], model: str) -> None:
    folder(store, VECTORS, **{"part-0.parquet": parquet(items, model_version=model)})


def release(store: DirectoryStore, created_at: str) -> None:
    model = {"version": "m-9", "checkpoint": {"prefix": CHECKPOINT}}
    record = {"model": model, "model_prefix": MODEL, "vectors_prefix": VECTORS, "catalogue": {"prefix": CATALOGUE}}
    put(store, "releases/2.json", {**record, "created_at": created_at, "sha256": f"of all, with {created_at}"})


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Two months, trained and released."""
    made = DirectoryStore(tmp_path)
    for span in ("2026-01", "2026-02"):
        folder(made, f"spans/{span}/v1", rows=b"rows")
    folder(made, CHECKPOINT, **{"state.json": state("2026-01", "2026-02"), "model.safetensors": b"weights"})
    folder(made, MODEL, **{"model.safetensors": b"weights"})
    folder(made, CATALOGUE, **{"part-0.parquet": parquet(["a", "b"])})
    vectors(made, ["a", "b"], "m-9")
    release(made, "2026-03-01")
    put(made, "releases/CURRENT", {"release": 2, "newest": 2, "write": "one"})
    put(made, ATTEMPT, {"ended_at": "2026-03-01", "failure": None})
    return made


DAMAGES: dict[str, tuple[Callable[[DirectoryStore], None], str]] = {
    "other weights": (
        lambda store: folder(store, MODEL, **{"model.safetensors": b"weightS"}),
        "models/m-9/model.safetensors has other content than in the undisturbed run",
    ),
    "another name": (
        lambda store: store.move(MODEL, "models/m-8"),
        "models/m-8/model.safetensors is there, which the undisturbed run has not",
    ),
    "rows lost": (
        lambda store: store.delete("spans/2026-01/v1/rows"),
        "spans/2026-01/v1/rows is missing, which the undisturbed run has",
    ),
    "a span skipped": (
        lambda store: store.write(f"{CHECKPOINT}/state.json", state("2026-02")),
        f"{CHECKPOINT} is trained on ['2026-02'], but the spans are ['2026-01', '2026-02']",
    ),
    "a span twice": (
        lambda store: store.write(f"{CHECKPOINT}/state.json", state("2026-01", "2026-02", "2026-02")),
        f"{CHECKPOINT} is trained on ['2026-01', '2026-02', '2026-02'], but the spans are ['2026-01', '2026-02']",
    ),
    "a checkpoint of the middle": (
        lambda store: folder(store, "lineages/main/step-00000005", **{"state.json": state(complete=False)}),
        "lineages/main/step-00000005 is a checkpoint from the middle of a run",
    ),
    "vectors of two models": (
        lambda store: vectors(store, ["a", "b"], "m-8"),
        f"{VECTORS}/part-0.parquet has vectors of ['m-8'] in a release of m-9",
    ),
    "an item twice": (
        lambda store: vectors(store, ["a", "b", "b"], "m-9"),
        f"{VECTORS} has other items than the catalogue of release 2",
    ),
    "a file that its manifest does not name": (
        lambda store: store.write(f"{MODEL}/model.safetensors", b"torn"),
        "models/m-9/model.safetensors is not what its manifest names",
    ),
    "an open attempt": (
        lambda store: put(store, ATTEMPT, {"ended_at": None, "failure": None}),
        f"{ATTEMPT} is open, though no process works on it",
    ),
    "a stage done twice": (
        lambda store: put(store, "runs/r2/train/attempt-2/ledger.json", {"ended_at": "2026-03-01", "failure": None}),
        "runs/r2/train was done 2 times",
    ),
    "no release": (lambda store: store.delete("releases/CURRENT"), "nothing is released"),
    "a release that names nothing": (
        lambda store: put(store, "releases/2.json", {}),
        "the release can't be read: KeyError: 'model_prefix'",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_a_sentence(store: DirectoryStore, damage: str) -> None:
    expected = content(store)
    spoil, sentence = DAMAGES[damage]
    spoil(store)
    assert sentence in problems(store, expected)


def test_times_locks_and_failed_attempts_are_no_difference(store: DirectoryStore) -> None:
    expected = content(store)
    release(store, "2026-04-01")
    put(store, "releases/CURRENT", {"release": 2, "newest": 2, "write": "another one"})
    put(store, "runs/r2/train/attempt-0/ledger.json", {"ended_at": "2026-03-01", "failure": "HOST"})
    put(store, "runs/r2/invocations/2.json", {})
    put(store, "tokens/t.lease", {})
    put(store, ".locks/lineages.main.run", {})
    assert problems(store, expected) == []
