"""The model that nothing trained: the weights with which the lineage began, as far as they can be made again."""

import dataclasses

from configs.schema.config import Config
from tasks.planning.preflight_encoder import describe_encoder, pretrained_folder
from tasks.worker.training.build import first_model
from tasks.worker.training.checkpoint import ModelParts


class NotThere(Exception):
    """The weights can't be made again; says why."""


def untrained_parts(config: Config, like: ModelParts) -> ModelParts:
    """Return new weights of the configuration's seed, with all that its pretrained folder has, on the host.

    Args:
        like: a model of the lineage, whose shape, tokenizer and features they get. If it has those of the first run,
            the weights are those with which that run began.

    Raises:
        NotThere: the pretrained folder's model is another one now.
        ConfigError: the pretrained folder is gone, or can't be used any more.
    """
    described = None
    if config.model.pretrained is not None:
        described, _ = describe_encoder(config, pretrained_folder(config.model.pretrained))
    try:
        model = first_model(config, like.encoder_config, like.model.shape, described)
    except (OSError, ValueError, RuntimeError) as error:
        raise NotThere(f"the model in {config.model.pretrained} can't be loaded: {error}") from error
    return dataclasses.replace(like, model=model)
