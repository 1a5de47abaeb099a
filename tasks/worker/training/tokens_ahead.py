"""The tokens of a run's spans, made by validate: on all cores of a processor, before accelerators wait for them.

Train finds them by a hash of all that they are made of, and makes its own if it has another tokenizer or rule.
"""

import json
from collections.abc import Sequence

from configs.schema.config import Config
from configs.schema.model import Prompts
from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, open_file, read_manifest
from tasks.contracts.references import CheckpointRef, HoldoutRule, RowsRef
from tasks.data.holdout import TrainingSpan, exclude_development_rows
from tasks.foundation.errors import StoreError
from tasks.preflight.encoder import describe_encoder, pretrained_folder
from tasks.worker.model import tokens
from tasks.worker.process.cores import Cores
from tasks.worker.training.tokenised import SHAPE_FILE, Recipe, open_tokens, tokenizer_of


def tokenise_ahead(
    store: Store,
    config: Config,
    rows: Sequence[RowsRef],
    history: Sequence[RowsRef],
    parent: CheckpointRef | None,
    cores: Cores,
) -> None:
    """Make the tokens of a run's training rows. A new lineage without a pretrained folder has no tokenizer yet.

    Args:
        rows: the spans of the run, with their sides.

    Raises:
        StoreError: the parent checkpoint can't be read.
        MissingFolder, CorruptFolder: the rows, or their sides, are missing or damaged.
    """
    recipe = _recipe(store, config, parent)
    if recipe is None:
        return
    rule = exclude_development_rows(HoldoutRule.of(config.evaluate, (*history, *rows)), config, rows)
    for ref in rows:
        open_tokens(store, TrainingSpan(store, ref, rule, recipe.columns), recipe, cores=cores)


def _recipe(store: Store, config: Config, parent: CheckpointRef | None) -> Recipe | None:
    most, name = config.train.max_tokens, config.model.pretrained
    if parent is not None:
        try:
            manifest = read_manifest(store, parent.prefix)
            shape = open_file(store, parent.prefix, manifest, SHAPE_FILE)
            tokenizer = tokens.load_tokenizer(open_file(store, parent.prefix, manifest, tokens.FILE).parent)
        except (MissingFolder, CorruptFolder) as error:
            raise StoreError(f"the parent checkpoint can't be read: {error}") from error
        prompts = Prompts.model_validate(json.loads(shape.read_text(encoding="utf-8"))["prompts"])
    elif name is not None and pretrained_folder(name).is_dir():
        described, text = describe_encoder(config, pretrained_folder(name))
        tokenizer, prompts = tokenizer_of(described), text.prompts
    else:
        return None
    return Recipe(tokenizer, most.query, most.item, prompts, config.features.entity)
