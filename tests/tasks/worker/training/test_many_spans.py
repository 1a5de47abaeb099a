"""A training after many spans: the weights that it had when it read their texts, and no more work than after few."""

import functools
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import RowsRef
from tasks.worker import train
from tests.support.workspace.jobs import (
    CLASSIFIER,
    change_rows,
    make_job,
    tensors_of,
    tiny_config,
    with_keys,
    write_rows,
)

CONFIG = tiny_config(CLASSIFIER, "heads.contrastive.positives_only=true", "train.evaluate_rows=8")


class CountedStore(DirectoryStore):
    """A directory that counts the bytes read, by folder or file."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.bytes: Counter[str] = Counter()

    def read(self, key: str) -> bytes:
        data = super().read(key)
        self.bytes[key] += len(data)
        return data

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        path = super().local(key, names)
        files = path.rglob("*") if path.is_dir() else [path]
        self.bytes[key] += sum(file.stat().st_size for file in files if file.is_file())
        return path


def write_spans(store: DirectoryStore, many: int, folder: Path) -> tuple[RowsRef, ...]:
    """Spans of equal size with few queries, each of which has other items in each span."""
    rows = write_rows(store, "2025-12", 160, folder)
    return tuple(
        change_rows(store, rows, f"2026-{step:02d}", functools.partial(_ask, step), folder)
        for step in range(1, many + 1)
    )


def _ask(step: int, rows: pa.Table) -> pa.Table:
    random = np.random.default_rng(step)
    queries = pa.array([f"something {number}" for number in random.integers(0, 20, rows.num_rows)])
    return rows.set_column(rows.column_names.index("query"), "query", queries)


def trained(store: DirectoryStore, refs: tuple[RowsRef, ...], run_key: str) -> dict[str, torch.Tensor]:
    *history, own = refs
    inputs = TrainInputs(rows=(own,), history=tuple(history), parent=None)
    config = CONFIG.model_copy(update={"lineage": run_key})
    return tensors_of(store, train.run(make_job(store, config, inputs, run_key=run_key)).checkpoint)


def test_keys_give_the_weights_that_the_texts_gave(tmp_path: Path):
    store = DirectoryStore(tmp_path / "workspace")
    refs = write_spans(store, 3, tmp_path)
    by_texts, alone = trained(store, refs, "texts"), trained(store, refs[-1:], "alone")
    with_theirs = with_keys(store, CONFIG, *refs)
    for ref in refs[:-1]:
        store.delete(ref.prefix)
    by_keys = trained(store, with_theirs, "keys")
    assert by_keys.keys() == by_texts.keys()
    assert all(torch.equal(value, by_texts[name]) for name, value in by_keys.items())
    assert not all(torch.equal(value, by_texts[name]) for name, value in alone.items()), "earlier pairs do matter"


def test_after_ten_spans_it_reads_as_much_as_after_three(tmp_path: Path):
    read, keys = [], []
    for many in (3, 10):
        store = CountedStore(tmp_path / f"workspace-{many}")
        refs = with_keys(store, CONFIG, *write_spans(store, many, tmp_path / str(many)))
        store.bytes.clear()
        trained(store, refs, "main")
        assert {key for key in store.bytes if "/rows/" in key and "MANIFEST" not in key} == {refs[-1].prefix}
        keys.append(sum(count for key, count in store.bytes.items() if "/keys/" in key))
        read.append(store.bytes.total() - keys[-1])
    assert abs(read[1] / read[0] - 1) <= 0.05
    assert keys[1] < 4 * keys[0], "10 spans of keys, and not each of them more than once"
