"""The models of an evaluation: challenger, champion, untrained, and other releases, with their items.

One model at a time is on the device. Two models are compared as models, not by the age of their vectors. A released
model keeps the vectors that it serves of unchanged items. If it reads another text or another feature of an item now,
it embeds the item again, as its next refresh would. A feature that it does not use changes nothing.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import torch

from configs.schema.config import Config
from configs.schema.model import Prompts
from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder
from infra.store.records import find_record
from tasks.contracts.evaluation import Role
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.references import ModelRef
from tasks.data.rows import CONTENT, ITEM, ITEM_ID, QUERY, TEXT, VECTOR, part_name
from tasks.foundation.errors import ConfigError
from tasks.preflight.encoder import describe_encoder, pretrained_folder
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import EarlierVectors, as_matrix
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model import features
from tasks.worker.model.embed import EmbedSettings, embed_settings
from tasks.worker.model.features import FeatureTable, encode_features
from tasks.worker.model.tokens import prompts_of
from tasks.worker.process.job import Job, Share
from tasks.worker.training.checkpoint import ModelParts, load_released
from tasks.worker.training.start import first_model

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

BATCH_ITEMS = 4096

# From tables of items, with TEXT and features, to the same tables with their unit vectors, float32 (items, width).
Embed = Callable[[Iterator[pa.Table]], Iterator[tuple[pa.Table, np.ndarray]]]


class Reader(NamedTuple):
    """All that a model reads of an item besides its text."""

    features: FeatureTable
    prompts: Prompts

    def alike(self, now: pa.Table, then: pa.Table) -> np.ndarray:
        """Return bool (items,): True if the model reads an item as it did then. Both tables have the same items."""
        sides = [self._completed(table) for table in (now, then)]
        texts = [np.array(side[TEXT].to_pylist(), dtype=object) for side in sides]
        same: np.ndarray = texts[0] == texts[1]
        numeric, categorical = zip(
            *((each.numeric, each.categorical) for each in (encode_features(self.features, s, "item") for s in sides)),
            strict=True,
        )
        same &= (numeric[0] == numeric[1]).all(axis=1) & (categorical[0] == categorical[1]).all(axis=1)
        prompts = [prompts_of(side, "item", self.prompts, self.features.entity) for side in sides]
        if not isinstance(prompts[0], str):
            same &= np.array(prompts[0], dtype=object) == np.array(prompts[1], dtype=object)
        return same

    def _completed(self, items: pa.Table) -> pa.Table:
        """Return the items with null for a feature that their catalogue lacks."""
        for name in self.features.columns:
            if name not in items.column_names:
                items = items.append_column(name, pa.nulls(items.num_rows, pa.float64()))
        return items


class ReleasedPartition(NamedTuple):
    """A partition of a release: ids and content hashes of its vectors, and the items that these were made of."""

    known: pa.Table | None  # None: it has no vector
    then: Callable[[], pa.Table | None]  # reads the items; None: they are not readable any more
    reader: Reader

    def find(self, items: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Look items up.

        Args:
            items: ITEM_ID, TEXT, CONTENT and the features of today.

        Returns:
            int64 (items,): the row in the partition, -1 if absent; bool (items,): True if the model reads the item as
            it did when the vector was made.
        """
        same = np.zeros(items.num_rows, dtype=bool)
        if self.known is None:
            return np.full(items.num_rows, -1, dtype=np.int64), same
        at = places(items, self.known)
        held = np.flatnonzero(at >= 0)
        equal = pc.equal(items[CONTENT].take(pa.array(held)), self.known[CONTENT].take(pa.array(at[held])))
        same[held] = pc.fill_null(equal, False).to_numpy()
        if len(other := held[~same[held]]) and (then := self.then()) is not None:
            place = places(some := items.take(pa.array(other)), then)
            there = np.flatnonzero(place >= 0)
            now, before = some.take(pa.array(there)), then.take(pa.array(place[there]))
            same[other[there]] = self.reader.alike(now, before)
        return at, same


class ReleasedItems:
    """The vectors of a release, next to the items that they were made of."""

    def __init__(self, store: Store, manifests: Store, vectors: EarlierVectors, reader: Reader) -> None:
        """Open the release's catalogue, if it exists; its manifest is read from `manifests`."""
        self.vectors, self._reader = vectors, reader
        self._catalogue: Catalogue | None = None
        if vectors.catalogue is not None:
            try:
                self._catalogue = Catalogue(store, vectors.catalogue, manifests)
            except (MissingFolder, CorruptFolder) as error:
                print(f"all items whose content hash differs are embedded again: {error}", flush=True)

    def partition(self, earlier: int) -> ReleasedPartition:
        """Return a partition by its number in the release."""
        known = self.vectors.table(earlier, [ITEM_ID, CONTENT])
        return ReleasedPartition(known, lambda: self._then(earlier), self._reader)

    def known(self, items: pa.Table, width: int, share: Share) -> tuple[np.ndarray, np.ndarray]:
        """Return the usable vectors of items in this worker's share of the release.

        Args:
            items: as for `ReleasedPartition.find`, one row for each item.

        Returns:
            bool (items,), True if there is one; float32 (items, width), zeros otherwise.
        """
        which, vectors = np.zeros(items.num_rows, dtype=bool), np.zeros((items.num_rows, width), dtype=np.float32)
        for earlier in self.vectors.partitions(share):
            at, same = self.partition(earlier).find(items)
            if same.any():
                table = self.vectors.table(earlier, [VECTOR])
                assert table is not None, "an item was found in it"
                which[same] = True
                vectors[same] = as_matrix(table[VECTOR].take(pa.array(at[same])))
        return which, vectors

    def embed_changed(self, catalogue: Catalogue, share: Share, embed: Embed, folder: Path) -> int:
        """Embed the items again that the release holds and its model reads otherwise today; return their number.

        Memory holds a partition. The vectors of each of this worker's partitions are written to the folder, in the type
        that the release stores, for `served_partition`.

        Raises:
            CorruptFolder: a file of the catalogue is damaged.
        """
        many, of = 0, catalogue.ref.partitions
        for number in range(of)[share.index :: share.of]:
            parts = [self.partition(earlier) for earlier in self.vectors.partitions_of(number, of)]
            changed = _gathered(_changed(items, parts) for items in catalogue.items(number, BATCH_ITEMS))
            made = [
                pa.table({ITEM_ID: items[ITEM_ID], VECTOR: self.vectors.stored(vectors)})
                for items, vectors in embed(changed)
            ]
            if made:
                pq.write_table(pa.concat_tables(made), folder / part_name(number))
                many += sum(table.num_rows for table in made)
        return many

    def _then(self, earlier: int) -> pa.Table | None:
        if self._catalogue is None:
            return None
        try:
            return pa.concat_tables(self._catalogue.items(earlier, BATCH_ITEMS))
        except CorruptFolder as error:
            print(f"its items whose content hash differs are embedded again: {error}", flush=True)
            return None


def served_partition(vectors: EarlierVectors, number: int, of: int, again: Path | None) -> pa.Table | None:
    """Return ITEM_ID and VECTOR of a partition, with the new vectors of `embed_changed` in place of old ones.

    Args:
        of: partitions of the catalogue that `number` counts.
        again: the folder of `embed_changed`; None: no item has changed.
    """
    found = [vectors.table(earlier, [ITEM_ID, VECTOR]) for earlier in vectors.partitions_of(number, of)]
    tables = [table for table in found if table is not None]
    if again is not None and (path := again / part_name(number)).exists():
        new = pq.read_table(path)
        ids = new[ITEM_ID].combine_chunks()
        tables = [*(table.filter(pc.invert(pc.is_in(table[ITEM_ID], value_set=ids))) for table in tables), new]
    return pa.concat_tables(tables) if tables else None


def places(items: pa.Table, among: pa.Table) -> np.ndarray:
    """Return the row of each item in another table, int64 (items,); -1 if absent."""
    at = pc.index_in(items[ITEM_ID], value_set=among[ITEM_ID].combine_chunks())
    found: np.ndarray = at.fill_null(-1).to_numpy().astype(np.int64)
    return found


def _changed(items: pa.Table, parts: list[ReleasedPartition]) -> pa.Table:
    changed = np.zeros(items.num_rows, dtype=bool)
    for part in parts:
        at, same = part.find(items)
        changed |= (at >= 0) & ~same
    return items.filter(pa.array(changed))


def _gathered(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield all rows in tables of at least BATCH_ITEMS rows, but for the last; no empty table."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(each.num_rows for each in waiting) >= BATCH_ITEMS:
            yield pa.concat_tables(waiting)
            waiting = []
    if any(each.num_rows for each in waiting):
        yield pa.concat_tables(waiting)


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
    return dataclasses.replace(like, model=model, items=None)


UNTRAINED = "untrained"  # version name of untrained weights


class ModelSpec(NamedTuple):
    """A model to measure, by its references; `roles` maps each of its roles to a release number."""

    version: str
    roles: dict[Role, int | None]
    model: ModelRef | None  # None: untrained weights
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
    challenger = ModelSpec(inputs.challenger.version, roles, inputs.challenger, inputs.challenger_vectors)
    begun = ModelRef(version=UNTRAINED, checkpoint=inputs.begun_with) if inputs.begun_with is not None else None
    untrained = ModelSpec(UNTRAINED, {Role.untrained: None}, begun)
    released: dict[str, ModelSpec] = {}
    if inputs.champion is not None:
        champion = inputs.champion
        roles = {Role.champion: inputs.champion_release}
        released[champion.version] = ModelSpec(champion.version, roles, champion, inputs.champion_vectors)
    for rival in inputs.rivals:
        version = rival.model.version
        known = released.get(version) or ModelSpec(version, {}, rival.model, rival.vectors)
        released[version] = known._replace(roles={**known.roles, rival.role: rival.release})
    others = tuple(released.values())
    first = tuple(spec for spec in others if spec.is_champion)
    return (*first, challenger, untrained, *(spec for spec in others if not spec.is_champion))


def feature_names(job: Job, specs: Sequence[ModelSpec]) -> list[str]:
    """Return the models' feature columns without loading a model; untrained weights use the challenger's."""
    found: dict[str, None] = {}
    for spec in specs:
        for model in () if spec.model is None else (spec.model, spec.model.of_items):
            table = find_record(job.shared, f"{model.checkpoint.prefix}/{features.FILE}", FeatureTable)
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
    parts = load_released(job.shared, spec.model) if spec.model is not None else None
    if parts is None:
        try:
            assert like is not None
            parts = untrained_parts(job.config, like)
        except (WeightsUnavailable, ConfigError) as error:
            print(f"the untrained model is not measured: {error}", flush=True)
        if not _on_all_workers(accelerator, parts is not None):
            return None
    assert parts is not None
    for side in (QUERY, ITEM):
        accelerator.to_device(parts.of(side).model)
    vectors = _released(job, accelerator, spec) if spec.vectors is not None else None
    config = _cut_at(max_tokens or (vectors.max_tokens if vectors else None), job.config)
    settings = embed_settings(config, accelerator, config.infer.precision)
    reader = Reader(parts.of(ITEM).features, parts.of(ITEM).model.shape.prompts)
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
        assert spec.model is not None, "untrained weights have no vectors"
        found = EarlierVectors(job.store, spec.vectors, spec.model.of_items.version, job.shared)
        found.check(job.share)
    except (MissingFolder, CorruptFolder) as error:
        found = None
        who = " and ".join(spec.roles)
        print(f"the {who} embeds all items again, since its released vectors can't be used: {error}", flush=True)
    return found if _on_all_workers(accelerator, found is not None) else None


def _on_all_workers(accelerator: Accelerator, here: bool) -> bool:
    return int(accelerator.sum(torch.tensor(int(here))).item()) == accelerator.rank.world
