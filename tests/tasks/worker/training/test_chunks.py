"""A batch in chunks has the gradients of the whole batch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from configs.schema.config import Config
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.batches import Batch, choose_shape, make_batch, make_plan
from tasks.worker.training.build import build_parts
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.loop import GradientCache
from tasks.worker.training.losses import batch_losses
from tasks.worker.training.training_rows import make_pairs
from tests.support.workspace.jobs import CLASSIFIER, FEATURES, all_rows, make_workspace, tiny_config, train_model

ALONE = Rank(0, 1, 0)
SETTINGS = (*FEATURES, CLASSIFIER, "heads.contrastive.symmetric=true", "heads.contrastive.logq=true")


def made(folder: Path, config: Config) -> tuple[ModelParts, Batch]:
    store, rows = make_workspace(folder, rows=48, distinct=20)
    table = all_rows(store, [rows], config)
    parts = build_parts(config, [table])
    torch.manual_seed(5)
    torch.nn.init.normal_(parts.model.interaction.out.weight, std=0.1)  # type: ignore[union-attr]
    pairs = make_pairs([table], parts, config)
    plan, shape = make_plan(config, 0, pairs), choose_shape(config, 0, pairs, 1)
    return parts, make_batch(pairs, plan.rows(0), plan.tokens, shape, ALONE)


def gradients(parts: ModelParts) -> dict[str, torch.Tensor]:
    return {name: one.grad.clone() for name, one in parts.model.named_parameters() if one.grad is not None}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_gradients_are_those_of_the_chunks_together(tmp_path: Path, dropout: float):
    config = tiny_config(*SETTINGS, "train.gradcache_chunks=3", f"model.dropout={dropout}")
    parts, batch = made(tmp_path, config)
    count, found = len(batch.texts.ids), []
    assert count % 3 == 0
    with open_accelerator("cpu", ALONE) as accelerator:
        chunks = GradientCache(parts.model, batch.texts, 3, accelerator, "fp32", seed=7)
        together = []  # the same chunks with the same seeds, in one graph
        for number in range(3):
            accelerator.seed(7 + (number + 1) * 7_919 * 1_000_003)
            rows = slice(number * count // 3, (number + 1) * count // 3)
            texts = {name: getattr(batch.texts, name)[rows] for name in ("ids", "segments", "positions")}
            together.append(parts.model.pool(type(batch.texts)(**{**vars(batch.texts), **texts})))
        for pooled in (torch.cat(together), chunks.pooled):
            parts.model.zero_grad()
            batch_losses(parts.model, batch, config.heads, accelerator, pooled)["loss"].backward()
            if pooled is chunks.pooled:
                chunks.backward()
            found.append(gradients(parts))
    assert set(found[0]) == set(found[1])
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    assert sum(value.abs().max() > 1e-4 for value in found[0].values()) > 20


def test_training_in_chunks_takes_the_steps_of_training_at_once(tmp_path: Path):
    losses = []
    for chunks in (1, 2):
        store, rows = make_workspace(tmp_path / str(chunks))
        config = tiny_config(*SETTINGS, f"train.gradcache_chunks={chunks}", "train.sequences=20")
        losses.append([point.metrics["loss"] for point in train_model(store, config, rows).losses])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
