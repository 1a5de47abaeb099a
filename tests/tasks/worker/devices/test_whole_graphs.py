"""The losses of a step are one graph, in each precision and with each kind of feature interaction."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import fx

from tasks.worker.devices.base import Accelerator
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.batches import choose_shape, make_batch, make_plan
from tasks.worker.training.losses import batch_losses
from tasks.worker.training.start import build_parts
from tasks.worker.training.training_rows import make_pairs
from tests.support.workspace.jobs import CLASSIFIER, FEATURES, LABEL_HEADS, all_rows, make_workspace, tiny_config

ALONE = Rank(0, 1, 0)
FEATURES_OF = {
    "no features": (),
    "crosses and an MLP": (*FEATURES, CLASSIFIER, *LABEL_HEADS),
    "an MLP": (*FEATURES[:3], "model.interaction.kind=implicit"),
    "queries alone": (*FEATURES, "train.sides=queries"),
}


class WithoutOwnLayers(CpuAccelerator):
    """The processor with the layers of all other devices: its own are for a processor alone."""

    def to_device(self, model: torch.nn.Module) -> None:
        Accelerator.to_device(self, model)


@pytest.mark.shows("one graph")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("features", FEATURES_OF)
def test_the_losses_are_one_graph_without_a_break(tmp_path: Path, features: str, precision: str):
    """A hook or an attribute that is set in forward, or a number that the host reads, would break it in two."""
    config = tiny_config(*FEATURES_OF[features])
    store, rows = make_workspace(tmp_path)
    table = [all_rows(store, [rows], config)]
    parts = build_parts(config, table)
    pairs = make_pairs(table, parts, config)
    plan, shape = make_plan(config, 0, pairs), choose_shape(config, 0, pairs, 1, False)
    batch = make_batch(pairs, plan.rows(0), plan.tokens, shape, ALONE)
    accelerator = WithoutOwnLayers(ALONE)
    accelerator.to_device(parts.model)
    of_items = copy.deepcopy(parts.model).requires_grad_(False)
    graphs: list[fx.GraphModule] = []

    def losses() -> dict[str, torch.Tensor]:
        with accelerator.autocast(precision):  # type: ignore[arg-type]
            return batch_losses(parts.model, batch, config.heads, accelerator, of_items=of_items)

    torch._dynamo.reset()
    whole = torch.compile(
        losses, backend=lambda graph, _: graphs.append(graph) or graph.forward, fullgraph=True, dynamic=False
    )
    found, expected = whole(), losses()
    assert len(graphs) == 1
    for name, loss in expected.items():
        torch.testing.assert_close(found[name], loss, rtol=1e-6, atol=0.0)
    found["loss"].backward()
    gradients = {name: weight.grad for name, weight in parts.model.named_parameters() if weight.grad is not None}
    parts.model.zero_grad(set_to_none=True)
    expected["loss"].backward()
    assert gradients
    for name, weight in parts.model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(gradients[name], weight.grad, msg=lambda m, n=name: f"{n}: {m}")
