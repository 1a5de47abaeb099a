"""Load the hard negatives of a run from the workspace, or mine them. Every worker calls this at the same point."""

import time
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from configs.schema.config import Config
from configs.schema.training import NegativesConfig
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import MinedRelease
from tasks.contracts.usage import MinedNegatives
from tasks.data.items import TEXT
from tasks.data.rows import ITEM_ID
from tasks.foundation.errors import StoreError
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.features import encode_features
from tasks.worker.model.prompts import prompts_of
from tasks.worker.model.tokens import tokenize
from tasks.worker.process.job import Job
from tasks.worker.search import negatives
from tasks.worker.search.mine_negatives import mine, open_release
from tasks.worker.search.negatives import Found
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.known_pairs import KnownPositives
from tasks.worker.training.pair_arrays import HardNegatives
from tasks.worker.training.tokenised import id_keys, text_keys
from tasks.worker.training.training_rows import feature_columns


def negative_arrays(found: Found, rows: int, parts: ModelParts, config: Config) -> HardNegatives | None:
    """Return the hard negatives of the pairs of a run, None if there are none.

    Args:
        rows: number of all rows; rows replayed from earlier spans come last and get no hard negatives.
    """
    if not found.items.num_rows:
        return None
    longest = config.train.max_tokens.item
    prompt = prompts_of(found.items, "item", parts.model.shape.prompts, parts.features.entity)
    return HardNegatives(
        of_row=np.pad(found.of_row, ((0, rows - len(found.of_row)), (0, 0)), constant_values=-1),
        tokens=tokenize(parts.tokenizer, found.items[TEXT].to_pylist(), longest, parts.model.pad, prompt),
        features=encode_features(parts.features, found.items, "item"),
        item_key=id_keys(found.items[ITEM_ID]),
        text_key=text_keys(found.items[TEXT]),
    )


class Mining(NamedTuple):
    """The hard negatives of a run, and the counts for its report."""

    found: Found
    counts: MinedNegatives


def find_negatives(
    job: Job, inputs: TrainInputs, training: Iterable[pa.Table], known: KnownPositives, accelerator: Accelerator
) -> Mining | None:
    """Return the hard negatives of the training rows, and counts; None without a release to mine.

    Args:
        known: the relevant items of each query, which are never its negatives.

    Raises:
        StoreError: the release is missing or damaged. Training does not silently go on without negatives.
        ConfigError: the released model needs a feature that the configuration does not name.
    """
    head = job.config.heads.contrastive
    if head is None or head.negatives is None:
        return None
    if inputs.mined is None:
        print("no hard negatives yet: there was no release to mine when this run began", flush=True)
        return None
    began = time.monotonic()
    prefix, rows = negatives.prefix_of(job.config, inputs, training)
    seen = job.rank.is_main and negatives.is_there(job.store, prefix)
    there = bool(accelerator.sum(torch.tensor(int(seen))).item())
    if not there:
        try:
            _mine(job, inputs.mined, training, known, accelerator, prefix, rows, head.negatives)
        except StoreError as error:
            raise StoreError(
                f"hard negatives can't be mined from release {inputs.mined.number}: {error}. Restore it from a backup, "
                "or train without them: --set heads.contrastive.negatives=null"
            ) from error
    found = negatives.read(job.shared, prefix)
    facts, real = found.facts, found.of_row >= 0
    counts = MinedNegatives(
        release=facts["release"],
        pairs=int(real[:, 0].sum()),
        negatives=int(real.sum()),
        items=facts["items"],
        embedded=0 if there else facts["embedded"],
        seconds=round(time.monotonic() - began, 3),
    )
    how = "kept from before" if there else f"{counts.embedded} texts embedded"
    print(f"{counts.negatives} hard negatives of release {counts.release} for {counts.pairs} pairs; {how}", flush=True)
    return Mining(found, counts)


def _mine(
    job: Job,
    release: MinedRelease,
    training: Iterable[pa.Table],
    known: KnownPositives,
    accelerator: Accelerator,
    prefix: str,
    rows: int,
    settings: NegativesConfig,
) -> None:
    accelerator.name_work("mining of hard negatives")
    opened = open_release(job, accelerator, release)
    mined = mine(job, accelerator, opened, training, known, settings, rows)
    if job.rank.is_main:
        with job.scratch() as scratch:
            negatives.keep(job.store, prefix, mined, opened.items, release, feature_columns(job.config), scratch)
    accelerator.barrier()
