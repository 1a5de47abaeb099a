"""Millrace's side of the benchmark: the very step and embedding that the stages use, without the stages."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import TokenLists, tokenize
from tasks.worker.training.batches import Batches, choose_shape, make_plan
from tasks.worker.training.loop import TrainStep
from tasks.worker.training.optimizer import make_optimizer
from tasks.worker.training.start import build_parts
from tasks.worker.training.training_rows import make_pairs

Arithmetic = Literal["bf16", "fp32"]


class Millrace:
    """One training run, to be stepped through, and its model's encoding."""

    def __init__(self, config: Config, accelerator: Accelerator, training: pa.Table) -> None:
        self.config, self.accelerator = config, accelerator
        self.parts = build_parts(config, [training])
        accelerator.to_device(self.parts.model)
        self.parts.model.train()
        self.precision = accelerator.choose_precision(config.train.precision)
        optimizer = make_optimizer(self.parts.model, config.train, accelerator)
        self._step = TrainStep(self.parts.model, optimizer, accelerator, config, self.precision)
        self._pairs = make_pairs([training], self.parts, config)
        self._plan = make_plan(config, 0, self._pairs)
        self._shape = choose_shape(config, 0, self._pairs, accelerator.rank.world)
        every = Batches(self._pairs, self._plan, self._shape, accelerator.rank, range(len(self._plan)))
        self._batches = iter(accelerator.feed(every))
        self._next = 0

    @property
    def steps(self) -> int:
        return len(self._plan)

    @property
    def pairs(self) -> int:
        return len(self._pairs)

    @property
    def next_pairs(self) -> int:
        """Pairs of the next step."""
        return int((self._plan.rows(self._next) >= 0).sum())

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text of both sides, int64 (2 * pairs,)."""
        return np.concatenate([self._pairs.query.lengths, self._pairs.item.lengths])

    @property
    def computed_tokens(self) -> int:
        """Tokens of a step, padding included."""
        return self._shape.sequences * self._shape.tokens

    def step(self) -> None:
        """The next training step, its batch made as in training."""
        self._step(next(self._batches), self._next)
        self._next += 1

    def lengths_of(self, texts: list[str]) -> np.ndarray:
        """Tokens of each text as `encode` cuts it, int64 (texts,)."""
        return self._tokens(texts).lengths

    def encode(self, texts: list[str], precision: Arithmetic) -> np.ndarray:
        """Unit vectors, float32 (texts, width), tokenising included."""
        none = FeatureArrays(np.zeros((len(texts), 0), np.float32), np.zeros((len(texts), 0), np.int64))
        settings = embed_settings(self.config, self.accelerator, precision)
        return embed(self.parts.model, self.accelerator, self._tokens(texts), none, settings)

    def _tokens(self, texts: list[str]) -> TokenLists:
        return tokenize(self.parts.tokenizer, texts, self.config.infer.max_tokens, self.parts.model.pad)
