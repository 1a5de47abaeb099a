"""A workspace whose items change hour by hour, refreshed by the worker's own code with an encoder that hashes texts."""

import datetime as dt
import hashlib
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit, read_manifest
from tasks.contracts.jobs import InferInputs
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.references import CatalogueRef, CheckpointRef, FeedRef, ModelRef, SpanRef
from tasks.contracts.runs import Release
from tasks.contracts.workspace import NUMBER
from tasks.data.rows import FEED_KIND, part_name
from tasks.runs.releases import Numbered
from tasks.worker import infer
from tasks.worker.catalogue.build import build
from tasks.worker.catalogue.sources import Sources
from tests.support.workspace.jobs import infer_alone, make_job, tiny_config
from tests.support.workspace.releases import make_current
from tests.support.workspace.specs import MADE_BY

MODEL = ModelRef(version="main-00000001", checkpoint=CheckpointRef(prefix="lineages/main/1", step=1, sha256="0"))
START = dt.datetime(2026, 11, 22, tzinfo=dt.UTC)
Items = dict[str, str]  # id -> text


def vector_of(text: str, width: int) -> np.ndarray:
    drawn = np.random.default_rng(int(hashlib.md5(text.encode()).hexdigest()[:12], 16)).normal(size=width)
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


class Shop:
    """A workspace whose items change; each refresh is a release."""

    def __init__(self, folder: Path, width: int, items: int, partitions: int, config: Config | None = None) -> None:
        self.store, self.width, self.partitions = DirectoryStore(folder / "workspace"), width, partitions
        self.config, self.many = config or tiny_config(), items
        self.items: Items = {f"i{number:05d}": f"item {number}" for number in range(items)}
        self.chance, self.releases = np.random.default_rng(1), list[Release]()
        self.of: dict[int, Items] = {}
        self._built: dict[str, tuple[tuple[FeedRef, ...], Items]] = {}  # by the catalogue's folder
        self.embedded: list[str] = []
        self.inputs: InferInputs | None = None  # the last refresh had them

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = torch.nn.Identity()
        model.width, model.pad, model.shape = self.width, 0, SimpleNamespace(prompts=None)  # type: ignore[assignment]
        parts = SimpleNamespace(model=model, tokenizer=None, features=SimpleNamespace(entity=None))
        monkeypatch.setattr(infer, "load_parts", lambda *_: parts)
        monkeypatch.setattr(infer, "prompts_of", lambda *_: "")
        monkeypatch.setattr(infer, "tokenize", lambda _, texts, *__: texts)
        monkeypatch.setattr(infer, "encode_features", lambda *_: None)

        def embed(_: object, __: object, texts: list[str], *___: object, **____: object) -> np.ndarray:
            self.embedded += texts
            return np.stack([vector_of(text, self.width) for text in texts])

        monkeypatch.setattr(infer, "embed", embed)

    def change(self, changed: int, gone: int = 0, new: int = 0) -> None:
        number = len(self.releases)
        for item in self.chance.choice(sorted(self.items), changed, replace=False):
            self.items[str(item)] = f"{item} of {number}"
        for item in self.chance.choice(sorted(self.items), gone, replace=False):
            del self.items[str(item)]
        for each in self.chance.integers(0, 2 * self.many, new):  # some come back
            self.items[f"i{each:05d}"] = f"item {each} in {number}"

    def catalogue(self, over: Release | None) -> CatalogueRef:
        """Build the catalogue of the items on the one of a release, by a feed of the items that differ from it."""
        feeds, before = self._built[over.catalogue.prefix] if over else ((), {})
        changed = sorted(item for item, text in self.items.items() if before.get(item) != text)
        gone = sorted(before.keys() - self.items.keys())
        texts = [*(self.items[item] for item in changed), *(None for _ in gone)]
        time, number = START + dt.timedelta(hours=len(self._built)), len(self._built) + 1
        feed = FeedRef(name=f"hour-{number}", version=1)
        table = pa.table(
            {
                "item_id": [*changed, *gone],
                "item": pa.array(texts, pa.string()),
                "time": pa.array([time] * len(texts), pa.timestamp("us", tz="UTC")),
                "deleted": [text is None for text in texts],
            }
        )
        with tempfile.TemporaryDirectory() as folder:
            pq.write_table(table, Path(folder) / part_name(0))
            commit(self.store, feed.prefix, Path(folder), FEED_KIND, {"rows": table.num_rows})
        infer_config = self.config.infer.model_copy(update={"shard_rows": -(-3 * self.many // (2 * self.partitions))})
        config = self.config.model_copy(update={"infer": infer_config})
        made = build(self.store, Sources((), (*feeds, feed)), (over.catalogue,) if over else (), config)
        self._built[made.prefix] = ((*feeds, feed), dict(self.items))
        return made

    def refresh(self, over: Release | None) -> InferOutcome:
        """Release the items as they are now, over the vectors of an earlier release."""
        number, catalogue = len(self.releases) + 1, self.catalogue(over)
        inputs = InferInputs(
            catalogue=catalogue,
            model=MODEL,
            reuse=over.vectors_prefix if over else None,
            reuse_sha256=over.vectors_sha256 if over else None,
            turn=number,
            folder=f"{catalogue.prefix.rpartition('/')[2]}-{over.number if over else 0}",
        )
        made = self.embed(inputs, number)
        release = Release(
            number=number,
            previous=over.number if over else None,
            model_before=None,
            span=SpanRef(name="2026-01", version=1),
            run_key=f"{number:016x}",
            model=MODEL,
            model_prefix=f"models/{MODEL.version}",
            vectors_prefix=made.prefix,
            vectors=made.vectors,
            catalogue=catalogue,
            metrics={},
            created_at="2026-11-22T12:00:00+00:00",
            model_sha256="0",
            vectors_sha256=read_manifest(self.store, made.prefix).sha256,
            ids_sha256=made.ids_sha256,
            **MADE_BY,
        )
        self.store.write(NUMBER.key(run=release.run_key), Numbered(number=number).to_json())
        self.store.write(f"releases/{number}.json", release.to_json())
        make_current(self.store, release)
        self.releases.append(release)
        self.of[number] = dict(self.items)
        return made

    def embed(self, inputs: InferInputs, number: int, attempt: int = 1) -> InferOutcome:
        self.embedded, self.inputs = [], inputs
        return infer_alone(make_job(self.store, self.config, inputs, run_key=f"refresh-{number}", attempt=attempt))

    def rows(self, release: Release) -> list[tuple[Any, ...]]:
        """(item id, text, vector) as a program outside reads them: docs/data.md."""
        folder, root = release.vectors_prefix, self.store.root
        entries = read_manifest(self.store, folder).model_dump(mode="json")["files"]
        files = [str(root / (entry.get("at") or f"{folder}/{entry['name']}")) for entry in entries]
        return (
            duckdb.connect()
            .sql(f"""
            SELECT item_id, text, vector FROM (
                SELECT * FROM read_parquet({files}, filename = true) QUALIFY row_number()
                    OVER (PARTITION BY item_id ORDER BY list_position({files}, filename) DESC) = 1
            ) WHERE content_sha256 IS NOT NULL ORDER BY item_id
        """)
            .fetchall()
        )

    def check(self, release: Release) -> None:
        """Every item of the release has its vector, once, and no other has one."""
        found, expected = self.rows(release), self.of[release.number]
        assert [(item_id, text) for item_id, text, _ in found] == sorted(expected.items())
        vectors = np.array([vector for *_, vector in found], dtype=np.float32)
        np.testing.assert_array_equal(vectors, np.stack([vector_of(text, self.width) for _, text, _ in found]))

    def bytes(self) -> int:
        return sum(self.store.sizes("vectors").values())
