"""One model's results for each row, and the metrics of its vectors."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from configs.schema.gates import least_competitors
from tasks.contracts.evaluation import (
    Role,
    held_of,
    loss_of,
    narrow_rank_of,
    predicted_of,
    probability_of,
    rank_of,
    says_of,
)
from tasks.contracts.references import CatalogueRef
from tasks.contracts.runner import report
from tasks.data.items import TEXT
from tasks.data.rows import ITEM, ITEM_ID
from tasks.quality.row_metrics import RANKING
from tasks.quality.vector_metrics import Answers, nearest_items, vector_metrics
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.evaluation.corpus import sample_rows
from tasks.worker.evaluation.models import LoadedModel
from tasks.worker.evaluation.rows import MeasuredRows
from tasks.worker.evaluation.whole_catalogue import ModelVectors
from tasks.worker.model.embed import embed
from tasks.worker.model.ranks import rank_targets
from tasks.worker.model.relevant import Relevant
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
            yield items, embed(model.parts.model, accelerator, *inputs, model.settings, shared=False)

    opened = Catalogue(job.store, catalogue, job.shared)
    many = model.released.embed_changed(opened, job.share, embed_items, folder)
    return int(accelerator.sum(torch.tensor(many)).item())


def _known_vectors(job: Job, accelerator: Accelerator, model: LoadedModel, items: pa.Table) -> KnownVectors | None:
    if model.released is None:
        return None
    found = model.released.known(items, model.parts.model.width, job.share)
    which, vectors = (accelerator.sum(part) for part in (torch.from_numpy(found[0]).int(), torch.from_numpy(found[1])))
    return KnownVectors(which.bool().numpy(), vectors.numpy())
