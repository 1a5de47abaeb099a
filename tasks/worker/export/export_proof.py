"""Proves a release's exports: a fresh process opens each with its runtime, and its vectors find what the model's do.

An export below its bound is refused by name, and its folder is deleted before the model's folder is complete.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from configs.schema.stages import ExportKind
from tasks.contracts.search import MeasuredExport
from tasks.data.rows import QUERY, TEXT
from tasks.foundation.errors import ConfigError, HostError
from tasks.worker.export.texts_graph import write_exports
from tasks.worker.model import tokens
from tasks.worker.model.features import FeatureTable
from tasks.worker.online.export_folder import ABOUT, FOLDER
from tasks.worker.online.kinds import KINDS
from tasks.worker.process.threads import QUIET
from tasks.worker.search.consumer import Searched, search
from tasks.worker.training.checkpoint import ModelParts

PROGRAM = "tasks.worker.online.encode_exported"


class Against(NamedTuple):
    """The vectors and the answers that exports are compared with.

    `queries` and `items` are tables of rows; `query_vectors` and `item_vectors` float32 (rows, width), the released
    model's unit vectors; `searched` its answers to the queries, with `pairs` from `known_pairs`. Cosines are taken of
    the first `probed` queries and of all items.
    """

    queries: pa.Table
    query_vectors: np.ndarray
    items: pa.Table
    item_vectors: np.ndarray
    searched: Searched
    pairs: pa.Table
    probed: int


class _Made(NamedTuple):
    queries: np.ndarray
    items: np.ndarray
    milliseconds: np.ndarray


class _Unusable(Exception):
    """An export that its process could not open, or not use."""


def make_exports(
    parts: ModelParts, config: Config, version: str, folder: Path, against: Against
) -> tuple[MeasuredExport, ...]:
    """Write the exports of `release.exports` into a model's folder, and prove each; refused ones are deleted.

    Raises:
        ConfigError: a package is missing, or an export is refused and `release.exports_required` is set.
        HostError: the process of a proof was killed.
    """
    kinds, widths = config.release.exports, config.heads.matryoshka
    impossible = write_exports(parts, version, config.infer.max_tokens, widths, kinds, folder)
    measured = tuple(
        MeasuredExport(kind=kind, refused=impossible[kind])
        if kind in impossible
        else _prove(kind, folder / FOLDER / kind, parts.features, config, against)
        for kind in kinds
    )
    for each in measured:
        if each.refused is None:
            continue
        sentence = f"release.exports: {each.kind} is refused: {each.refused}"
        if config.release.exports_required:
            raise ConfigError(
                f"{sentence}; nothing was released. Take it out of release.exports, or let releases go on without: "
                "release.exports_required: false"
            )
        print(f"{sentence}; the release goes on without it", flush=True)
        shutil.rmtree(folder / FOLDER / each.kind, ignore_errors=True)
    if (folder / FOLDER).is_dir() and not any((folder / FOLDER).iterdir()):
        (folder / FOLDER).rmdir()
    return measured


def _prove(kind: ExportKind, folder: Path, features: FeatureTable, config: Config, against: Against) -> MeasuredExport:
    size = sum(each.stat().st_size for each in folder.iterdir() if each.name not in (ABOUT, tokens.FILE))
    try:
        made = _encode_apart(folder, features, against)
    except _Unusable as error:
        return MeasuredExport(kind=kind, bytes=size, refused=str(error))
    probed = against.probed
    ours = np.concatenate([against.query_vectors[:probed], against.item_vectors])
    theirs = np.concatenate([made.queries[:probed].reshape(-1, ours.shape[1]), made.items.reshape(-1, ours.shape[1])])
    least, recall = float((ours * theirs).sum(axis=1).min()), None
    if against.queries.num_rows:
        metrics = search(against.searched.index, against.queries, made.queries, against.pairs).metrics
        recall = metrics["recall@10"]
    p50, p99 = (float(each) for each in np.percentile(made.milliseconds, [50, 99]))
    return MeasuredExport(
        kind=kind,
        refused=_why_not(kind, config, least, recall, against.searched),
        bytes=size,
        min_cosine=least,
        recall_at_10=recall,
        p50_ms=round(p50, 3),
        p99_ms=round(p99, 3),
    )


def _why_not(kind: ExportKind, config: Config, least: float, recall: float | None, model: Searched) -> str | None:
    """Return the reason to refuse an export; None: it is as good as its bounds ask."""
    bound, exact = config.release.min_cosine, KINDS[kind].exact
    if not np.isfinite(least):
        return "it gives vectors that are not numbers"
    if exact and least < bound:
        return f"its vectors have a cosine of {least:.6f} with the model's, below release.min_cosine {bound:g}"
    if recall is None:
        return None if exact else "there is no holdout query to measure its recall with"
    loss, most = model.metrics["recall@10"] - recall, config.release.export_max_loss
    if loss > most:
        return (
            f"it loses {loss:.4f} of the model's recall@10 ({recall:.4f}, and not {model.metrics['recall@10']:.4f}), "
            f"more than release.export_max_loss {most:g}"
        )
    return None


def _encode_apart(folder: Path, features: FeatureTable, against: Against) -> _Made:
    """Embed in a fresh process. Raises _Unusable; HostError: the process was killed."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        entries, vectors = Path(name) / "entries.json", Path(name) / "vectors.npz"
        given = {
            "queries": _records(against.queries, QUERY, features.query_columns),
            "items": _records(against.items, TEXT, features.columns),
        }
        entries.write_text(json.dumps(given, default=str), encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-P", "-m", PROGRAM, str(folder), str(entries), str(vectors)],
            env={**os.environ, **QUIET},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            encoding="utf-8",
        )
        if done.returncode < 0:
            raise HostError(f"the process that encoded with {folder} was ended by signal {-done.returncode}")
        if done.returncode:
            raise _Unusable("its process failed: " + (done.stdout.strip() or "no output").splitlines()[-1])
        with np.load(vectors) as found:
            return _Made(found["queries"], found["items"], found["milliseconds"])


def _records(table: pa.Table, text: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    there = [name for name in columns if name in table.column_names]
    values = {TEXT: table[text].to_pylist(), **{name: table[name].to_pylist() for name in there}}
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]
