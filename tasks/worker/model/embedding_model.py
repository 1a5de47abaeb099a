"""The model: a Hugging Face text encoder, pooling, feature interaction, and heads for several tasks; and its shape.

It knows nothing of devices, workers or files; `training/start.py` makes a model and `checkpoint.py` saves it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import nn
from torch.func import functional_call
from transformers import AutoModel, PretrainedConfig

from configs.schema.config import Config
from configs.schema.model import LabelHead
from configs.schema.training import LARGEST_SCALE
from tasks.contracts.references import HeadSolved, LabelHeadSolved
from tasks.data.pretrained import Activation, TextShape, first_position, kind_of
from tasks.foundation.records import Record
from tasks.worker.devices.encoder_layers import offsets_of, takes_lengths
from tasks.worker.model.features import FeatureArrays, FeatureTable
from tasks.worker.model.interaction import Interaction
from tasks.worker.model.packing import Packing, UnpaddedTexts, pool, segments_of


class InteractionShape(Record):
    """The arguments of `Interaction`."""

    text_width: int
    numeric: int
    categories: list[int]
    kind: Literal["explicit", "implicit", "both"]
    cross_layers: int
    deep_widths: list[int]
    categorical_width: int
    output_width: int


class LabelHeadShape(Record):
    """A label head: its input, and the meaning of its outputs."""

    input: Literal["query", "pair"]
    outputs: int
    meaning: dict[str, float | list[str]]  # by setting name of the head, e.g. `classes`


class ModelShape(TextShape):
    """The architecture of a model around its encoder. Saved in every checkpoint."""

    width: int
    interaction: InteractionShape | None
    classifier: Literal["query", "pair"] | None
    learnt_scale: float | None = None  # initial value; null: fixed scale
    label_heads: dict[str, LabelHeadShape] = Field(default={})


def shape_of(config: Config, encoder_width: int, features: FeatureTable, text: TextShape) -> ModelShape:
    """Return the shape of a configured model on an encoder of `encoder_width`, with pooling and prompts of `text`."""
    model, head = config.model, config.heads.classification
    text_width = text.text_width(encoder_width)
    width = model.embedding_width or text_width
    interaction = None
    if model.interaction.kind != "none":
        interaction = InteractionShape(
            text_width=text_width,
            numeric=len(features.numeric),
            categories=features.categories,
            kind=model.interaction.kind,
            cross_layers=model.interaction.cross_layers,
            deep_widths=list(model.interaction.deep_widths),
            categorical_width=model.interaction.categorical_width,
            output_width=width,
        )
    return ModelShape(
        pooling=text.pooling,
        dense=text.dense,
        prompts=text.prompts,
        width=width,
        interaction=interaction,
        classifier=head.input if head else None,
        learnt_scale=config.heads.learnt_scale,
        label_heads={name: _label_head(each) for name, each in config.heads.of_labels.items()},
    )


def _label_head(head: LabelHead) -> LabelHeadShape:
    return LabelHeadShape(input=head.input, outputs=head.outputs, meaning=head.meaning)


def input_width(kind: Literal["query", "pair"], width: int) -> int:
    """Return the input width of a head on vectors of `width`: the query, or query, item and their product."""
    return width if kind == "query" else 3 * width


# A step of AdamW is about as large as the learning rate, tuned for an encoder. This single number must move farther.
_PACE = 100.0


class LearntScale(nn.Module):
    """A scale between 1 and LARGEST_SCALE; its weight is a scalar, which weight decay skips."""

    def __init__(self, scale: float) -> None:
        """Start at `scale`, which lies between the bounds."""
        super().__init__()
        share = math.log(scale) / math.log(LARGEST_SCALE)
        self.logit = nn.Parameter(torch.tensor(math.log(share / (1.0 - share)) / _PACE))

    def forward(self) -> torch.Tensor:
        """Return the scale, float32 ()."""
        # The value is _PACE times the weight, but the gradient is not scaled, so that clipping sees its real size.
        value = self.logit + (_PACE - 1.0) * self.logit.detach()
        return torch.exp(math.log(LARGEST_SCALE) * torch.sigmoid(value))


# Activation functions after a dense layer.
ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "identity": lambda values: values,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
}
LayerMasks = torch.Tensor | dict[str, torch.Tensor]
MASKED = -1e4  # far below any attention score, and representable in bf16; -inf would make padding rows NaN


@dataclass(frozen=True)
class Texts:
    """B texts, packed into R sequences of T tokens.

    `ids`, `segments`, `positions` int64 (R, T): the token, the number of its text in the sequence (-1: padding), and
    its place in its text; `place` int64 (B,): sequence * segments of a sequence + segment, of each text, or R *
    segments of a sequence for a text without tokens; `numeric` float32 (B, N); `categorical` int64 (B, C).
    """

    ids: torch.Tensor
    segments: torch.Tensor
    positions: torch.Tensor
    place: torch.Tensor
    numeric: torch.Tensor
    categorical: torch.Tensor

    @classmethod
    def of(
        cls,
        packing: Packing,
        tokens: tuple[np.ndarray, ...],
        features: FeatureArrays,
        count: int | None = None,
    ) -> Texts:
        """Return packed texts as tensors on the host.

        Args:
            tokens: ids, segments and positions, as `Packing.tokens` returns them.
            features: one row per text.
            count: pad to this number of texts; added texts have no tokens.
        """
        missing = 0 if count is None else count - len(packing.sequence)
        sequences, width = tokens[0].shape
        nowhere = sequences * segments_of(width)
        place = np.where(packing.length, packing.sequence * segments_of(width) + packing.segment, nowhere)
        ids, segments, positions = (torch.from_numpy(each) for each in tokens)
        return cls(
            ids,
            segments,
            positions,
            torch.from_numpy(np.pad(place, (0, missing), constant_values=nowhere)),
            torch.from_numpy(np.pad(features.numeric, ((0, missing), (0, 0)))),
            torch.from_numpy(np.pad(features.categorical, ((0, missing), (0, 0)))),
        )

    def to(self, device: torch.device) -> Texts:
        return Texts(**{name: value.to(device) for name, value in vars(self).items()})


class EmbeddingModel(nn.Module):
    """Texts with features -> unit vectors, and the heads on top of them."""

    def __init__(self, encoder_config: PretrainedConfig, shape: ModelShape) -> None:
        super().__init__()
        kind = kind_of(encoder_config.model_type)
        attention = "eager" if kind.own_attention else "sdpa"
        if kind.decoder:
            encoder_config.use_cache = False  # the cache is for generation; no token is generated
        # In fp32 even if the pretrained weights are saved in another type: the configuration decides the precision.
        self.encoder = AutoModel.from_config(encoder_config, attn_implementation=attention, dtype=torch.float32)
        self.causal = kind.causal
        self.reach = local_reach(encoder_config)
        self.shape = shape
        self.width = shape.width
        self.pad: int = encoder_config.pad_token_id or 0
        self._heads: int = encoder_config.num_attention_heads
        self._embeddings = "embed_tokens" if kind.decoder else "embeddings"  # attribute of the encoder
        embeddings = self.encoder.get_submodule(self._embeddings)
        embeddings.output_dtype = None
        embeddings.register_forward_hook(_to_output_dtype)  # here, as no graph can register one
        self.first_position = first_position(encoder_config.model_type, self.pad)
        self.dense = nn.ModuleList(nn.Linear(each.inputs, each.outputs, bias=each.bias) for each in shape.dense)
        text_width = shape.text_width(encoder_config.hidden_size)
        self.interaction: Interaction | None = None
        self.projection: nn.Linear | None = None
        if shape.interaction is not None:
            self.interaction = Interaction(**shape.interaction.model_dump())
        elif shape.width != text_width:
            self.projection = nn.Linear(text_width, shape.width, bias=False)
        self._converted: dict[str, torch.Tensor] = {}  # encoder weights in autocast's type
        self.classifier: nn.Linear | None = None
        self.solved: HeadSolved | None = None  # how the classifier was solved; saved in the checkpoint's state
        if shape.classifier is not None:
            self.classifier = nn.Linear(input_width(shape.classifier, shape.width), 2)
        self.scale: LearntScale | None = None
        self.learn_scale(shape.learnt_scale)
        self.label_heads = nn.ModuleDict(
            {name: nn.Linear(input_width(head.input, shape.width), head.outputs)
             for name, head in shape.label_heads.items()}
        )  # fmt: skip
        self.labels_solved: dict[str, LabelHeadSolved] = {}  # like `solved`, by label head

    def learn_scale(self, begin: float | None) -> None:
        """Add a learnt scale that starts at `begin` unless the model has one; None: remove it."""
        if begin is None:
            self.scale = None
        elif self.scale is None:
            self.scale = LearntScale(begin)
        self.shape = self.shape.model_copy(update={"learnt_scale": begin})

    def keep_encoder_in_bf16(self) -> None:
        """Convert the encoder's weights but not its buffers: rotary angles are too coarse in bf16."""
        for weight in self.encoder.parameters():
            weight.data = weight.data.to(torch.bfloat16)

    def scale_or(self, fixed: float) -> float | torch.Tensor:
        """Return the learnt scale, float32 (), or `fixed` if the model learns none."""
        return fixed if self.scale is None else self.scale()

    def forget_solutions(self) -> None:
        """Drop the solutions of the heads: they no longer hold once a step has changed the weights."""
        self.solved, self.labels_solved = None, {}

    @property
    def threshold(self) -> float:
        """Lowest probability of class 1 for which the classifier predicts class 1."""
        return 0.5 if self.solved is None else self.solved.threshold

    def forward(self, texts: Texts | UnpaddedTexts) -> torch.Tensor:
        """Return unit vectors, float32 (B, E); for a text without tokens the vector is finite but meaningless."""
        if isinstance(texts, Texts):
            return self.vectors(self.pool(texts), texts)
        groups = self.for_layers(texts.groups, texts.groups)
        hidden = self._encode(texts.ids, groups, texts.positions + self.first_position).float()
        with torch.autocast(hidden.device.type, enabled=False):
            return self.finish(pool(hidden[0], texts.groups, self.shape.pooling), texts.numeric, texts.categorical)

    def pool(self, texts: Texts) -> torch.Tensor:
        """Return the pooled vector of each segment, float32 (R * segments, D), from ids, segments and positions."""
        mask = self._mask(texts)
        hidden = self._encode(texts.ids, mask, texts.positions + self.first_position).float()
        with torch.autocast(hidden.device.type, enabled=False):
            return self._pool(hidden, texts)

    def _mask(self, texts: Texts) -> LayerMasks:
        segments = texts.segments
        if takes_lengths(self.encoder) and not self.causal and self.reach is None:
            return offsets_of(segments, segments_of(segments.shape[1]))
        # A token attends to tokens of its own text. Padding attends to padding, so that no softmax row is empty. The
        # mask is additive, expanded to all heads and in the type of the scores, so that no layer converts or copies it.
        apart = segments[:, :, None] != segments[:, None, :]
        if self.causal:
            apart = apart | (texts.positions[:, :, None] < texts.positions[:, None, :])
        mask = near = self._additive(apart)
        if self.reach is not None:
            distance = (texts.positions[:, :, None] - texts.positions[:, None, :]).abs()
            near = self._additive(apart | (distance > self.reach))
        return self.for_layers(mask, near)

    def _additive(self, apart: torch.Tensor) -> torch.Tensor:
        """Return the additive mask of each head, (R, heads, T, T), from bool (R, T, T): True masks a pair of tokens."""
        dtype = _autocast_dtype(apart.device) or next(self.encoder.parameters()).dtype
        mask = torch.zeros(apart[:, None].shape, device=apart.device, dtype=dtype).masked_fill_(apart[:, None], MASKED)
        return mask.expand(-1, self._heads, -1, -1).contiguous()

    def for_layers(self, all_tokens: torch.Tensor, near: torch.Tensor) -> LayerMasks:
        """Return the encoder's mask argument; encoders with local windows take one mask per kind of layer."""
        return all_tokens if self.reach is None else {"full_attention": all_tokens, "sliding_attention": near}

    def vectors(self, pooled: torch.Tensor, texts: Texts) -> torch.Tensor:
        """Return unit vectors, float32 (B, E), from pooled segments and the places and features of `texts`."""
        with torch.autocast(pooled.device.type, enabled=False):
            pooled = F.pad(pooled, (0, 0, 0, 1)).index_select(0, texts.place)  # zeros for texts without tokens
            return self.finish(pooled, texts.numeric, texts.categorical)

    def finish(self, pooled: torch.Tensor, numeric: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        """Return unit vectors, float32 (B, E), from pooled texts (B, D) and features, which an interaction crosses."""
        for layer, each in zip(self.dense, self.shape.dense, strict=True):
            pooled = ACTIVATIONS[each.activation](layer(pooled))
        if self.interaction is not None:
            pooled = self.interaction(pooled, numeric, categorical)
        elif self.projection is not None:
            pooled = self.projection(pooled)
        return F.normalize(pooled, dim=1)

    def _encode(self, ids: torch.Tensor, mask: LayerMasks, positions: torch.Tensor) -> torch.Tensor:
        """Return hidden states (R, T, D); `mask` is additive, the groups of unpadded texts, or packed ones' offsets.

        Inside autocast the whole encoder computes in autocast's type. Autocast itself would convert the inputs of each
        matrix product and run all other operations in fp32, which takes longer than the products. Here each weight is
        converted once, and its gradient arrives in fp32. The token embeddings stay in fp32 and only their output is
        converted, because a batch uses few of them.
        """
        given = {"input_ids": ids, "attention_mask": mask, "position_ids": positions}
        dtype = _autocast_dtype(ids.device)
        if dtype is None:
            return self.encoder(**given).last_hidden_state
        weights = self._converted or self._convert(dtype)
        with torch.autocast(ids.device.type, enabled=False):
            embeddings: Any = self.encoder.get_submodule(self._embeddings)
            embeddings.output_dtype = dtype
            try:
                return functional_call(self.encoder, weights, kwargs=given).last_hidden_state
            finally:
                embeddings.output_dtype = None

    def _convert(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        named = self.encoder.named_parameters()
        return {name: weight.to(dtype) for name, weight in named if not name.startswith(f"{self._embeddings}.")}

    @contextlib.contextmanager
    def cache_converted_weights(self) -> Iterator[None]:
        """Convert the weights for autocast once for the block, inside which they must not change."""
        dtype = _autocast_dtype(next(self.parameters()).device)
        if dtype is not None:
            self._converted = self._convert(dtype)
        try:
            yield
        finally:
            self._converted = {}

    def _pool(self, hidden: torch.Tensor, texts: Texts) -> torch.Tensor:
        """Return the pooled vector of each segment, float32 (R * segments, D), from hidden states (R, T, D)."""
        numbers = torch.arange(segments_of(hidden.shape[1]), device=hidden.device)
        belongs = texts.segments[:, None, :] == numbers[None, :, None]
        if self.shape.pooling == "cls":
            weights = (belongs & (texts.positions == 0)[:, None, :]).float()
        elif self.shape.pooling == "last":
            followed = F.pad(texts.segments[:, 1:], (0, 1), value=-1)
            weights = (belongs & (texts.segments != followed)[:, None, :]).float()
        else:
            weights = belongs.float()
            weights = weights / weights.sum(dim=2, keepdim=True).clamp(min=1.0)
        return torch.bmm(weights, hidden).flatten(0, 1)

    def classify(self, query: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """Return logits of the two classes, float32 (B, 2), from unit vectors (B, E)."""
        assert self.classifier is not None
        return self.classifier(_seen(self.shape.classifier, query, item))

    def label_outputs(self, head: str, query: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """Return the outputs of a label head, float32 (B, outputs), from unit vectors (B, E)."""
        return self.label_heads[head](_seen(self.shape.label_heads[head].input, query, item))


def _to_output_dtype(module: nn.Module, given: tuple[Any, ...], out: torch.Tensor) -> torch.Tensor:
    """Convert the token embeddings to the type that `_encode` has set; None: leave them as they are."""
    dtype: Any = module.output_dtype
    return out if dtype is None else out.to(dtype)


def local_reach(encoder_config: PretrainedConfig) -> int | None:
    """Return how many tokens to either side a local attention layer sees; None if the encoder has no such layer."""
    if "sliding_attention" not in (getattr(encoder_config, "layer_types", None) or ()):
        return None
    if encoder_config.model_type == "modernbert":
        return encoder_config.local_attention // 2
    return encoder_config.sliding_window - 1  # the token at that distance is already outside


def _seen(kind: str | None, query: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
    return query if kind == "query" else torch.cat([query, item, query * item], dim=1)


def _autocast_dtype(device: torch.device) -> torch.dtype | None:
    """Return autocast's type; None outside autocast."""
    kind = device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
