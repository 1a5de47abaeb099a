"""The bytes that two workers exchange in a step are those of the estimate."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from infra.store.directory import DirectoryStore
from tasks.contracts.references import RowsRef
from tasks.planning.gathered import gathered_bytes
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.batches import Batches, choose_shape, make_plan
from tasks.worker.training.build import build_parts
from tasks.worker.training.loop import TrainStep
from tasks.worker.training.optimizer import make_optimizer
from tasks.worker.training.telemetry import gradient_bytes
from tasks.worker.training.training_rows import make_pairs
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import all_rows, make_workspace, tiny_config

HEAD = "heads.contrastive."


def moved(rank: Rank, root: Path, rows: RowsRef, overrides: list[str]) -> dict[str, int]:
    """The bytes of one step's collectives, and what was to be expected of it."""
    config = tiny_config("train.workers=2", *overrides)
    table = all_rows(DirectoryStore(root), [rows], config)
    found = {"gathered": 0, "summed": 0}
    gather, reduce = dist.all_gather, dist.all_reduce

    def gathering(parts: list[torch.Tensor], mine: torch.Tensor, **more: Any) -> Any:
        found["gathered"] += sum(part.nbytes for part in parts)
        return gather(parts, mine, **more)

    def reducing(tensor: torch.Tensor, **more: Any) -> Any:
        found["summed"] += tensor.nbytes
        return reduce(tensor, **more)

    with open_accelerator("cpu", rank, config, "fp32") as accelerator, pytest.MonkeyPatch.context() as patched:
        parts = build_parts(config, [table])
        accelerator.to_device(parts.model)
        step = TrainStep(
            parts.model, make_optimizer(parts.model, config.train, accelerator), accelerator, config, "fp32"
        )
        pairs = make_pairs([table], parts, config)
        shape = choose_shape(config, 0, pairs, rank.world, mined=True)
        batch = next(iter(Batches(pairs, make_plan(config, 0, pairs), shape, rank, range(1))))
        patched.setattr(dist, "all_gather", gathering)
        patched.setattr(dist, "all_reduce", reducing)
        step(batch, 0)
        patched.undo()
        vectors = gathered_bytes(
            config.heads.contrastive, config.train.batch_rows, shape.extra, parts.model.shape.width
        )
        return found | {"vectors": vectors, "gradients": gradient_bytes(parts.model)}


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        (f"{HEAD}symmetric=true",),
        (f"{HEAD}negatives={{per_query: 2}}", f"{HEAD}matryoshka=[4, 8]"),
        (f"{HEAD}symmetric=true", f"{HEAD}negatives={{per_query: 1}}", f"{HEAD}matryoshka=[4]"),
        ("heads.contrastive=null", "heads.classification={weight: 1.0, input: pair, negative_max: 2, positive_min: 4}"),
    ],
    ids=["items", "symmetric", "negatives and widths", "all", "classification alone"],
)
def test_a_step_moves_the_bytes_of_the_estimate(tmp_path: Path, overrides: tuple[str, ...]):
    """On gloo a reduce-scatter is an all-reduce of the whole, so sums hold the scattered gradients too."""
    store, rows = make_workspace(tmp_path)
    for found in run_ranks(2, moved, store.root, rows, list(overrides)):
        assert found["gathered"] == found["vectors"]
        assert found["summed"] == found["gradients"] + found["vectors"]
