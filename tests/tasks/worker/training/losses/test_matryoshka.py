from pathlib import Path

import pytest
import torch.nn.functional as F

from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.batches import choose_shape, make_batch, make_plan
from tasks.worker.training.build import build_parts
from tasks.worker.training.losses import batch_losses, contrastive_part
from tasks.worker.training.training_rows import make_pairs
from tests.support.workspace.jobs import all_rows, make_workspace, tiny_config


def test_the_loss_is_the_sum_over_the_widths_of_vectors_that_are_normalised_again(tmp_path: Path):
    config = tiny_config("heads.contrastive.matryoshka=[4, 16]")
    store, ref = make_workspace(tmp_path, rows=40)
    rows = [all_rows(store, [ref], config)]
    parts = build_parts(config, rows)
    pairs = make_pairs(rows, parts, config)
    plan, alone = make_plan(config, 0, pairs), Rank(0, 1, 0)
    batch = make_batch(pairs, plan.rows(0), plan.tokens, choose_shape(config, 0, pairs, 1), alone)
    with open_accelerator("cpu", alone) as accelerator:
        loss = batch_losses(parts.model, batch, config.heads, accelerator)["contrastive"]
    query, item = parts.model(batch.texts).chunk(2)
    assert config.heads.contrastive is not None
    scale = config.heads.contrastive.scale
    of_widths = [
        contrastive_part(F.normalize(query[:, :width]), F.normalize(item[:, :width]), batch, scale).item()
        for width in (4, 16, 32)
    ]
    assert loss.item() == pytest.approx(sum(of_widths), rel=1e-5)
    assert len({round(each, 3) for each in of_widths}) == 3
