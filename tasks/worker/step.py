"""One training step. Warmup runs the very same one, so what training meets is what warmup has seen."""

from __future__ import annotations

import torch

from configs.schema import Config
from tasks.worker.accelerators import Accelerator
from tasks.worker.accelerators.base import Precision
from tasks.worker.batches import Batch
from tasks.worker.losses import batch_losses
from tasks.worker.model import EmbeddingModel
from tasks.worker.optimizer import learning_rate


class TrainStep:
    """Forward, backward, sum over the workers, clip, update."""

    def __init__(
        self,
        model: EmbeddingModel,
        optimizer: torch.optim.AdamW,
        accelerator: Accelerator,
        config: Config,
        precision: Precision,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.accelerator = accelerator
        self.config = config
        self.precision: Precision = precision

    def __call__(self, batch: Batch, step: int) -> dict[str, torch.Tensor]:
        """Take global step `step` on this worker's part of a batch, which must lie on the device.

        Returns:
            Detached float32 scalars on the device, this worker's parts: the losses are their sums over the workers.
        """
        torch.manual_seed(self.config.seed * 1_000_003 + step * 1_009 + self.accelerator.rank.index)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.config.train)
        self.optimizer.zero_grad(set_to_none=True)
        with self.accelerator.autocast(self.precision):
            losses = batch_losses(self.model, batch, self.config.heads, self.accelerator)
        losses["loss"].backward()
        self.accelerator.reduce_gradients(self.model.parameters())
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.train.max_gradient_norm)
        self.optimizer.step()
        return {name: loss.detach() for name, loss in losses.items()}
