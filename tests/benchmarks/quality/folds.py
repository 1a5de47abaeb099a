"""A data set with another part of its rows held out each time, so that in the end each row was held out once.

A lineage holds out the groups whose names have a small hash. Here a column names the group of each row: one name for
the part that is held out, another for all other rows. Unseen queries would be held out each time, so the share is tiny.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from tasks.data.files.formats import Format
from tasks.data.files.sources import SourceReader
from tasks.data.rows import ITEM, QUERY, QUERY_AND_ITEM, below_share, group_hashes, hold_places
from tests.benchmarks.quality.training import DataSet

GROUP = "part"
SHARE = 1e-4
# Of a training over a data set that `folds` gave:
SETTINGS = (f"evaluate.group={GROUP}", f"evaluate.holdout_share={SHARE!r}")


def folds(data: DataSet, share: float) -> Iterator[DataSet]:
    """Yield the data set once for each part of about `share` of its rows, which is held out: five for a share of 0.2.

    Rows with the same two texts are in one part.
    """
    count = round(1 / share)
    held, trained = _name(held=True), _name(held=False)
    for part in range(count):

        def source(scratch: Path, part: int = part) -> Path:
            rows = [each.values for each in SourceReader(data.source(scratch), Format.jsonl)]
            path = scratch / "parts.jsonl"
            with path.open("w") as file:
                for row, own in zip(rows, _parts(rows, data, count), strict=True):
                    file.write(json.dumps({**row, GROUP: held if own == part else trained}) + "\n")
            return path

        yield data._replace(source=source)


def _parts(rows: Sequence[Mapping[str, object]], data: DataSet, count: int) -> list[int]:
    """Return the number of each row's part, 0 to count - 1."""
    texts = {side: [str(row.get(data.columns[side]) or "") for row in rows] for side in (QUERY, ITEM)}
    shares = [(part + 1) / count for part in range(count)]
    hashes = group_hashes(pa.table(texts), QUERY_AND_ITEM)
    return np.sum([~below_share(hashes, share) for share in shares[:-1]], axis=0).tolist()


def _name(held: bool) -> str:
    """Return the name of a group that is held out, or of one that is not."""
    names = (f"part {number}" for number in itertools.count())
    return next(name for name in names if below_share(_place(name), SHARE)[0] == held)


def _place(name: str) -> np.ndarray:
    return hold_places(pa.table({QUERY: [""], ITEM: [""], GROUP: [name]}), GROUP)
