"""Hard negatives of training rows, by a released model: the nearest of its vectors that are no answer.

As TopK-PercPos of de Souza P. Moreira et al. 2024 (arXiv:2407.15831, section 3.3): an item counts only if it scores
below a share of the score of the pair's own item, since nearer ones are often right without being known to be.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from configs.schema.training import NegativesConfig
from tasks.contracts.progress import report
from tasks.contracts.references import MinedRelease
from tasks.data.label_pairs import pair_mask
from tasks.data.rows import ITEM, ITEM_ID, QUERY
from tasks.foundation.errors import ConfigError
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.evaluation.contenders import Contender, Entrant, open_entrant
from tasks.worker.model.embed import embed
from tasks.worker.model.features import Side
from tasks.worker.process.job import Job
from tasks.worker.search.index import MEMORY_BYTES
from tasks.worker.search.nearest import nearest_negatives
from tasks.worker.search.released_items import ReleasedItems
from tasks.worker.search.right_items import RightItems
from tasks.worker.tokens.known import Known
from tasks.worker.tokens.tokenised import id_keys, text_keys
from tasks.worker.training.holdout import side_of
from tasks.worker.training.pairs import feature_columns


class Release(NamedTuple):
    """A released model on the device, and its items."""

    model: Contender
    items: ReleasedItems


class Mined(NamedTuple):
    """`places` int64 (rows, per_query): of the release's items, nearest first, -1 where there are fewer.

    `embedded`: texts that the released model embedded, of all workers.
    """

    places: np.ndarray
    embedded: int


def open_release(job: Job, accelerator: Accelerator, release: MinedRelease) -> Release:
    """Return the released model on the device, and its vectors.

    Raises:
        StoreError: a part of the release is gone or damaged.
        ConfigError: the model needs a feature that the configuration does not name.
    """
    memory = MEMORY_BYTES // job.rank.local_world
    items = ReleasedItems.open(job.shared, release.vectors, release.model.version, memory)
    entrant = Entrant(release.model.version, {}, release.model.checkpoint)
    model = open_entrant(job, accelerator, entrant, None, items.vectors.max_tokens)
    assert model is not None, "only new weights may not be there"
    if missing := sorted(set(model.features) - set(feature_columns(job.config))):
        raise ConfigError(
            f"release {release.number} can't be mined for hard negatives: its model needs the feature {missing[0]!r}, "
            "which the configuration does not name; name it, or set heads.contrastive.negatives=null"
        )
    return Release(model, items)


def mine(
    job: Job,
    accelerator: Accelerator,
    release: Release,
    training: Iterable[pa.Table],
    known: Known,
    settings: NegativesConfig,
    rows: int,
) -> Mined:
    """Return the hard negatives of all training rows; the workers share the work, and all get the whole answer.

    Texts and scores are in memory for some thousand rows at a time.

    Args:
        known: the right items of each query, by all rows of the lineage so far.
        rows: how many there are.
    """
    places = np.zeros((rows, settings.per_query), dtype=np.int64)  # plus one, so that the sum over workers is right
    start, embedded = 0, 0
    for number, table in enumerate(training):
        if number % job.rank.world == job.rank.index:
            mask = pair_mask(table, job.config.heads)
            pairs = table.filter(pa.array(mask))
            if pairs.num_rows:
                found, texts = _of_table(job, accelerator, release, pairs, known, settings)
                places[start + np.flatnonzero(mask)] = found + 1
                embedded += texts
        start += table.num_rows
        if job.rank.is_main:
            report("negatives", start, rows)
    together = accelerator.sum(torch.from_numpy(places)).numpy() - 1
    return Mined(together, int(accelerator.sum(torch.tensor(embedded)).item()))


def _of_table(
    job: Job, accelerator: Accelerator, release: Release, pairs: pa.Table, known: Known, settings: NegativesConfig
) -> tuple[np.ndarray, int]:
    """Return the places of the negatives, int64 (pairs, per_query), and how many texts were embedded."""
    model, items = release
    columns = [QUERY, *model.parts.features.query_columns]
    first, which = _distinct(pairs, columns)
    queries = _embed(accelerator, model, pairs.take(pa.array(first)), "query")[which]
    ids = id_keys(pairs[ITEM_ID])
    own = items.places_of(ids)
    vectors = items.vectors.at(own)
    new = pairs.filter(pa.array(own < 0))  # items that the release does not have
    made = 0
    if new.num_rows:
        others, whose = _distinct(new, [ITEM, *model.features])
        vectors[own < 0] = _embed(accelerator, model, new.take(pa.array(others)), "item")[whose]
        made = len(others)
    scores = np.einsum("qw,qw->q", queries, vectors)
    limits = scores - (1.0 - settings.max_share) * np.abs(scores)  # below the score even where that is negative
    asked = text_keys(pairs[QUERY])
    right = RightItems(known, items, asked, ids, text_keys(pairs[ITEM]))
    found = nearest_negatives(items, queries, asked, limits.astype(np.float32), right, settings.per_query)
    return found, len(first) + made


def _embed(accelerator: Accelerator, model: Contender, rows: pa.Table, side: Side) -> np.ndarray:
    tokens, features = side_of(rows, side, model.parts, model.config)
    return embed(model.parts.model, accelerator, tokens, features, model.settings, shared=False)


def _distinct(rows: pa.Table, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each combination of values, int64, and which combination each row has, int64 (rows,)."""
    number: dict[tuple[object, ...], int] = {}
    first: list[int] = []
    which = np.zeros(rows.num_rows, dtype=np.int64)
    for row, values in enumerate(_values(rows, columns)):
        if values not in number:
            number[values] = len(first)
            first.append(row)
        which[row] = number[values]
    return np.array(first, dtype=np.int64), which


def _values(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[object, ...]]:
    return zip(*(rows[name].to_pylist() for name in columns), strict=True)
