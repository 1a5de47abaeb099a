"""Tries the release of an untrained model before any training: a model that can't be served is not trained.

A pretrained folder may load here but not in its consumers' library, or differently there.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from configs.schema.model import FeaturesConfig
from tasks.data.rows import QUERY, TEXT
from tasks.foundation.errors import ConfigError, FailureClass, classify
from tasks.preflight.encoder import pretrained_folder
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.export.export import export_model
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.features import Side, encode_features
from tasks.worker.model.tokens import tokenize
from tasks.worker.process.job import Rank
from tasks.worker.search.consumer import Given, encode_apart
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.start import build_parts

# Different lengths, one of them cut; capitals, accents, digits and another script, which tokenizers treat differently.
TEXTS = ("Lamp", "2 Crème-brûlée Töpfe für 14.50 €; 赤い靴 & a red CHAIR", "one more word about it " * 400)
SIDES: tuple[Side, ...] = ("query", "item")
_NO_RELEASE = "so no model of this lineage could be released; nothing was trained"


def try_release(config: Config) -> None:
    """Export a pretrained folder's model as a release does, and encode texts with it as consumers do.

    Features are left out: the folder has none.

    Raises:
        ConfigError: the folder's model can't be built, exported or loaded, or its vectors differ after the export.
    """
    assert config.model.pretrained is not None
    folder = pretrained_folder(config.model.pretrained)
    config = _without_features(config)
    try:
        parts = build_parts(config, ())
        with tempfile.TemporaryDirectory(prefix="millrace-") as name:
            export_model(parts, config, "untrained", Path(name))
            given = Given(Path(name), pa.table({QUERY: TEXTS}), pa.table({TEXT: TEXTS}))
            exported = encode_apart(given)[0]
            trained = {side: _vectors(parts, config, side) for side in SIDES}
    except Exception as error:  # libraries raise many kinds for an unsuitable folder
        if classify(error) is not FailureClass.CODE:
            raise
        raise ConfigError(
            f"model.pretrained: the model in {folder} can't be exported, {_NO_RELEASE}: {error}"
        ) from error
    for side, theirs in zip(SIDES, (exported.queries, exported.items), strict=True):
        cosines = (trained[side] * theirs).sum(axis=1)
        worst, least = int(np.argmin(cosines)), config.release.min_cosine
        if not cosines[worst] >= least:  # true for NaN too
            raise ConfigError(
                f"model.pretrained: sentence-transformers gives the {side} {TEXTS[worst]!r:.60} another vector than "
                f"training would, with the model in {folder}: cosine {cosines[worst]:.6f}, below release.min_cosine "
                f"{least}, {_NO_RELEASE}. Save the folder's tokenizer again with transformers, or give another folder"
            )


def _without_features(config: Config) -> Config:
    interaction = config.model.interaction.model_copy(update={"kind": "none"})
    none = FeaturesConfig(numeric=(), categorical=(), query=(), entity=config.features.entity)
    model = config.model.model_copy(update={"interaction": interaction})
    return config.model_copy(update={"model": model, "features": none})


def _vectors(parts: ModelParts, config: Config, side: Side) -> np.ndarray:
    """Return the texts' unit vectors as in training and infer, float32 (texts, width)."""
    tokens = tokenize(
        parts.tokenizer, TEXTS, config.infer.max_tokens, parts.model.pad, getattr(parts.model.shape.prompts, side)
    )
    features = encode_features(parts.features, pa.table({TEXT: TEXTS}), side)
    # The consumers' library computes in fp32 on the host, before any machine with a device is rented.
    with open_accelerator("cpu", Rank(0, 1, 0), config, "fp32") as accelerator:
        settings = embed_settings(config, accelerator, "fp32")
        return embed(parts.model, accelerator, tokens, features, settings, shared=False)
