"""The hard negatives of a run: mined with one release, and stored in `negatives/<key>/` for later attempts and runs."""

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from configs.schema.config import Config
from configs.schema.training import NegativesConfig
from infra.store.base import Conflict, Store
from infra.store.manifest import CorruptFolder, MissingFolder, commit, open_folder, quarantine
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import MinedRelease
from tasks.contracts.usage import MinedNegatives
from tasks.contracts.workspace import NEGATIVES
from tasks.data.label_columns import feature_columns, pair_mask
from tasks.data.rows import ITEM_ID, ROW_ID, TEXT
from tasks.foundation.errors import StoreError
from tasks.worker.catalogue.records import choose
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.features import encode_features
from tasks.worker.model.tokens import prompts_of, tokenize
from tasks.worker.process.job import Job
from tasks.worker.search.mine_negatives import Mined, ReleasedItems, mine, open_release
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.known_pairs import KnownPositives
from tasks.worker.training.pair_arrays import HardNegatives
from tasks.worker.training.row_keys import id_keys, text_keys

KIND = "negatives"
OF_ROWS = "rows.parquet"  # per training row: numbers of items, nearest first, then -1
ITEMS = "items.parquet"  # by number: item id, text and features from the release's catalogue
_NUMBERS = "items"


class Found(NamedTuple):
    """`of_row` int32 (rows, per_query): numbers of items, nearest first, then -1.

    `items` has ITEM_ID, TEXT and the features; `facts` are from the manifest.
    """

    of_row: np.ndarray
    items: pa.Table
    facts: dict[str, int]


def prefix_of(config: Config, inputs: TrainInputs, training: Iterable[pa.Table]) -> tuple[str, int]:
    """Return the folder's prefix, a hash of the rows, the release and the settings, and the number of rows."""
    rows, count = hashlib.sha256(), 0
    for table in training:
        rows.update("\n".join(table[ROW_ID].to_pylist()).encode() + b"\n")
        rows.update(pair_mask(table, config.heads).tobytes())
        count += table.num_rows
    head = config.heads.contrastive
    assert head is not None
    assert head.negatives is not None
    assert inputs.mined is not None
    made_of = {
        "rows": rows.hexdigest(),
        "known": {"rows": [ref.prefix for ref in (*inputs.history, *inputs.rows)], "golden": inputs.golden},
        "release": inputs.mined.model_dump(mode="json"),
        "settings": head.negatives.model_dump(mode="json"),
        "infer": [config.infer.precision, config.accelerator],
        "features": feature_columns(config),
    }
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    return NEGATIVES.key(key=key), count


def is_there(store: Store, prefix: str) -> bool:
    """Return True if the folder is complete; a damaged one is moved to quarantine/, to be mined again."""
    try:
        open_folder(store, prefix, KIND)
    except MissingFolder:
        return False
    except CorruptFolder as error:
        print(f"{error}; moved to {quarantine(store, prefix)}, mining again", flush=True)
        return False
    return True


def keep(
    store: Store,
    prefix: str,
    mined: Mined,
    released: ReleasedItems,
    release: MinedRelease,
    features: Sequence[str],
    scratch: Path,
) -> None:
    """Write the folder, unless another run has written it meanwhile.

    Raises:
        MissingFolder, CorruptFolder: the catalogue of the release is missing, damaged, or lacks an item.
    """
    places = np.unique(mined.places[mined.places >= 0])
    ids = {place: item.item_id for place, item in released.vectors.items(places).items()}
    items = choose(store, release.catalogue, sorted(ids.values()), 0, features)
    items = items.select([ITEM_ID, TEXT, *dict.fromkeys(features)])
    number = {item_id: row for row, item_id in enumerate(items[ITEM_ID].to_pylist())}
    if missing := sorted(set(ids.values()) - set(number)):
        raise CorruptFolder(f"{store.uri}/{release.catalogue.prefix} lacks item {missing[0]!r}, which has a vector")
    numbers = np.array([number[ids[place]] for place in places.tolist()], dtype=np.int32)
    of_row = np.full(mined.places.shape, -1, dtype=np.int32)
    there = mined.places >= 0
    of_row[there] = numbers[np.searchsorted(places, mined.places[there])]
    lists = pa.FixedSizeListArray.from_arrays(pa.array(of_row.reshape(-1)), mined.places.shape[1])
    pq.write_table(pa.table({_NUMBERS: lists}), scratch / OF_ROWS)
    pq.write_table(items, scratch / ITEMS)
    facts = {"release": release.number, "rows": len(of_row), "items": items.num_rows, "embedded": mined.embedded}
    try:
        commit(store, prefix, scratch, KIND, facts)
    except Conflict:
        print(f"{store.uri}/{prefix} was mined by another run meanwhile, and is used", flush=True)


def read(store: Store, prefix: str) -> Found:
    """Return the content of the folder. Raises MissingFolder, CorruptFolder: it is missing or damaged."""
    folder, manifest = open_folder(store, prefix, KIND)
    lists = pq.read_table(folder / OF_ROWS)[_NUMBERS].combine_chunks()
    of_row = lists.flatten().to_numpy().reshape(-1, lists.type.list_size)
    return Found(of_row, pq.read_table(folder / ITEMS), manifest.facts)


def negative_arrays(found: Found, rows: int, parts: ModelParts, config: Config) -> HardNegatives | None:
    """Return the hard negatives of the pairs of a run, None if there are none.

    Args:
        rows: number of all rows; rows replayed from earlier spans come last and get no hard negatives.
    """
    if not found.items.num_rows:
        return None
    longest = config.train.max_tokens.item
    parts = parts.of("item")
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
    prefix, rows = prefix_of(job.config, inputs, training)
    seen = job.rank.is_main and is_there(job.store, prefix)
    there = bool(accelerator.sum(torch.tensor(int(seen))).item())
    if not there:
        try:
            _mine(job, inputs.mined, training, known, accelerator, prefix, rows, head.negatives)
        except StoreError as error:
            raise StoreError(
                f"hard negatives can't be mined from release {inputs.mined.number}: {error}. Restore it from a backup, "
                "or train without them: --set heads.contrastive.negatives=null"
            ) from error
    found = read(job.shared, prefix)
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
            keep(job.store, prefix, mined, opened.items, release, feature_columns(job.config), scratch)
    accelerator.barrier()
