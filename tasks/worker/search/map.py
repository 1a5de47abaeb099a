"""`python -m tasks.worker.search.map`: a release in two dimensions, and the items that moved since an earlier one.

Standard input has four lines of JSON: the release, the current release, the earlier one or null, and the configuration
of the release's run.
"""

import argparse
import sys

import numpy as np

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.maps import MappedItem, Mover, Moves, ReleaseMap
from tasks.contracts.runs import Release
from tasks.worker.search.answering import Answering, answer
from tasks.worker.search.projection import kept, neighbours, on_a_map, separation, turned
from tasks.worker.search.sample import Sample, read_features, read_sample, sampling

NEIGHBOURS = 10
MOVERS = 20
SHOWN = 3  # lost and new neighbours of a mover
LETTERS = 90  # shown of a text
DECIMALS = 2  # in a place; a map is about 100 wide
COSINE_DECIMALS = 4


def main() -> None:
    """Print the map."""
    parser = argparse.ArgumentParser(prog="python -m tasks.worker.search.map", description=__doc__)
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
