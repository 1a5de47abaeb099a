"""One model's results for each row, and the metrics of its vectors.

Each row's own item is also ranked in the whole catalogue, by the challenger's vectors and by a release's vectors. Two
models are compared on their common items, by id, so neither has easier competitors. The vectors are read by partition:
memory does not grow with the catalogue.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from configs.schema.gates import least_competitors
from tasks.contracts.evaluation import (
    WHOLE_COMPETITORS,
    Role,
    held_of,
    loss_of,
    narrow_rank_of,
    predicted_of,
    probability_of,
    rank_of,
    says_of,
    shared_competitors_of,
    shared_rank_of,
    whole_rank_of,
)
from tasks.contracts.jobs import report
from tasks.contracts.references import CatalogueRef
from tasks.data.rows import ITEM, ITEM_ID, TEXT, VECTOR
from tasks.quality.row_metrics import RANKING
from tasks.quality.vector_metrics import Answers, nearest_items, vector_metrics
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import EarlierVectors, as_matrix
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.evaluation.models import LoadedModel, places, served_partition
from tasks.worker.evaluation.rows_and_items import MeasuredRows, sample_rows
from tasks.worker.model.embed import embed
from tasks.worker.model.ranks import rank_targets
from tasks.worker.model.relevant import Relevant, RelevantTexts, hash_texts
from tasks.worker.process.job import Job
from tasks.worker.training.holdout import (
    Holdout,
    HoldoutResults,
    HoldoutVectors,
    KnownVectors,
    embed_holdout,
    encode_side,
    judge_vectors,
    make_holdout,
)

BATCH_ITEMS = 8192
BATCH_QUERIES = 512  # their scores take 16 MiB of memory
EQUAL = 1e-6  # scores closer than this are equal: the rounding of a matrix product depends on its shape


class ModelVectors(NamedTuple):
    """One model: vectors of each row's query and own item, float32 (rows, width), and its released vectors."""

    queries: np.ndarray
    own: np.ndarray
    vectors: EarlierVectors
    again: Path | None = None  # folder of `ReleasedItems.embed_changed`; None: no item has changed


class SharedRanks(NamedTuple):
    """The ranks of two models among their `items` common items, int64 (rows,) each, from 1.

    `competitors` int64 (rows,): these items without the relevant ones of the row.
    """

    items: int
    challenger: np.ndarray
    other: np.ndarray
    competitors: np.ndarray


class WholeRanks(NamedTuple):
    """The challenger's ranks among all `items` of the catalogue, int64 (rows,), and the comparisons, by model name.

    `competitors` int64 (rows,): all items without the relevant ones of the row.
    """

    items: int
    ranks: np.ndarray
    competitors: np.ndarray
    shared: dict[str, SharedRanks]

    def columns_of(self, role: Role, name: str) -> dict[str, pa.Array]:
        """Return the ranks of a role as columns of the row results; for a baseline also the challenger's ranks."""
        if role is Role.challenger:
            found = {whole_rank_of(role): self.ranks, WHOLE_COMPETITORS: self.competitors}
            return {column: pa.array(each.astype(np.int32)) for column, each in found.items()}
        if name not in self.shared:
            return {}
        duel = self.shared[name]
        found = {
            shared_rank_of(Role.challenger, role): duel.challenger,
            shared_rank_of(role, role): duel.other,
            shared_competitors_of(role): duel.competitors,
        }
        return {column: pa.array(each.astype(np.int32)) for column, each in found.items()}


def rank_in_whole(
    job: Job,
    accelerator: Accelerator,
    challenger: ModelVectors,
    others: Mapping[str, ModelVectors],
    partitions: int,
    right: RelevantTexts,
) -> WholeRanks:
    """Rank each row's own item; the workers share the partitions, and each gets the whole result.

    Items with an equal or NaN score rank before the own item, so that a collapsed model ranks badly, not perfectly.

    Args:
        others: models by name; an item is common if both hold its id.
        partitions: of the catalogue and the challenger's vectors.

    Raises:
        CorruptFolder: a file of the vectors is damaged.
    """
    rows, device = len(challenger.own), accelerator.ranking_device
    counts = {name: np.zeros((3, rows), dtype=np.int64) for name in others}
    items = dict.fromkeys(others, 0)
    whole, held = np.zeros((2, rows), dtype=np.int64), 0
    numbers = range(partitions)[job.share.index :: job.share.of]
    for done, number in enumerate(numbers, start=1):
        theirs_of = {
            name: served_partition(other.vectors, number, partitions, other.again) for name, other in others.items()
        }
        for table in _batches(challenger.vectors.table(number, [ITEM_ID, TEXT, VECTOR])):
            masked = right.pairs_of(hash_texts(table[TEXT].to_pylist()))
            shared = {name: _held_by(theirs, table) for name, theirs in theirs_of.items()}
            vectors = as_matrix(table[VECTOR]).astype(np.float32, copy=False)
            places = [at for at, _ in shared.values()]
            every = [np.ones(len(vectors), dtype=bool), *(at >= 0 for at in places)]
            above = _above(challenger, vectors, masked, every, device)
            whole += above[0], len(vectors) - np.bincount(masked[0], minlength=rows)
            held += len(vectors)
            for (name, (at, theirs)), of_challenger in zip(shared.items(), above[1:], strict=True):
                both = at >= 0
                items[name] += int(both.sum())
                counts[name][0] += of_challenger
                common, all_of_them = _moved(masked, both), [np.ones(len(theirs), dtype=bool)]
                counts[name][1] += _above(others[name], theirs, common, all_of_them, device)[0]
                counts[name][2] += len(theirs) - np.bincount(common[0], minlength=rows)
        report("whole catalogue", done, len(numbers))
    whole, held = _of_all(accelerator, whole), int(_of_all(accelerator, np.array([held]))[0])
    duels = {}
    for name in others:
        mine, its, competitors = _of_all(accelerator, counts[name])
        many = int(_of_all(accelerator, np.array([items[name]]))[0])
        duels[name] = SharedRanks(many, mine + 1, its + 1, competitors)
    return WholeRanks(held, whole[0] + 1, whole[1], duels)


def _batches(table: pa.Table | None) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows if table is not None else 0, BATCH_ITEMS):
        assert table is not None
        yield table.slice(start, BATCH_ITEMS)


def _held_by(theirs: pa.Table | None, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return each item's row in the other model's file, int64 (items,), -1 if absent; and the found vectors."""
    if theirs is None:
        return np.full(table.num_rows, -1), np.zeros((0, 0), dtype=np.float32)
    at = places(table, theirs)
    return at, as_matrix(theirs[VECTOR].take(pa.array(at[at >= 0]))).astype(np.float32, copy=False)


def _moved(masked: tuple[np.ndarray, np.ndarray], both: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Convert pairs of a row and a place in a batch to places among its common items; other pairs are dropped."""
    rows, places = masked
    kept = both[places]
    return rows[kept], (np.cumsum(both) - 1)[places[kept]]


def _above(
    side: ModelVectors,
    vectors: np.ndarray,
    masked: tuple[np.ndarray, np.ndarray],
    among: Sequence[np.ndarray],
    device: torch.device,
) -> list[np.ndarray]:
    """Count the items that score at least as high as each row's own item, int64 (rows,), for each set of items.

    Args:
        masked: rows and places of ignored items, ordered by row.
        among: bool (items,) each.
    """
    limits = np.einsum("rw,rw->r", side.queries, side.own) - EQUAL
    counts = np.zeros((len(among), len(limits)), dtype=np.int64)
    sets = torch.from_numpy(np.stack(among, axis=1).astype(np.float32)).to(device)
    items = torch.from_numpy(np.ascontiguousarray(vectors.T)).to(device)
    for start in range(0, len(limits) if len(vectors) else 0, BATCH_QUERIES):
        part = slice(start, start + BATCH_QUERIES)
        scores = torch.from_numpy(side.queries[part]).to(device) @ items
        first, last = np.searchsorted(masked[0], [start, start + BATCH_QUERIES])
        rows, places = masked[0][first:last] - start, masked[1][first:last]
        scores[torch.from_numpy(rows).to(device), torch.from_numpy(places).to(device)] = -torch.inf
        above = ~(scores < torch.from_numpy(limits[part]).to(device)[:, None])
        counts[:, part] = (above.float() @ sets).round().long().cpu().numpy().T
    return list(counts)


def _of_all(accelerator: Accelerator, part: np.ndarray) -> np.ndarray:
    found: np.ndarray = accelerator.sum(torch.from_numpy(part)).numpy()
    return found


METRIC = "recall@10"


def ranks_by_width(
    widths: Sequence[int], accelerator: Accelerator, holdout: Holdout, embedded: HoldoutVectors
) -> dict[int, np.ndarray]:
    """Return the rank of each row's own item, int64 (rows,) from 1, at each width below the full width.

    The workers share the work; each gets the whole result.
    """
    found, rank = {}, accelerator.rank
    for width in widths:
        if width < embedded.corpus.shape[1]:
            queries, corpus = (_narrowed(side, width) for side in (embedded.queries, embedded.corpus))
            share, device = (rank.index, rank.world), accelerator.ranking_device
            part = rank_targets(queries, corpus, holdout.target, share, holdout.relevant, device=device).ranks
            found[width] = accelerator.sum(torch.from_numpy(part)).numpy()
    return found


def recall_by_width(ranks: Mapping[int, np.ndarray], among: np.ndarray) -> dict[int, float]:
    """Return METRIC at each width over the rows with a true `among`, bool (rows,); empty if all are false."""
    return {width: float(RANKING[METRIC](each[among]).mean()) for width, each in ranks.items() if among.any()}


def _narrowed(vectors: np.ndarray, width: int) -> np.ndarray:
    """Truncate unit vectors to float32 (rows, width) and normalise them again; zero vectors stay."""
    narrow = vectors[:, :width]
    lengths = np.linalg.norm(narrow, axis=1, keepdims=True)
    return np.divide(narrow, lengths, out=np.zeros_like(narrow), where=lengths != 0)


COMPARED_QUERIES = 1000  # at most; two models' agreement is measured on the nearest items of these queries


class ModelResults(NamedTuple):
    """A model's results: answers per row, metrics of its vectors, and the number of vectors read from its release.

    `ranks_by_width`: int64 (rows,) each, of truncated vectors; `recall_by_width`: their recall@10 on the holdout.
    `side`: the model's part in a ranking of the whole catalogue; None: it has no released vectors.
    """

    judged: HoldoutResults
    vectors: dict[str, float]
    ranks_by_width: dict[int, np.ndarray]
    recall_by_width: dict[int, float]
    read: int
    side: ModelVectors | None = None
    held: np.ndarray | None = None  # bool (rows,): the row's item is in the model's release; None: unknown


def measure(
    job: Job, accelerator: Accelerator, model: LoadedModel, rows: MeasuredRows, items: pa.Table, relevant: Relevant
) -> tuple[ModelResults, Answers]:
    """Measure a model on rows and items; also return its answers for the comparison with other models.

    The workers share the work; each gets the whole result.
    """
    known = _known_vectors(job, accelerator, model, items)
    names = [ITEM if name == TEXT else name for name in items.column_names]
    holdout = make_holdout(rows.table, items.rename_columns(names), model.parts, model.config, relevant)
    progress = (lambda done, total: report("evaluate", done, total, model.version)) if job.rank.is_main else None
    embedded = embed_holdout(model.parts, holdout, accelerator, model.settings, known, progress)
    contrastive = job.config.heads.contrastive
    scale = model.parts.model.scale_or(contrastive.scale) if contrastive is not None else None
    if isinstance(scale, torch.Tensor):
        scale = accelerator.fetch(scale).item()
    narrow = ranks_by_width(job.config.measured_widths, accelerator, holdout, embedded)
    contested = holdout.pair & (holdout.competitors >= least_competitors(METRIC))
    measured = ModelResults(
        judged=judge_vectors(model.parts, holdout, embedded, accelerator, model.settings, scale),
        vectors=vector_metrics(embedded.corpus, relevant.text),
        ranks_by_width=narrow,
        recall_by_width=recall_by_width(narrow, np.asarray(rows.holdout, dtype=bool) & contested),
        read=int(known.which.sum()) if known else 0,
        side=ModelVectors(embedded.queries, embedded.corpus[holdout.target], model.released.vectors)
        if model.released
        else None,
        held=_held(accelerator, job, model, rows),
    )
    nearest = nearest_items(embedded.queries[sample_rows(rows, COMPARED_QUERIES)], embedded.corpus)
    return measured, Answers(embedded.corpus, nearest)


def columns_of(role: Role, measured: ModelResults) -> dict[str, pa.Array]:
    """Return a model's results as columns of the row results, for one of its roles."""
    found = answer_columns(role, measured.judged)
    narrow = measured.ranks_by_width
    found |= {narrow_rank_of(role, width): pa.array(ranks.astype(np.int32)) for width, ranks in narrow.items()}
    if measured.held is not None and role is Role.champion:
        found[held_of(role)] = pa.array(measured.held)
    return found


def answer_columns(role: Role, judged: HoldoutResults) -> dict[str, pa.Array]:
    """Return a model's answers to the rows as columns of the row results, for one of its roles."""
    found = {rank_of(role): pa.array(judged.ranks.astype(np.int32))}
    if judged.losses is not None:
        found[loss_of(role)] = pa.array(judged.losses)
    if judged.probabilities is not None:
        found[probability_of(role)] = pa.array(judged.probabilities)
        found[predicted_of(role)] = pa.array(judged.predicted)
    return found | {says_of(role, head): pa.array(says) for head, says in judged.says.items()}


def _held(accelerator: Accelerator, job: Job, model: LoadedModel, rows: MeasuredRows) -> np.ndarray | None:
    """Return bool (rows,): True if the model's release has the row's item, with any text."""
    if model.released is None:
        return None
    here = model.released.vectors.holds(rows.table[ITEM_ID], job.share)
    return accelerator.sum(torch.from_numpy(here).int()).bool().numpy()


def embed_changed(job: Job, accelerator: Accelerator, model: LoadedModel, catalogue: CatalogueRef, folder: Path) -> int:
    """Embed the items of the catalogue again that a model reads otherwise than in its release.

    Each worker does its share of the partitions, and keeps their vectors in its folder. All return the whole number.
    """
    assert model.released is not None

    def embed_items(tables: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, np.ndarray]]:
        read = (
            (items, encode_side(items.rename_columns([ITEM if name == TEXT else name for name in items.column_names]),
                                ITEM, model.parts, model.config))
            for items in tables
        )  # fmt: skip
        for items, inputs in accelerator.ahead(read):
            yield items, embed(model.parts.of(ITEM).model, accelerator, *inputs, model.settings, shared=False)

    opened = Catalogue(job.store, catalogue, job.shared)
    many = model.released.embed_changed(opened, job.share, embed_items, folder)
    return int(accelerator.sum(torch.tensor(many)).item())


def _known_vectors(job: Job, accelerator: Accelerator, model: LoadedModel, items: pa.Table) -> KnownVectors | None:
    if model.released is None:
        return None
    found = model.released.known(items, model.parts.model.width, job.share)
    which, vectors = (accelerator.sum(part) for part in (torch.from_numpy(found[0]).int(), torch.from_numpy(found[1])))
    return KnownVectors(which.bool().numpy(), vectors.numpy())
