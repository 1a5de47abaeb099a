"""The losses of a global batch. Each worker computes its part; the sum of the parts is the loss of the whole batch.

Formulas: softmax over in-batch negatives as in Henderson et al. 2017 (arXiv:1705.00652, section 4.4); cross entropy.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from configs.schema.training import ClassificationHead, ContrastiveHead, HeadsConfig
from tasks.worker.accelerators import Accelerator
from tasks.worker.model.embedding_model import EmbeddingModel
from tasks.worker.training.batches import Batch


class Given(NamedTuple):
    """The arguments of a loss. `query` and `item` are this worker's embeddings: unit vectors, float32 (b, E)."""

    model: EmbeddingModel
    batch: Batch
    accelerator: Accelerator
    query: torch.Tensor
    item: torch.Tensor


def batch_losses(
    model: EmbeddingModel, batch: Batch, heads: HeadsConfig, accelerator: Accelerator
) -> dict[str, torch.Tensor]:
    """Return this worker's part of each loss: float32 scalars on the device. `loss` is their weighted sum."""
    query, item = model(batch.texts).chunk(2)
    given = Given(model, batch, accelerator, query, item)
    parts: dict[str, torch.Tensor] = {}
    total = given.query.new_zeros(())
    with torch.autocast(given.query.device.type, enabled=False):  # scaled cosines in bf16 would be off by up to 0.06
        for name, part in LOSSES.items():
            head = getattr(heads, name)
            if head is not None:
                parts[name] = part(given, head)
                total = total + head.weight * parts[name]
    return {"loss": total, **parts}


def contrastive_part(query: torch.Tensor, items: torch.Tensor, batch: Batch, scale: float) -> torch.Tensor:
    """Return -log softmax of the own item among all items of the batch; query (b, E), items (B, E), unit vectors."""
    logits = (scale * query @ items.T).masked_fill(batch.excluded, float("-inf"))
    each = F.cross_entropy(logits, batch.position, reduction="none")
    return (each * batch.pair).sum() / batch.pairs_in_all.clamp(min=1.0)


def classification_part(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Return the cross entropy over the rows that have a class; logits (b, 2)."""
    known = batch.label_class >= 0
    each = F.cross_entropy(logits, batch.label_class.clamp(min=0), reduction="none")
    return (each * known).sum() / batch.labels_in_all.clamp(min=1.0)


def _contrastive(given: Given, head: ContrastiveHead) -> torch.Tensor:
    return contrastive_part(given.query, given.accelerator.gather(given.item), given.batch, head.scale)


def _at_all_widths(given: Given, head: ContrastiveHead) -> torch.Tensor:
    """Return the sum over the whole embeddings and their Matryoshka widths (Kusupati et al. 2022, arXiv:2205.13147)."""
    return sum((_contrastive(narrowed(given, width), head) for width in head.matryoshka), _contrastive(given, head))


def narrowed(given: Given, width: int) -> Given:
    """Return the first `width` numbers of all embeddings, normalised again."""
    whole = {name: value for name, value in given._asdict().items() if isinstance(value, torch.Tensor)}
    return given._replace(**{name: F.normalize(value[:, :width], dim=1) for name, value in whole.items()})


def _classification(given: Given, head: ClassificationHead) -> torch.Tensor:
    return classification_part(given.model.classify(given.query, given.item), given.batch)


# One entry for each head of the configuration.
LOSSES: dict[str, Callable[[Given, Any], torch.Tensor]] = {
    "contrastive": _at_all_widths,
    "classification": _classification,
}
