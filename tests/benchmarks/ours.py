"""Millrace's side of the benchmark: the very step and embedding that the stages use, without the stages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from tasks.worker.accelerators import Accelerator
from tasks.worker.accelerators.base import Precision
from tasks.worker.model.embed import EmbedSettings, embed
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import tokenize
from tasks.worker.training.batches import make_batch, plan_for, shape_for
from tasks.worker.training.build import build_parts
from tasks.worker.training.optimizer import make_optimizer
from tasks.worker.training.pairs import make_pairs
from tasks.worker.training.step import TrainStep

MAX_TOKENS = 128


class Millrace:
    """One training run, to be stepped through, and its model's encoding."""

    def __init__(self, config: Config, accelerator: Accelerator, training: pa.Table, epochs: int) -> None:
        self.config, self.accelerator = config, accelerator
        self.parts = build_parts(config, [training])
        accelerator.to_device(self.parts.model)
        self.parts.model.train()
        self.precision = accelerator.choose_precision(config.train.precision)
        optimizer = make_optimizer(self.parts.model, config.train, accelerator)
        self._step = TrainStep(self.parts.model, optimizer, accelerator, config, self.precision)
        self._pairs = make_pairs([training], self.parts, config)
        train = config.train.model_copy(update={"epochs": epochs})
        planned = config.model_copy(update={"train": train})
        self._plan = plan_for(planned, 0, self._pairs)
        self._shape = shape_for(planned, 0, self._pairs, accelerator.rank.world)
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
        return int((self._plan[self._next].rows >= 0).sum())

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text of both sides, int64 (2 * pairs,)."""
        return np.concatenate([self._pairs.query.lengths, self._pairs.item.lengths])

    def lengths_of(self, texts: list[str]) -> np.ndarray:
        """Tokens of each text as `encode` cuts it, int64 (texts,)."""
        return tokenize(self.parts.tokenizer, texts, MAX_TOKENS, self.parts.model.pad).lengths

    def step(self) -> None:
        """The next training step, its batch made as in training."""
        batch = make_batch(
            self._pairs, self._plan.rows(self._next), self._plan.tokens, self._shape, self.accelerator.rank
        )
        self._step(batch.to(self.accelerator.device), self._next)
        self._next += 1

    def encode(self, texts: list[str], precision: Precision) -> np.ndarray:
        """Unit vectors, float32 (texts, width), tokenising included."""
        tokens = tokenize(self.parts.tokenizer, texts, MAX_TOKENS, self.parts.model.pad)
        none = FeatureArrays(np.zeros((len(texts), 0), np.float32), np.zeros((len(texts), 0), np.int64))
        settings = EmbedSettings(self.config.infer.batch_sequences, self.config.infer.sequence_tokens, precision)
        return embed(self.parts.model, self.accelerator, tokens, none, settings)
