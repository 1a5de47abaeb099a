"""The losses of a global batch. Each worker computes its part; the sum of the parts is the loss of the whole batch.

Formulas: softmax over in-batch negatives as in Henderson et al. 2017 (arXiv:1705.00652, section 4.4); cross entropy.

With `heads.contrastive.logq`, log(M * q) is subtracted from the logit of each other item of the batch: q is the item's
share of the run's rows, so its sampling probability, and M the number of distinct items. exp(logit) / q is the
importance-sampled term of the sum over all items (Bengio and Senecal 2008, "Adaptive importance sampling to
accelerate training of a neural probabilistic language model"), and log q the correction of Yi et al. 2019
("Sampling-bias-corrected neural modeling for large corpus item recommendations", section 3). M normalises, so that
equally frequent items change nothing. The own item is not sampled and keeps its logit, which Yi et al. correct too;
hard negatives keep theirs. In the symmetric loss, q of a query is its share of the run's pairs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from configs.schema.model import LabelHead
from configs.schema.training import ClassificationHead, ContrastiveHead, HeadsConfig
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.embedding_model import EmbeddingModel
from tasks.worker.model.label_heads import LABEL_TASKS
from tasks.worker.training.batches import Batch

EXCLUDED = -1e30  # its exponential is 0; infinities can become NaN on NeuronCores
FOCUS = 2.0  # gamma of the focal loss, the best value of the paper


class LossInputs(NamedTuple):
    """The arguments of a loss: this worker's embeddings, unit vectors.

    `query` and `item` float32 (b, E); `extra` float32 (b * n, E), the hard negatives of its pairs.
    """

    model: EmbeddingModel
    batch: Batch
    accelerator: Accelerator
    query: torch.Tensor
    item: torch.Tensor
    extra: torch.Tensor


def batch_losses(
    model: EmbeddingModel,
    batch: Batch,
    heads: HeadsConfig,
    accelerator: Accelerator,
    pooled: torch.Tensor | None = None,
    of_items: EmbeddingModel | None = None,
) -> dict[str, torch.Tensor]:
    """Return this worker's part of each loss: float32 scalars on the device. `loss` is their weighted sum.

    Args:
        pooled: result of `model.pool` for the batch's texts; None: call it here.
        of_items: the model that embeds the items if queries alone are trained; it has no gradient.
    """
    pooled = model.pool(batch.texts) if pooled is None else pooled
    vectors, pairs = model.vectors(pooled, batch.texts), len(batch.position)
    if batch.items is not None:
        assert of_items is not None, "its items are apart"
        with torch.no_grad():
            items = of_items.vectors(of_items.pool(batch.items), batch.items)
        vectors = torch.cat([vectors, items])
    given = LossInputs(model, batch, accelerator, vectors[:pairs], vectors[pairs : 2 * pairs], vectors[2 * pairs :])
    parts: dict[str, torch.Tensor] = {}
    total = given.query.new_zeros(())
    with torch.autocast(given.query.device.type, enabled=False):  # scaled cosines in bf16 would be off by up to 0.06
        for name, part in LOSSES.items():
            head = getattr(heads, name)
            if head is not None:
                parts[name] = part(given, head)
                total = total + head.weight * parts[name]
    return {"loss": total, **parts}


def contrastive_part(
    query: torch.Tensor, items: torch.Tensor, batch: Batch, scale: float | torch.Tensor
) -> torch.Tensor:
    """Return -log softmax of the own item among all items of the batch, hard negatives included.

    `query` (b, E) and `items` (B * (1 + n), E) are unit vectors.
    """
    return _own_among(query, items, batch.excluded, batch.popularity, batch, scale)


def reverse_part(item: torch.Tensor, queries: torch.Tensor, batch: Batch, scale: float | torch.Tensor) -> torch.Tensor:
    """Return -log softmax of the own query among all queries of the batch; unit vectors (b, E) and (B, E)."""
    return _own_among(item, queries, batch.excluded_queries, batch.popularity_queries, batch, scale)


def _own_among(
    these: torch.Tensor,
    others: torch.Tensor,
    excluded: torch.Tensor,
    popularity: torch.Tensor,
    batch: Batch,
    scale: float | torch.Tensor,
) -> torch.Tensor:
    logits = scale * these @ others.T
    if len(popularity):
        own = batch.position[:, None] == torch.arange(len(others), device=logits.device)
        logits = logits - popularity.masked_fill(own, 0.0)
    logits = logits.masked_fill(excluded, EXCLUDED)
    each = cross_entropy(logits, batch.position)
    return (each * batch.pair).sum() / batch.pairs_in_all.clamp(min=1.0)


def cross_entropy(logits: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Return -log softmax at each row's own column, float32 (b,), from logits (b, columns) and integers (b,).

    It has the bits of `F.cross_entropy`, which takes 64-bit integers alone, and its backward pass too.
    """
    chosen = own[:, None] == torch.arange(logits.shape[1], device=logits.device)
    return -torch.where(chosen, F.log_softmax(logits, dim=1), 0.0).sum(dim=1)


def label_part(each: torch.Tensor, batch: Batch, place: int) -> torch.Tensor:
    """Return the loss of a label head.

    Args:
        each: the loss of each row, float32 (b,); any finite number for rows without a label.
        place: column of the head in `batch.labels`.
    """
    return (each * batch.head_weight[:, place]).sum() / batch.known_in_all[place].clamp(min=1.0)


def classification_part(logits: torch.Tensor, batch: Batch, focal: bool = False) -> torch.Tensor:
    """Return the weighted cross entropy of the rows that have a class; logits (b, classes).

    Args:
        focal: down-weight rows that are already classified well (Lin et al. 2017, arXiv:1708.02002, equation 4).
    """
    each = cross_entropy(logits, batch.label_class.clamp(min=0))
    if focal:
        each = each * (1.0 - torch.exp(-each)) ** FOCUS
    return (each * batch.label_weight).sum() / batch.labels_in_all.clamp(min=1.0)


def _contrastive(given: LossInputs, head: ContrastiveHead) -> torch.Tensor:
    scale, accelerator = given.model.scale_or(head.scale), given.accelerator
    items = accelerator.gather(given.item)
    if len(given.extra):
        items = torch.cat([items, accelerator.gather(given.extra)])
    part = contrastive_part(given.query, items, given.batch, scale)
    if head.symmetric:
        part = (part + reverse_part(given.item, accelerator.gather(given.query), given.batch, scale)) / 2
    return part


def _at_all_widths(given: LossInputs, head: ContrastiveHead) -> torch.Tensor:
    """Return the sum over the full width and the Matryoshka widths (Kusupati et al. 2022, arXiv:2205.13147)."""
    return sum(
        (_contrastive(truncate_embeddings(given, width), head) for width in head.matryoshka), _contrastive(given, head)
    )


def truncate_embeddings(given: LossInputs, width: int) -> LossInputs:
    """Truncate all embeddings to `width` dimensions and normalise them again."""
    whole = {name: value for name, value in given._asdict().items() if isinstance(value, torch.Tensor)}
    return given._replace(**{name: F.normalize(value[:, :width], dim=1) for name, value in whole.items()})


def _classification(given: LossInputs, head: ClassificationHead) -> torch.Tensor:
    logits = given.model.classify(given.query, given.item)
    return classification_part(logits, given.batch, focal=head.loss == "focal")


def _of_labels(name: str) -> Callable[[LossInputs, LabelHead], torch.Tensor]:
    """Return the loss function of a label head."""

    def part(given: LossInputs, head: LabelHead) -> torch.Tensor:
        place = list(given.model.shape.label_heads).index(name)
        outputs = given.model.label_outputs(name, given.query, given.item)
        return label_part(LABEL_TASKS[name].losses(outputs, given.batch.labels[:, place], head), given.batch, place)

    return part


# One entry per head of the configuration.
LOSSES: dict[str, Callable[[LossInputs, Any], torch.Tensor]] = {
    "contrastive": _at_all_widths,
    "classification": _classification,
    **{name: _of_labels(name) for name in LABEL_TASKS},
}
