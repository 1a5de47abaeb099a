"""Use a released model as its consumers do: the exported folder, opened with sentence-transformers."""

import contextlib
import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from tasks.data.items import TEXT
from tasks.data.rows import QUERY
from tasks.foundation.errors import CodeError, HostError
from tasks.worker.model.features import FILE, FeatureTable
from tasks.worker.model.released_code import needs_trust
from tasks.worker.process.fork_server import Ended, run_forked
from tasks.worker.process.threads import QUIET
from tasks.worker.search import encode_released

forks: socket.socket | None = None  # to a process with the library alone, set by the warm parent
_LAST_LINES = 3  # lines of a failed process's output in the message


class Encoded(NamedTuple):
    """Vectors of the exported model, unchanged, float32 (entries, width); width 0 without an entry.

    `loading`: seconds in which its process loaded the library.
    """

    items: np.ndarray
    queries: np.ndarray
    loading: float


class Consumer:
    """Embeds queries with an exported model in this process."""

    def __init__(self, folder: Path) -> None:
        """Open the folder. Raises ConfigError: its code is not this installation's own."""
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=needs_trust(folder))
        self._features = _features(folder).queries

    def queries(self, rows: pa.Table) -> np.ndarray:
        """Return vectors, float32 (rows, width), of the column `query` and the query features."""
        entries = cast(Any, _entries(rows, QUERY, self._features))
        return np.asarray(self._model.encode_query(entries, show_progress_bar=False), dtype=np.float32)


class Given(NamedTuple):
    """An exported model, and the entries to encode with it."""

    folder: Path
    queries: pa.Table  # the column `query`, and the query features
    items: pa.Table | None = None  # the column `text`, and the features
    entity: str | None = None  # the column that selects a text's prompt


def encode_apart(*given: Given) -> tuple[Encoded, ...]:
    """Encode with exported models in a fresh process, which has sentence-transformers but nothing of the pipeline.

    One process serves all models: if it can't be forked from one with the library, it takes seconds to start.

    Raises:
        ConfigError: the code in a folder is not this installation's own; nothing was opened.
        CodeError: a folder can't be opened, or can't encode its entries.
        HostError: the process was killed.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        arguments, made = [], []
        for number, (folder, queries, items, entity) in enumerate(given):
            features = _features(folder)
            entries = {
                "trust": needs_trust(folder),
                "items": [] if items is None else _entries(items, TEXT, features.items),
                "queries": _entries(queries, QUERY, features.queries),
                "item_entities": _entities(items, entity),
                "query_entities": _entities(queries, entity),
            }
            path = Path(name) / f"entries-{number}.json"
            path.write_text(json.dumps(entries, default=str), encoding="utf-8")
            made.append(Path(name) / f"vectors-{number}.npz")
            arguments += [str(folder), str(path), str(made[-1])]
        _run_apart(arguments, name)
        return tuple(_read(path) for path in made)


def _run_apart(arguments: list[str], folder: str) -> None:
    """Run encode_released.py in a new process, in this folder. Raises like `encode_apart`."""
    environment = {**os.environ, **QUIET}
    ended = None
    if forks is not None:
        with contextlib.suppress(OSError):  # that process was killed, and stays so for later attempts
            ended = run_forked(forks, arguments=arguments, folder=folder, environment=environment)
    if ended is None:
        done = subprocess.run(
            [sys.executable, "-P", inspect.getfile(encode_released), *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            encoding="utf-8",
        )
        ended = Ended(done.returncode, done.stdout)
    models = " and ".join(arguments[::3])
    if ended.code < 0:
        raise HostError(f"the process that encoded with {models} was ended by signal {-ended.code}")
    if ended.code:
        why = " ".join(ended.output.strip().splitlines()[-_LAST_LINES:])
        raise CodeError(f"the exported model in {models} can't be used by a program of its own: {why}")


def _read(path: Path) -> Encoded:
    with np.load(path) as found:
        return Encoded(items=found["items"], queries=found["queries"], loading=found["loading"].item())


class _Features(NamedTuple):
    """Names of the item features, and the subset that queries have."""

    items: tuple[str, ...]
    queries: tuple[str, ...]


def _features(folder: Path) -> _Features:
    if not (folder / FILE).is_file():
        return _Features((), ())
    table = FeatureTable.model_validate_json((folder / FILE).read_text(encoding="utf-8"))
    items = (*table.numeric, *table.categorical)
    return _Features(items, tuple(name for name in items if name in table.query))


def _entities(table: pa.Table | None, column: str | None) -> list[str | None]:
    """Return the entity of each row, or None."""
    if table is None or column is None or column not in table.column_names:
        return [None] * (0 if table is None else table.num_rows)
    return table[column].cast(pa.string()).to_pylist()


def _entries(table: pa.Table, text: str, features: tuple[str, ...]) -> list[Any]:
    """Return strings, or dicts with features if the table has any of the model's."""
    there = [name for name in features if name in table.column_names]
    if not there:
        return cast(list[Any], table[text].to_pylist())
    columns = {"text": table[text].to_pylist(), **{name: table[name].to_pylist() for name in there}}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
