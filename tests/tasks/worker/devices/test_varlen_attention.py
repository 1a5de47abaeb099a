"""The attention of GPUs, on the CPU: the same code with torch's plain kernels in place of FlashAttention."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig

from configs.schema.model import Prompts
from tasks.worker.devices.encoder_layers import MATMUL, VARLEN, offsets_of, use_attention, varlen_attention
from tasks.worker.model.embedding_model import EmbeddingModel, ModelShape
from tests.support.models.texts import packed

# Torch says that nested tensors may change; their use of padding on a CPU is not that of a GPU.
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")

TEXTS = [list(range(5, 5 + length)) for length in (12, 3, 9, 1, 7)]


def test_offsets_cut_rows_at_each_text_and_at_the_padding():
    segments = torch.tensor([[0, 0, 1, -1], [-1, -1, -1, -1], [0, 0, 0, 0]])
    assert offsets_of(segments, 2).flatten().tolist() == [0, 2, 3, 4, 4, 4, 8, 12, 12, 12]


@pytest.mark.shows("texts by their lengths")
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "mpnet"])
def test_texts_by_their_lengths_have_the_vectors_and_gradients_of_a_mask(kind: str):
    small = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model(kind, intermediate_size=32, max_position_embeddings=40, **small)
    shape = ModelShape(pooling="mean", prompts=Prompts(), width=16, interaction=None, classifier=None)
    torch.manual_seed(3)
    by_mask = EmbeddingModel(config, shape).eval()
    by_length = copy.deepcopy(by_mask)
    use_attention(by_mask, MATMUL)
    use_attention(by_length, VARLEN)
    texts, made = packed(TEXTS, 24, sequences=3), {}  # the last row is padding
    for name, model in (("mask", by_mask), ("length", by_length)):
        vectors = model(texts)
        (vectors * torch.linspace(-1, 1, vectors.numel()).view_as(vectors)).sum().backward()
        gradients = [weight.grad.flatten() for weight in model.encoder.parameters() if weight.grad is not None]
        made[name] = vectors.detach(), torch.cat(gradients)
    assert (made["mask"][0] - made["length"][0]).abs().max() < 1e-5
    assert F.cosine_similarity(made["mask"][1], made["length"][1], dim=0) > 0.99999


def test_bf16_on_a_gpu_calls_flash_attention_itself(monkeypatch: pytest.MonkeyPatch):
    """Nested tensors, refused here, find the same operation in Python: four fifths of a step on an H100."""
    monkeypatch.setattr(torch.nested, "nested_tensor_from_jagged", None)
    with FakeTensorMode():  # shapes and dtypes of a GPU, without one
        query, key, value = (torch.empty(2, 4, 16, 8, dtype=torch.bfloat16, device="cuda") for _ in range(3))
        offsets = torch.empty(1, 1, 1, 5, dtype=torch.int64, device="cuda")
        seen, _ = varlen_attention(torch.nn.Module(), query, key, value, offsets)
    assert seen.shape == (2, 16, 4, 8)
    assert seen.dtype == torch.bfloat16


@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="needs a GPU")
def test_flash_attention_has_the_bits_of_nested_tensors(monkeypatch: pytest.MonkeyPatch):
    segments = torch.full((2, 128), -1)
    for text, (first, end) in enumerate([(0, 5), (5, 45), (45, 45), (45, 128)]):  # the third is absent
        segments[0, first:end] = text
    offsets = offsets_of(segments.cuda(), 5)
    torch.manual_seed(3)
    sides = [torch.randn(2, 12, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    made = []
    for dtypes in ((torch.bfloat16,), ()):
        monkeypatch.setattr("tasks.worker.devices.encoder_layers.FLASH_DTYPES", dtypes)
        own = [side.clone().requires_grad_() for side in sides]
        seen, _ = varlen_attention(torch.nn.Module(), own[0], own[1], own[2], offsets)
        seen.square().sum().backward()
        made.append([seen.detach(), *(side.grad for side in own)])
    for flash, nested in zip(*made, strict=True):
        assert torch.equal(flash[0], nested[0])  # the second row is padding


def test_an_encoder_with_local_layers_keeps_its_mask():
    config = AutoConfig.for_model(
        "modernbert", vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        local_attention=4, global_attn_every_n_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        cls_token_id=1, sep_token_id=2,
    )  # fmt: skip
    shape = ModelShape(pooling="mean", prompts=Prompts(), width=16, interaction=None, classifier=None)
    torch.manual_seed(3)
    model = EmbeddingModel(config, shape).eval()
    other = copy.deepcopy(model)
    use_attention(model, MATMUL)
    use_attention(other, VARLEN)
    with torch.no_grad():
        assert (model(packed(TEXTS, 24)) - other(packed(TEXTS, 24))).abs().max() < 1e-5
