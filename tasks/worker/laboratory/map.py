"""`python -m tasks.worker.laboratory.map`: a release in two dimensions, and the items that moved since an earlier one.

Standard input has four lines of JSON: the release, the current release, the earlier one or null, and the configuration
of the release's run.

An item is in the sample by the hash that also chooses its partition, so two releases sample the same items, and a
release of any size is read in a few shards. A map gives the same numbers for the same vectors: seeds are fixed, and
equal distances are ordered by place.
"""

import argparse
import sys
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.factory import open_store
from infra.store.manifest import expect_manifest, open_entry, read_manifest
from tasks.contracts.maps import MappedItem, Mover, Moves, ReleaseMap
from tasks.contracts.runs import Release
from tasks.data.layers import Layers, layers_of
from tasks.data.rows import CONTENT, ITEM_ID, TEXT, VECTOR, partition_of
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import as_matrix, expect_vectors
from tasks.worker.laboratory.geometry import kept, neighbours, on_a_map, separation, turned
from tasks.worker.search.answering import Answering, answer

MOST_ITEMS = 5000  # a page with more is slow to draw, and comparing all with all takes seconds
BATCH_ITEMS = 8192
NEIGHBOURS = 10
MOVERS = 20
SHOWN = 3  # lost and new neighbours of a mover
LETTERS = 90  # shown of a text
DECIMALS = 2  # in a place; a map is about 100 wide
COSINE_DECIMALS = 4


class Sample(NamedTuple):
    """Items by id. `vectors` is float32 (items, width)."""

    ids: list[str]
    texts: list[str]
    contents: list[str]
    vectors: np.ndarray

    def at(self, rows: list[int]) -> "Sample":
        """Return the sample of some rows."""
        ids, texts, contents = ([each[row] for row in rows] for each in (self.ids, self.texts, self.contents))
        return Sample(ids, texts, contents, self.vectors[rows])


def sampling(vectors: int) -> int:
    """Return the power of two that samples at most about MOST_ITEMS items, and at least half as many if there are."""
    every = 1
    while vectors > every * MOST_ITEMS:
        every *= 2
    return every


def read_sample(store: Store, release: Release, every: int) -> Sample:
    """Return the items of a release whose hash is a multiple of `every`, a power of two.

    Raises:
        MissingFolder, CorruptFolder: the vectors are missing, damaged, or not the released ones.
    """
    manifest = read_manifest(store, release.vectors_prefix)
    expect_manifest(store, release.vectors_prefix, manifest, release.vectors_sha256)
    expect_vectors(store, release.vectors_prefix, manifest, release.model.of_items.version)
    layers, batches = layers_of(manifest), list[pa.Table]()
    for number in _partitions(release, every):
        if files := layers.get(number):
            part = Layers.open([open_entry(store, release.vectors_prefix, entry) for entry in files])
            read = part.batches([ITEM_ID, TEXT, CONTENT, VECTOR], BATCH_ITEMS)
            batches.extend(_chosen(batch, every) for batch in read)
    if not batches:
        return Sample([], [], [], np.zeros((0, manifest.facts["width"]), dtype=np.float32))
    found = pa.concat_tables(batches).sort_by(ITEM_ID)
    ids, texts, contents = (found[name].to_pylist() for name in (ITEM_ID, TEXT, CONTENT))
    return Sample(ids, texts, contents, as_matrix(found[VECTOR]).astype(np.float32))


def read_features(store: Store, release: Release, every: int, names: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the features of the sampled items by id, in the order of `names`; a missing one is empty.

    Raises:
        MissingFolder, CorruptFolder: the catalogue is missing or damaged.
    """
    if not names:
        return {}
    catalogue, found = Catalogue(store, release.catalogue), dict[str, tuple[str, ...]]()
    for number in _partitions(release, every):
        for items in catalogue.items(number, BATCH_ITEMS):
            chosen = _chosen(items.select([ITEM_ID, *(name for name in names if name in items.column_names)]), every)
            for row in chosen.to_pylist():
                values = (row.get(name) for name in names)
                found[row[ITEM_ID]] = tuple("" if value is None else str(value) for value in values)
    return found


def _partitions(release: Release, every: int) -> range:
    """Return the partitions that hold the sample: both numbers are powers of two."""
    partitions = release.catalogue.partitions
    return range(0, partitions, min(every, partitions))


def _chosen(items: pa.Table, every: int) -> pa.Table:
    if every == 1:
        return items
    return items.filter(pa.array([partition_of(each, every) == 0 for each in items[ITEM_ID].to_pylist()]))


def main() -> None:
    """Print the map."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker.laboratory.map", description=__doc__)
    parser.add_argument("--workspace", required=True)
    arguments = parser.parse_args()

    def work(give: Answering) -> None:
        store = open_store(arguments.workspace)
        release, current = (Release.model_validate_json(sys.stdin.readline()) for _ in range(2))
        line = sys.stdin.readline()
        before = Release.model_validate_json(line) if line.strip() != "null" else None
        config = Config.model_validate_json(sys.stdin.readline())
        give(map_of(store, release, current, before, config.features.categorical))

    answer(work)


def map_of(
    store: Store, release: Release, current: Release, before: Release | None, features: tuple[str, ...]
) -> ReleaseMap:
    """Return the map of a release.

    Args:
        current: the current release. Items that it no longer holds are left out of an earlier one's map.
        before: the release to compare with; None: no comparison.
        features: categorical features of the items.

    Raises:
        MissingFolder, CorruptFolder: vectors or a catalogue are missing or damaged.
    """
    every = max(sampling(each.vectors) for each in (release, before) if each is not None)
    sample = read_sample(store, release, every)
    if current.number != release.number:
        live = set(read_sample(store, current, every).ids)
        sample = sample.at([row for row, item_id in enumerate(sample.ids) if item_id in live])
    values = read_features(store, release, every, features)
    near = neighbours(sample.vectors, min(NEIGHBOURS, max(len(sample.ids) - 1, 0)))
    places = on_a_map(sample.vectors).round(DECIMALS) + 0.0  # no minus zero
    items = tuple(
        MappedItem(item_id=item_id, text=_short(text), x=x, y=y, values=values.get(item_id, ("",) * len(features)))
        for item_id, text, (x, y) in zip(sample.ids, sample.texts, places.tolist(), strict=True)
    )
    return ReleaseMap(
        release=release.number,
        vectors=release.vectors,
        every=every,
        features=features,
        separation=tuple(separation(near, [item.values[place] for item in items]) for place in range(len(features))),
        items=items,
        moves=moves(sample, read_sample(store, before, every), places, before.number) if before is not None else None,
    )


def moves(sample: Sample, earlier: Sample, places: np.ndarray, number: int) -> Moves:
    """Compare the neighbours of the items that both samples hold.

    Vectors of two models can't be compared, their neighbours can: no turn of the space changes them.

    Args:
        places: of the items of `sample` on the map, (items, 2).
    """
    row_of = {item_id: row for row, item_id in enumerate(earlier.ids)}
    both = [(row, row_of[item_id]) for row, item_id in enumerate(sample.ids) if item_id in row_of]
    after, before = sample.at([row for row, _ in both]), earlier.at([row for _, row in both])
    count = min(NEIGHBOURS, max(len(both) - 1, 0))
    if not count:
        return Moves(before=number, shared=len(both), neighbours=0, kept=None, movers=())
    near = [neighbours(each.vectors, count) for each in (before, after)]
    same = kept(*near)
    counts = same[:, :, 1].sum(axis=1)
    cosines = np.einsum("nw,nw->n", turned(before.vectors, after.vectors), after.vectors).round(COSINE_DECIMALS)
    order = [int(row) for row in np.lexsort((cosines, counts)) if counts[row] < count][:MOVERS]
    now = places[[row for row, _ in both]]
    then = now[near[0]].mean(axis=1).round(DECIMALS) + 0.0
    movers = tuple(
        Mover(
            item_id=after.ids[row],
            text=_short(after.texts[row]),
            same_content=after.contents[row] == before.contents[row],
            kept=int(counts[row]),
            x=float(now[row, 0]),
            y=float(now[row, 1]),
            x_before=float(then[row, 0]),
            y_before=float(then[row, 1]),
            before=_texts(after.texts, near[0][row][~same[row, :, 0]]),
            after=_texts(after.texts, near[1][row][~same[row, :, 1]]),
        )
        for row in order
    )
    return Moves(before=number, shared=len(both), neighbours=count, kept=float(counts.mean()) / count, movers=movers)


def _texts(texts: list[str], rows: np.ndarray) -> tuple[str, ...]:
    return tuple(_short(texts[row]) for row in rows[:SHOWN].tolist())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LETTERS else f"{line[: LETTERS - 1]}…"


if __name__ == "__main__":
    main()
