"""The losses of a global batch, computed by parts: each worker's part, summed over the workers, is the whole.

Formulas: softmax over in-batch negatives as in Henderson et al. 2017 (arXiv:1705.00652, section 4.4); cross entropy.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from configs.schema import HeadsConfig
from tasks.worker.accelerators import Accelerator
from tasks.worker.batches import Batch
from tasks.worker.model import EmbeddingModel


def batch_losses(
    model: EmbeddingModel, batch: Batch, heads: HeadsConfig, accelerator: Accelerator
) -> dict[str, torch.Tensor]:
    """This worker's part of each loss, float32 scalars on the device; `loss` is the weighted sum of the heads'."""
    query = model(batch.query)
    item = model(batch.item)
    parts: dict[str, torch.Tensor] = {}
    total = query.new_zeros(())
    with torch.autocast(query.device.type, enabled=False):  # scaled cosines in bf16 would be off by up to 0.06
        if heads.contrastive is not None:
            parts["contrastive"] = contrastive_part(query, accelerator.gather(item), batch, heads.contrastive.scale)
            total = total + heads.contrastive.weight * parts["contrastive"]
        if heads.classification is not None:
            parts["classification"] = classification_part(model.classify(query, item), batch)
            total = total + heads.classification.weight * parts["classification"]
    return {"loss": total, **parts}


def contrastive_part(query: torch.Tensor, items: torch.Tensor, batch: Batch, scale: float) -> torch.Tensor:
    """-log softmax of the own item among all items of the global batch; query (b, E), items (B, E), unit vectors."""
    logits = (scale * query @ items.T).masked_fill(batch.excluded, float("-inf"))
    each = F.cross_entropy(logits, batch.position, reduction="none")
    return (each * batch.pair).sum() / batch.pairs_in_all.clamp(min=1.0)


def classification_part(logits: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Cross entropy over the rows that have a class; logits (b, 2)."""
    known = batch.label_class >= 0
    each = F.cross_entropy(logits, batch.label_class.clamp(min=0), reduction="none")
    return (each * known).sum() / batch.labels_in_all.clamp(min=1.0)
