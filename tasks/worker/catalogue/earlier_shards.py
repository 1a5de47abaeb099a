"""Reused shards: a manifest of new vectors points to the old shard of each unchanged partition."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import Field

from infra.store.base import Store
from infra.store.manifest import (
    CorruptFolder,
    FileEntry,
    Manifest,
    MissingFolder,
    expect_manifest,
    read_manifest,
)
from infra.store.soundness import find_damage, in_turn, sentence_of, set_apart
from tasks.contracts.jobs import InferInputs
from tasks.contracts.references import CatalogueRef
from tasks.data.items import VECTORS_KIND, part_name
from tasks.foundation.records import Record
from tasks.worker.process.job import Job


def expect_vectors(store: Store, prefix: str, manifest: Manifest, model_version: str) -> None:
    """Raise CorruptFolder, which names both models, unless a folder holds vectors by this model."""
    by = manifest.facts.get("model_version")
    if manifest.kind != VECTORS_KIND or by != model_version:
        what = f"{store.uri}/{prefix} holds {manifest.kind} by {by}"
        raise CorruptFolder(f"{what}, expected {VECTORS_KIND} by {model_version}")


class BadItem(Record):
    item_id: str
    reason: str


class ShardNote(Record):
    """`runs/<run key>/infer/shards/<model>/<catalogue>/<number>.json`: the shard of one partition is complete."""

    file: FileEntry | None = Field(description="null: the partition has no item with a vector")
    attempt: int
    worker: int
    vectors: int
    reused: int = Field(description="vectors copied from an earlier release of the same model")
    width: int
    bad: tuple[BadItem, ...]
    ids_sha256: str = Field(description="over the item ids, one on each line")
    seconds: float


class Counted(NamedTuple):
    """Counts of one shard, which the facts of a manifest have as `shards`, by partition."""

    vectors: int
    bad: int
    ids_sha256: str


class EarlierShards(NamedTuple):
    """Shards of earlier vectors; their files lie in other folders."""

    notes: dict[int, ShardNote]  # by partition; they need not be made again
    files: dict[int, FileEntry]  # of all partitions


def earlier_shards(job: Job) -> EarlierShards:
    """Return the earlier vectors' shards.

    A partition need not be made again if the file of its items is the same as in the catalogue of the earlier vectors,
    all of these got a vector, vectors are stored as they were, and its shard is sound. A damaged one is set apart.
    """
    inputs, infer = job.spec.inputs, job.config.infer
    assert isinstance(inputs, InferInputs)
    if inputs.reuse is None:
        return EarlierShards({}, {})
    try:
        vectors = read_manifest(job.shared, inputs.reuse)
        expect_manifest(job.shared, inputs.reuse, vectors, inputs.reuse_sha256)
        expect_vectors(job.shared, inputs.reuse, vectors, inputs.model.version)
        damage = find_damage(job.shared, inputs.reuse, vectors, in_turn(vectors.files, inputs.turn))
        before = CatalogueRef.model_validate(vectors.facts["catalogue"])
        items = read_manifest(job.shared, before.prefix)
        expect_manifest(job.shared, before.prefix, items, before.sha256)
    except (MissingFolder, CorruptFolder) as error:
        print(f"no shard is taken from earlier vectors: {error}", flush=True)
        return EarlierShards({}, {})
    facts = vectors.facts
    alike = (facts["type"], facts["max_tokens"], before.partitions)
    if alike != (infer.vectors, infer.max_tokens, inputs.catalogue.partitions) or "shards" not in facts:
        return EarlierShards({}, {})
    if damage:
        print(f"{sentence_of(damage)}: its items are embedded again", flush=True)
        set_apart(job.store, inputs.reuse, vectors, damage)
    now = read_manifest(job.shared, inputs.catalogue.prefix)
    files = {number: entry for number, entry in _named(inputs.reuse, vectors).items() if entry.name not in damage}
    notes = {
        number: ShardNote(
            file=files.get(number),
            attempt=job.spec.submitted_as,
            worker=0,
            vectors=counted.vectors,
            reused=counted.vectors,
            width=facts["width"],
            bad=(),
            ids_sha256=counted.ids_sha256,
            seconds=0.0,
        )
        for number, counted in _same(items, now, [Counted(*each) for each in facts["shards"]])
        if part_name(number) not in damage
    }
    return EarlierShards(notes, files)


def _named(prefix: str, manifest: Manifest) -> dict[int, FileEntry]:
    number_of = {part_name(number): number for number in range(manifest.facts["catalogue"]["partitions"])}
    return {number_of[entry.name]: entry.named_from(prefix) for entry in manifest.files}


def _same(before: Manifest, now: Manifest, shards: list[Counted]) -> Iterator[tuple[int, Counted]]:
    """Yield the partitions with the same file of live items in both catalogues, unless an item got no vector."""
    old, new = ({entry.name: entry.sha256 for entry in each.files} for each in (before, now))
    for number, counted in enumerate(shards):
        if not counted.bad and old.get(part_name(number)) == new.get(part_name(number)):
            yield number, counted
