"""The model that nothing trained: the weights with which the lineage began, as far as they can be made again."""

import torch
from transformers import AutoModel

from configs.schema.config import Config
from tasks.worker.model.embedding_model import EmbeddingModel
from tasks.worker.training.build import pretrained_folder
from tasks.worker.training.checkpoint import ModelParts


class NotThere(Exception):
    """The weights can't be made again; says why."""


def untrained_parts(config: Config, like: ModelParts) -> ModelParts:
    """Return new weights of the configuration's seed, or those of its pretrained folder, on the host.

    Args:
        like: a model of the lineage, whose shape, tokenizer and features they get. If it has those of the first run,
            the weights are those with which that run began.

    Raises:
        NotThere: the pretrained folder is gone, or its model is another one now.
    """
    torch.manual_seed(config.seed)
    model = EmbeddingModel(like.encoder_config, like.model.shape)
    if config.model.pretrained is not None:
        folder = pretrained_folder(config.model.pretrained)
        try:
            pretrained = AutoModel.from_pretrained(folder, local_files_only=True)
            model.encoder.load_state_dict(pretrained.state_dict())
        except (OSError, ValueError, RuntimeError) as error:
            raise NotThere(f"the model in {folder} can't be loaded: {error}") from error
    return ModelParts(model, like.tokenizer, like.features, like.encoder_config, like.tokenizer_settings)
