"""Prove that the exported model gives items and queries the same vectors as the pipeline.

The exported model runs in its own process, and its vectors are not normalised before the comparison. Of a refresh only
the new files are checked; the others are the files of the release before. Until one in a hundred items has changed,
holdout queries do not search all vectors again.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import (
    CorruptFolder,
    FileEntry,
    Manifest,
    MissingFolder,
    check_sizes,
    expect_manifest,
    open_entry,
)
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.references import CatalogueRef
from tasks.contracts.search import Changes, ListedItem, SharedSearch
from tasks.data.layers import Layers, layers_of
from tasks.data.rows import CONTENT, ITEM_ID, QUERY, TEXT, VECTOR, partition_of
from tasks.foundation.errors import CodeError, ConfigError
from tasks.worker.catalogue.changed_items import changed_items
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import as_matrix
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.features import Side, encode_features
from tasks.worker.model.tokens import prompts_of, tokenize
from tasks.worker.process.job import Job
from tasks.worker.search.consumer import Given, encode_apart
from tasks.worker.search.index import Index
from tasks.worker.training.checkpoint import ModelParts

NORM_TOLERANCE = 1e-3
COLLAPSED = 0.999  # length of the mean of unit vectors; its square is their mean cosine
BATCH_ITEMS = 8192
pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


class Proof(NamedTuple):
    """Cosines, float32 (items,) and (queries,), between the exported model's vectors and the pipeline's.

    `vectors` float32 (all queries, width) are the exported model's vectors of all queries, also of queries not
    compared; `vectors_before` are the previous release's, None without one.
    """

    items: np.ndarray
    queries: np.ndarray
    vectors: np.ndarray
    vectors_before: np.ndarray | None


def prove(
    job: Job,
    inputs: ReleaseInputs,
    index: Index,
    parts: ModelParts,
    queries: pa.Table,
    folder: Path,
    folder_before: Path | None,
) -> Proof:
    """Compare the vectors of `release.probe_rows` items, by chance, and of the first queries; encode all queries.

    Items that another model embeds are embedded by it again, as its export was compared when it was released.

    Args:
        index: the released vectors.
        queries: from `holdout_queries`.
        folder: the exported model.
        folder_before: the previous release's model, which encodes all queries too; None: no previous release.

    Raises:
        CodeError: a cosine is below `release.min_cosine`, a vector is not of unit length, or the folder can't be used.
        ConfigError: a cosine is below it because all vectors are nearly the same.
    """
    rows = job.config.release.probe_rows
    items, released = sample_items(job.store, inputs, index, rows)
    entity = job.config.features.entity
    before = [] if folder_before is None else [Given(folder_before, queries, entity=entity)]
    given = Given(folder, queries, items if parts.items is None else None, parts.features.entity)
    exported, *earlier = encode_apart(given, *before)
    job.clock.count_as("booting", exported.loading)
    vectors_before = earlier[0].queries if earlier else None
    released /= np.linalg.norm(released, axis=1, keepdims=True)  # float16 vectors are not exactly of unit length
    ours = exported.items if parts.items is None else trained_vectors(job, parts, items, "item")
    of_items = compared(job, ours, released, "item", items[ITEM_ID], "the released one")
    if not queries.num_rows:
        return Proof(of_items, np.zeros(0, dtype=np.float32), exported.queries, vectors_before)
    first = queries.slice(0, rows)
    trained = trained_vectors(job, parts, first, "query")
    of_queries = compared(job, exported.queries[:rows], trained, "query", first[QUERY], "that of the trained one")
    return Proof(of_items, of_queries, exported.queries, vectors_before)


def trained_vectors(job: Job, parts: ModelParts, table: pa.Table, side: Side) -> np.ndarray:
    """Return the trained model's unit vectors of queries or items, float32 (rows, width)."""
    # The proof reproduces the released folder as its consumers run it: in fp32 on a processor, for any training device.
    parts = parts.of(side)
    with open_accelerator("cpu", job.rank, job.config, "fp32") as accelerator:
        settings = embed_settings(job.config, accelerator, "fp32")
        longest = job.config.infer.max_tokens
        prompt = prompts_of(table, side, parts.model.shape.prompts, parts.features.entity)
        texts = table[QUERY if side == "query" else TEXT].to_pylist()
        tokens = tokenize(parts.tokenizer, texts, longest, parts.model.pad, prompt)
        features = encode_features(parts.features, table, side)
        return embed(parts.model, accelerator, tokens, features, settings, shared=False)


def compared(
    job: Job, exported: np.ndarray, ours: np.ndarray, what: str, names: pa.ChunkedArray, compared: str
) -> np.ndarray:
    """Return the cosines of vectors, float32 (entries,); `ours` are unit vectors. Raises like `prove`."""
    lengths = np.linalg.norm(exported, axis=1)
    longest = int(np.argmax(np.abs(lengths - 1.0)))
    if not abs(lengths[longest] - 1.0) < NORM_TOLERANCE:  # true for NaN too
        raise CodeError(
            f"the exported model gives {what} {names[longest].as_py()!r} a vector of length {lengths[longest]:.6f}, "
            "and not of unit length; nothing was released"
        )
    cosines: np.ndarray = (ours * exported).sum(axis=1)
    worst, least = int(np.argmin(cosines)), job.config.release.min_cosine
    if not cosines[worst] >= least:  # true for NaN too
        if len(ours) > 1 and np.linalg.norm(ours.mean(axis=0)) > COLLAPSED:  # rounding decides such directions
            raise ConfigError(
                f"the trained model gives every {what} nearly the same vector, so its training diverged; lower "
                f"train.learning_rate ({job.config.train.learning_rate:g}), and train again; nothing was released"
            )
        raise CodeError(
            f"the exported model gives {what} {names[worst].as_py()!r} a vector with cosine {cosines[worst]:.6f} to "
            f"{compared}, below release.min_cosine {least}; nothing was released"
        )
    return cosines


def sample_items(store: Store, inputs: ReleaseInputs, index: Index, rows: int) -> tuple[pa.Table, np.ndarray]:
    """Return random items of all shards with their features, and their released vectors, float32 (items, width).

    All items if they are at most `rows`. The same release gives the same sample.
    """
    chance = np.random.default_rng(int(inputs.model.checkpoint.sha256[:16], 16))
    places = np.arange(index.vectors)
    if index.vectors > rows:
        places = np.sort(chance.choice(index.vectors, rows, replace=False))
    chosen = index.items(places)
    ids = pa.array([chosen[place].item_id for place in places.tolist()], pa.string())
    catalogue, found = Catalogue(store, inputs.catalogue), list[pa.Table]()
    for number in sorted({partition_of(item, inputs.catalogue.partitions) for item in ids.to_pylist()}):
        found += [
            table.filter(pc.is_in(table[ITEM_ID], value_set=ids)) for table in catalogue.items(number, BATCH_ITEMS)
        ]
    items = pa.concat_tables(found)
    return items, index.at(places[pc.index_in(items[ITEM_ID].combine_chunks(), value_set=ids).to_numpy()])


UNSEARCHED_SHARE = 0.01  # share of the vectors; beyond it, the metrics of the release before say too little
LISTED = 10  # new and gone items
_BATCH = 8192


class ReleaseChanges(NamedTuple):
    """The items of a refresh that the release before lacks, alone has, or has with another text or feature."""

    before: int  # vectors of the release before
    new: dict[str, str]  # id -> text
    gone: dict[str, str]
    changed: int

    def changes(self, number: int, after: int) -> Changes:
        """Return them as the changes since release `number`, without ranks: the model is the same."""
        shared = SharedSearch(items=self.before - len(self.gone), queries=0, metrics_before={}, metrics_after={})
        new, gone = (
            tuple(ListedItem(item_id=item_id, text=items[item_id]) for item_id in sorted(items)[:LISTED])
            for items in (self.new, self.gone)
        )
        return Changes(
            before=number, after=None, same_model=True, queries=0, metrics_before={}, metrics_after={}, shared=shared,
            items_before=self.before, items_after=after, new_items=len(self.new), gone_items=len(self.gone),
            changed_items=self.changed, same_item_cosine=None, overlap_at_10=None, new=new, gone=gone, wins=(),
            losses=(),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Vectors:
    """The vectors of a release and their items; each manifest is read once, however many partitions are looked up."""

    store: Store
    prefix: str
    manifest: Manifest

    @functools.cached_property
    def layers(self) -> Mapping[int, tuple[FileEntry, ...]]:
        """The files by partition."""
        return layers_of(self.manifest)

    @functools.cached_property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.store, CatalogueRef.model_validate(self.manifest.facts["catalogue"]))

    def hashes(self, number: int) -> list[str]:
        """Return the SHA-256 of each file of a partition, the oldest first."""
        return [entry.sha256 for entry in self.layers.get(number, ())]

    def bad(self, number: int) -> int:
        """Return the number of a partition's items without a vector; of an old manifest, without counts, as if one."""
        return self.manifest.facts["shards"][number][1] if "shards" in self.manifest.facts else 1

    def open(self, entries: Iterable[FileEntry]) -> list[Path]:
        """Return the local paths of some files. Raises CorruptFolder: one is gone or damaged."""
        return [open_entry(self.store, self.prefix, entry) for entry in entries]

    def texts(self, number: int, read: bool) -> dict[str, tuple[str, str]]:
        """Return the content hash and the text of each item of a partition, by id.

        Args:
            read: take them from the vectors, not from the catalogue.
        """
        found: dict[str, tuple[str, str]] = {}
        layers = self.layers.get(number, ())
        if read:
            tables = iter([Layers.open(self.open(layers)).table([ITEM_ID, CONTENT, TEXT])] if layers else [])
        else:
            tables = self.catalogue.items(number, _BATCH)
        for table in tables:
            columns = (table[name].to_pylist() for name in (ITEM_ID, CONTENT, TEXT))
            found.update({item_id: (content, text) for item_id, content, text in zip(*columns, strict=True)})
        return found


class FewChanges(NamedTuple):
    """The partitions whose files the refreshed release lacks."""

    before: Vectors  # the release that is refreshed
    now: Vectors
    items: ReleaseChanges
    partitions: tuple[int, ...]  # with new files; the first of all if only items without a vector have changed
    unsearched: int  # items that have changed since all vectors were searched


def few_changes(store: Store, inputs: ReleaseInputs) -> FewChanges | None:
    """Return the changed partitions of a refresh; None if all vectors must be searched, as for a new model.

    Raises:
        MissingFolder, CorruptFolder: the vectors are not complete, or a file that they name is gone.
    """
    if inputs.carried is None:
        return None
    of, now = inputs.carried.release, Vectors(store, inputs.vectors, check_sizes(store, inputs.vectors))
    there = now.layers.keys()
    try:
        expect_manifest(store, of.model_prefix, check_sizes(store, of.model_prefix), of.model_sha256)
        before = Vectors(store, of.vectors_prefix, check_sizes(store, of.vectors_prefix))
        expect_manifest(store, before.prefix, before.manifest, of.vectors_sha256)
        facts = before.manifest.facts
        if facts["catalogue"]["partitions"] != now.manifest.facts["catalogue"]["partitions"]:
            return None
        changed = [n for n in sorted(before.layers.keys() | there) if before.hashes(n) != now.hashes(n)]
        unsearched = inputs.carried.unsearched
        found = ReleaseChanges(facts["vectors"], {}, {}, 0)
        for number in changed:
            # A catalogue has the items of its vectors, so no vector is read, unless an item got none.
            some_bad = any(each.bad(number) for each in (before, now))
            found = _with_partition(found, *(each.texts(number, some_bad) for each in (before, now)))
            unsearched = inputs.carried.unsearched + len(found.new) + len(found.gone) + found.changed
            if unsearched > UNSEARCHED_SHARE * now.manifest.facts["vectors"]:
                return None
    except (MissingFolder, CorruptFolder) as error:
        print(f"all vectors are searched, since release {of.number} is damaged: {error}", flush=True)
        return None
    partitions = tuple(number for number in changed if number in there) or tuple(there)[:1]
    return FewChanges(before, now, found, partitions, unsearched)


def _with_partition(
    found: ReleaseChanges, before: dict[str, tuple[str, str]], now: dict[str, tuple[str, str]]
) -> ReleaseChanges:
    new = {item_id: now[item_id][1] for item_id in now.keys() - before.keys()}
    gone = {item_id: before[item_id][1] for item_id in before.keys() - now.keys()}
    changed = sum(before[item_id][0] != now[item_id][0] for item_id in before.keys() & now.keys())
    return found._replace(new=found.new | new, gone=found.gone | gone, changed=found.changed + changed)


def prove_changes(job: Job, inputs: ReleaseInputs, few: FewChanges, parts: ModelParts) -> np.ndarray:
    """Check the items and vectors of the new files, and embed a sample of them again.

    Returns:
        Cosines, float32 (items,), between the vectors that the model gives the sample now and the released ones.

    Raises:
        CodeError: a file lacks an item or has another, a vector is not of unit length, or a cosine is below
            `release.min_cosine`; nothing was released.
        CorruptFolder: a file is damaged.
    """
    catalogue, left = Catalogue(job.store, inputs.catalogue), job.config.release.probe_rows
    samples: list[tuple[pa.Table, np.ndarray]] = []
    for number, whole in [*((number, False) for number in few.partitions), (few.partitions[0], True)]:
        if whole and samples:
            break  # only if nothing but removed items is in the new files
        table = _proven(job, inputs, few, catalogue, number, whole)
        every = pa.concat_tables(
            [table.schema.empty_table(), *catalogue.items(number, _BATCH)], promote_options="default"
        )
        items = every.filter(pc.is_in(every[ITEM_ID], value_set=table[ITEM_ID].combine_chunks()))
        if left and items.num_rows:
            samples.append((items.slice(0, left), as_matrix(table[VECTOR].slice(0, left)).astype(np.float32)))
            left -= samples[-1][0].num_rows
    items = pa.concat_tables([table for table, _ in samples])
    released = np.concatenate([vectors for _, vectors in samples])
    released /= np.linalg.norm(released, axis=1, keepdims=True)  # float16 vectors are not exactly of unit length
    return compared(
        job, trained_vectors(job, parts, items, "item"), released, "item", items[ITEM_ID], "the released one"
    )


def _proven(job: Job, inputs: ReleaseInputs, few: FewChanges, items: Catalogue, number: int, whole: bool) -> pa.Table:
    """Return ITEM_ID, CONTENT and VECTOR of the items in a partition's new files, by item id.

    Files that the release before has too were proved with it; the files over them must be the catalogues' difference.

    Args:
        items: the catalogue of the new release.
        whole: prove all files of the partition.

    Raises:
        CodeError: the files don't hold the items of the catalogue.
        CorruptFolder: a file is damaged.
    """
    earlier, files = few.before.layers.get(number, ()), few.now.layers[number]
    pairs = zip(few.before.hashes(number), few.now.hashes(number), strict=False)
    same = 0 if whole else sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    new = files[same:] or files
    paths = few.now.open(new)
    table = Layers.open(paths, above=new != files).table([ITEM_ID, CONTENT, VECTOR])
    if new == files:
        expected = _contents(items.items(number, _BATCH))
        found = dict.fromkeys(expected) | _contents([table])
    else:
        merged_away = few.before.open(earlier[same:])
        expected = _contents([pq.read_table(path, columns=[ITEM_ID, CONTENT]) for path in merged_away])
        if (changed := changed_items(few.before.catalogue, items, number)) is not None:
            expected |= _contents([changed.changed]) | dict.fromkeys(changed.gone)
        found = _contents([pq.read_table(path, columns=[ITEM_ID, CONTENT]) for path in paths])
    differ = [item_id for item_id in expected.keys() | found.keys() if found.get(item_id) != expected.get(item_id)]
    none = [item_id for item_id in differ if item_id in found and found[item_id] is None and item_id in expected]
    if len(none) != few.now.bad(number) or len(differ) != len(none) or found.keys() != expected.keys():
        raise CodeError(
            f"{paths[-1]} has vectors of other items than {job.store.uri}/{inputs.catalogue.prefix}; run infer again; "
            "nothing was released"
        )
    return table


def _contents(tables: Iterable[pa.Table]) -> dict[str, str | None]:
    """Return the content hash of each item in tables, the newest last; None: the item is removed."""
    found: dict[str, str | None] = {}
    for table in tables:
        found.update(zip(table[ITEM_ID].to_pylist(), table[CONTENT].to_pylist(), strict=True))
    return found
