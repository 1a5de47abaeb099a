"""The models of an evaluation: challenger, champion, untrained, and other releases.

One model at a time is on the device. Item vectors are read from a model's release if they are usable.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch

from configs.schema.config import Config
from infra.store.manifest import CorruptFolder, MissingFolder
from infra.store.records import find_record
from tasks.contracts.evaluation import Role
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.references import CheckpointRef
from tasks.foundation.errors import ConfigError
from tasks.planning.preflight_encoder import describe_encoder, pretrained_folder
from tasks.worker.catalogue.reuse import EarlierVectors
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.evaluation.released_items import Reader, ReleasedItems
from tasks.worker.model import features
from tasks.worker.model.embed import EmbedSettings, embed_settings
from tasks.worker.model.features import FeatureTable
from tasks.worker.process.job import Job
from tasks.worker.training.build import first_model
from tasks.worker.training.checkpoint import ModelParts, load_parts


class WeightsUnavailable(Exception):
    """The initial weights can't be reproduced; the message says why."""


def untrained_parts(config: Config, like: ModelParts) -> ModelParts:
    """Return untrained weights on the host, from the configuration's seed and pretrained folder.

    Args:
        like: a model of the lineage that gives shape, tokenizer and features. If these are unchanged since the first
            run, the result equals that run's initial weights.

    Raises:
        NotThere: the model of the pretrained folder has changed.
        ConfigError: the pretrained folder is missing or no longer usable.
    """
    described = None
    if config.model.pretrained is not None:
        described, _ = describe_encoder(config, pretrained_folder(config.model.pretrained))
    try:
        model = first_model(config, like.encoder_config, like.model.shape, described)
    except (OSError, ValueError, RuntimeError) as error:
        raise WeightsUnavailable(f"the model in {config.model.pretrained} can't be loaded: {error}") from error
    return dataclasses.replace(like, model=model)


UNTRAINED = "untrained"  # version name of untrained weights


class ModelSpec(NamedTuple):
    """A model to measure, by its references; `roles` maps each of its roles to a release number."""

    version: str
    roles: dict[Role, int | None]
    checkpoint: CheckpointRef | None  # None: untrained weights
    vectors: str | None = None

    @property
    def is_champion(self) -> bool:
        return Role.champion in self.roles

    @property
    def is_challenger(self) -> bool:
        return Role.challenger in self.roles

    @property
    def meets_challenger(self) -> bool:
        """True if a larger catalogue's common items are for comparing it with the challenger."""
        return self.vectors is not None and bool(self.roles.keys() - {Role.challenger, Role.previous})


class LoadedModel(NamedTuple):
    """A model on the device, its embedding settings, and the items of its release.

    `config` cuts texts at the release's length, so that queries match the released item vectors.
    """

    version: str
    config: Config
    parts: ModelParts
    settings: EmbedSettings
    released: ReleasedItems | None

    @property
    def features(self) -> list[str]:
        return self.parts.features.columns


def list_models(inputs: EvaluateInputs) -> tuple[ModelSpec, ...]:
    """Return each model once, in the order of measurement: the champion, if any, is first."""
    roles: dict[Role, int | None] = {Role.challenger: None}
    challenger = ModelSpec(inputs.challenger.version, roles, inputs.challenger.checkpoint, inputs.challenger_vectors)
    untrained = ModelSpec(UNTRAINED, {Role.untrained: None}, inputs.begun_with)
    released: dict[str, ModelSpec] = {}
    if inputs.champion is not None:
        champion = inputs.champion
        roles = {Role.champion: inputs.champion_release}
        released[champion.version] = ModelSpec(champion.version, roles, champion.checkpoint, inputs.champion_vectors)
    for rival in inputs.rivals:
        version = rival.model.version
        known = released.get(version) or ModelSpec(version, {}, rival.model.checkpoint, rival.vectors)
        released[version] = known._replace(roles={**known.roles, rival.role: rival.release})
    others = tuple(released.values())
    first = tuple(spec for spec in others if spec.is_champion)
    return (*first, challenger, untrained, *(spec for spec in others if not spec.is_champion))


def feature_names(job: Job, specs: Sequence[ModelSpec]) -> list[str]:
    """Return the models' feature columns without loading a model; untrained weights use the challenger's."""
    found: dict[str, None] = {}
    for spec in specs:
        if spec.checkpoint is not None:
            table = find_record(job.shared, f"{spec.checkpoint.prefix}/{features.FILE}", FeatureTable)
            if table is not None:  # else the checkpoint is missing: opening it raises
                found |= dict.fromkeys(table.columns)
    return list(found)


def open_model(
    job: Job, accelerator: Accelerator, spec: ModelSpec, like: ModelParts | None, max_tokens: int | None = None
) -> LoadedModel | None:
    """Return a model on the device; None, with a line in the log, for untrained weights that can't be made.

    Args:
        like: the challenger; untrained weights get its shape, tokenizer and features.
        max_tokens: of a text; None: as for its released vectors, else by the configuration.

    Raises:
        StoreError: a checkpoint is missing, corrupt, or has another checksum.
    """
    parts = load_parts(job.shared, spec.checkpoint) if spec.checkpoint is not None else None
    if parts is None:
        try:
            assert like is not None
            parts = untrained_parts(job.config, like)
        except (WeightsUnavailable, ConfigError) as error:
            print(f"the untrained model is not measured: {error}", flush=True)
        if not _on_all_workers(accelerator, parts is not None):
            return None
    assert parts is not None
    accelerator.to_device(parts.model)
    vectors = _released(job, accelerator, spec) if spec.vectors is not None else None
    config = _cut_at(max_tokens or (vectors.max_tokens if vectors else None), job.config)
    settings = embed_settings(config, accelerator, config.infer.precision)
    reader = Reader(parts.features, parts.model.shape.prompts)
    released = ReleasedItems(job.store, job.shared, vectors, reader) if vectors is not None else None
    return LoadedModel(spec.version, config, parts, settings, released)


def _cut_at(max_tokens: int | None, config: Config) -> Config:
    """Return the configuration with a release's text length, and sequences at least this long."""
    longest = max_tokens or config.infer.max_tokens
    room = max(longest, config.infer.sequence_tokens)
    infer = config.infer.model_copy(update={"max_tokens": longest, "sequence_tokens": room})
    return config.model_copy(update={"infer": infer})


def _released(job: Job, accelerator: Accelerator, spec: ModelSpec) -> EarlierVectors | None:
    """Return the released vectors of a model; None on all workers if they are unusable on any.

    Damaged vectors don't stop the evaluation: the next release replaces the damaged one.
    """
    found = None
    try:
        found = EarlierVectors(job.store, spec.vectors, spec.version, job.shared)
        found.check(job.share)
    except (MissingFolder, CorruptFolder) as error:
        found = None
        who = " and ".join(spec.roles)
        print(f"the {who} embeds all items again, since its released vectors can't be used: {error}", flush=True)
    return found if _on_all_workers(accelerator, found is not None) else None


def _on_all_workers(accelerator: Accelerator, here: bool) -> bool:
    return int(accelerator.sum(torch.tensor(int(here))).item()) == accelerator.rank.world
