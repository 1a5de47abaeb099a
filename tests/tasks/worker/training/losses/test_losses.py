"""The losses, against their formulas."""

import copy
import dataclasses
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.model.embedding_model import EmbeddingModel
from tasks.worker.process.job import Rank
from tasks.worker.training.batches import Batch, BatchShape, choose_shape, make_batch, make_plan
from tasks.worker.training.losses import batch_losses, classification_part, contrastive_part
from tasks.worker.training.pair_arrays import Pairs
from tasks.worker.training.plan import PADDING
from tasks.worker.training.start import build_parts
from tasks.worker.training.training_rows import make_pairs
from tests.support.models.texts import packed
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import CLASSIFIER, FEATURES, LABEL_HEADS, all_rows, make_workspace, tiny_config

ALONE = Rank(0, 1, 0)
BOTH_HEADS = (CLASSIFIER, "heads.contrastive.positives_only=true")
CONFIG = tiny_config(*FEATURES, *BOTH_HEADS, *LABEL_HEADS, "heads.multiclass.loss=balanced", "train.row_weight=price")
ALL_HEADS = ("contrastive", "classification", "multiclass", "regression")


def batch_of(
    excluded: list[list[bool]], pair: list[float] | None = None, label_class: list[int] | None = None
) -> Batch:
    rows = len(excluded)
    pair = pair or [1.0] * rows
    label_class = label_class or [-1] * rows
    return Batch(
        texts=packed([], 8),
        label_class=torch.tensor(label_class),
        pair=torch.tensor(pair),
        excluded=torch.tensor(excluded),
        excluded_queries=torch.zeros(rows, 0, dtype=torch.bool),
        popularity=torch.zeros(0),
        popularity_queries=torch.zeros(0),
        position=torch.arange(rows),
        pairs_in_all=torch.tensor(sum(pair)),
        label_weight=torch.tensor([float(one >= 0) for one in label_class]),
        labels_in_all=torch.tensor(float(sum(one >= 0 for one in label_class))),
        labels=torch.zeros(rows, 0),
        head_weight=torch.zeros(rows, 0),
        known_in_all=torch.zeros(0),
    )


QUERY = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
ITEMS = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
NONE_EXCLUDED = [[False, False], [False, False]]
# cosines: row 0 has 1.0 with its own item and 0.6 with the other, row 1 has 0.8 and 0.0
ROW_0, ROW_1 = math.log(1 + math.exp(2 * (0.6 - 1.0))), math.log(1 + math.exp(2 * (0.0 - 0.8)))


def test_the_contrastive_loss_of_known_cosines():
    loss = contrastive_part(QUERY, ITEMS, batch_of(NONE_EXCLUDED), scale=2.0)
    assert loss.item() == pytest.approx((ROW_0 + ROW_1) / 2)


def test_an_excluded_item_is_no_negative():
    loss = contrastive_part(QUERY, ITEMS, batch_of([[False, True], [False, False]]), scale=2.0)
    assert loss.item() == pytest.approx((0.0 + ROW_1) / 2)


def test_popular_negatives_count_less_and_the_own_item_as_it_is():
    batch = dataclasses.replace(batch_of(NONE_EXCLUDED), popularity=torch.tensor([math.log(3.0), -math.log(2.0)]))
    loss = contrastive_part(QUERY, ITEMS, batch, scale=2.0)
    rows = math.log(1 + 2 * math.exp(2 * (0.6 - 1.0))), math.log(1 + math.exp(2 * (0.0 - 0.8)) / 3)
    assert loss.item() == pytest.approx(sum(rows) / 2)


def test_a_row_that_is_no_pair_does_not_count_but_its_item_is_a_negative():
    loss = contrastive_part(QUERY, ITEMS, batch_of(NONE_EXCLUDED, pair=[1.0, 0.0]), scale=2.0)
    assert loss.item() == pytest.approx(ROW_0)


def test_the_classification_loss_of_known_logits():
    logits = torch.tensor([[0.0, 2.0], [1.0, 0.0], [5.0, 5.0]])
    loss = classification_part(logits, batch_of([[False] * 3] * 3, label_class=[1, 1, -1]))
    assert loss.item() == pytest.approx((math.log(1 + math.exp(-2)) + math.log(1 + math.exp(1))) / 2)


def test_rows_judged_right_already_count_little_in_the_focal_loss():
    logits = torch.tensor([[0.0, 4.0], [0.0, 0.0]])
    batch = batch_of([[False] * 2] * 2, label_class=[1, 1])
    sure, unsure = math.log(1 + math.exp(-4)), math.log(2)
    expected = ((1 - math.exp(-sure)) ** 2 * sure + 0.25 * unsure) / 2
    assert classification_part(logits, batch, focal=True).item() == pytest.approx(expected)


def test_a_batch_without_pairs_and_labels_has_loss_zero():
    empty = batch_of(NONE_EXCLUDED, pair=[0.0, 0.0])
    assert contrastive_part(QUERY, ITEMS, empty, scale=2.0).item() == 0.0
    assert classification_part(torch.ones(2, 2), empty).item() == 0.0


def priced(rows: pa.Table) -> pa.Table:
    """With the weights 0, 1 and 2, as prices."""
    return rows.set_column(rows.column_names.index("price"), "price", pa.array(np.arange(rows.num_rows) // 3 % 3.0))


def model_and_pairs(folder: Path) -> tuple[EmbeddingModel, Pairs]:
    """A model with a trained interaction, and pairs with repeated items."""
    store, rows = make_workspace(folder, rows=48, distinct=10)
    table = priced(all_rows(store, [rows], CONFIG))
    parts = build_parts(CONFIG, [table])
    torch.manual_seed(5)
    torch.nn.init.normal_(parts.model.interaction.out.weight, std=0.1)  # type: ignore[union-attr]
    return parts.model, make_pairs([table], parts, CONFIG)


def losses_and_gradients(model: EmbeddingModel, pairs: Pairs, rows: np.ndarray, rank: Rank) -> dict[str, torch.Tensor]:
    """This rank's parts of the losses, and the gradients summed over the ranks."""
    part = len(rows) // rank.world
    batch = make_batch(pairs, rows, pairs.query.lengths + pairs.item.lengths, BatchShape(part, part, 32), rank)
    with open_accelerator("cpu", rank) as accelerator:
        losses = batch_losses(model, batch, CONFIG.heads, accelerator)
        losses["loss"].backward()
        accelerator.reduce_gradients(torch.optim.SGD(model.parameters()))
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {name: loss.detach() for name, loss in losses.items()} | gradients


def run_rank(rank: Rank, folder: Path) -> None:
    model, pairs = model_and_pairs(folder / str(rank.index))
    save_file(losses_and_gradients(model, pairs, full_batch(), rank), folder / f"rank{rank.index}.safetensors")


def full_batch() -> np.ndarray:
    return np.arange(0, 48, 3)


def test_padding_rows_have_no_influence(tmp_path: Path):
    model, pairs = model_and_pairs(tmp_path)
    rows = np.array([3, 8, 13, 20, 21, 30])
    bare = losses_and_gradients(model, pairs, rows, ALONE)
    bare = {name: value.clone() for name, value in bare.items()}
    model.zero_grad()
    padded_rows = np.concatenate([rows, np.full(4, PADDING)])
    padded = losses_and_gradients(model, pairs, padded_rows, ALONE)
    assert all(bare[name] > 0 for name in ALL_HEADS)
    assert list(padded) == list(bare)
    for name, value in bare.items():
        torch.testing.assert_close(padded[name], value, rtol=1e-4, atol=5e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_the_loss_is_the_weighted_sum_of_the_heads(tmp_path: Path):
    losses = losses_and_gradients(*model_and_pairs(tmp_path), full_batch(), ALONE)
    weights = {"contrastive": 1.0, "classification": 0.5, "multiclass": 0.05, "regression": 0.05}
    assert losses["loss"].item() == pytest.approx(sum(weights[name] * losses[name].item() for name in ALL_HEADS))


def test_two_workers_have_the_loss_and_gradients_of_one(tmp_path: Path):
    run_ranks(2, run_rank, tmp_path)
    first, second = (load_file(tmp_path / f"rank{index}.safetensors") for index in range(2))
    alone = losses_and_gradients(*model_and_pairs(tmp_path), full_batch(), ALONE)
    assert set(first) == set(alone)
    assert first["contrastive"] != second["contrastive"], "each worker has a part of its own"
    for name in ("loss", *ALL_HEADS):
        torch.testing.assert_close(first[name] + second[name], alone[name], rtol=1e-5, atol=1e-6)
    for name in set(alone) - {"loss", *ALL_HEADS}:
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], alone[name], rtol=1e-4, atol=5e-6, msg=lambda m, n=name: f"{n}: {m}")
    moved = [name for name, value in alone.items() if value.abs().max() > 1e-4]
    assert len(moved) > 20, "gradients of zero would agree whatever the workers did"


def test_a_row_counts_as_its_weight_says_and_pairs_by_their_number():
    weighted = dataclasses.replace(batch_of(NONE_EXCLUDED, pair=[1.5, 0.5]), pairs_in_all=torch.tensor(2.0))
    loss = contrastive_part(QUERY, ITEMS, weighted, scale=2.0)
    assert loss.item() == pytest.approx((1.5 * ROW_0 + 0.5 * ROW_1) / 2)


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


def test_queries_alone_have_the_loss_of_both_sides_and_leave_the_items_model_as_it_is(tmp_path: Path):
    model, pairs = model_and_pairs(tmp_path)
    of_items = copy.deepcopy(model).requires_grad_(False)
    tokens = pairs.query.lengths + pairs.item.lengths
    together, apart = BatchShape(16, 16, 32), BatchShape(16, 16, 32, of_items=16)
    losses = []
    with open_accelerator("cpu", ALONE) as accelerator:
        for shape in (together, apart):
            batch = make_batch(pairs, full_batch(), tokens, shape, ALONE)
            losses.append(batch_losses(model, batch, CONFIG.heads, accelerator, of_items=of_items)["contrastive"])
        losses[1].backward()
    assert losses[1].item() == pytest.approx(losses[0].item(), rel=1e-6)
    assert all(each.grad is None for each in of_items.parameters())
    words = next(each for name, each in model.named_parameters() if "word_embeddings" in name)
    assert words.grad is not None
    changed = words.grad.abs().sum(dim=1).nonzero().flatten().tolist()
    assert changed
    assert {*changed} <= {*pairs.query.of(full_batch())[0].tolist()}
