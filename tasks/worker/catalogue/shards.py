"""The shards of one vectors folder: one per partition of the catalogue, each with a note in the run.

A note is written after its shard: a partition with a note is done, in this attempt or an earlier one.
"""

import hashlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import sha256_of
from infra.store.lease import HeldLease
from infra.store.manifest import FileEntry, commit, place_beside, read_manifest, seal
from infra.store.placing import settle
from infra.store.records import read_record
from tasks.contracts.jobs import InferInputs
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.workspace import BAD_ITEMS, SHARD, SHARD_LEASE
from tasks.data.items import VECTORS_KIND
from tasks.foundation.errors import CodeError, StoreError
from tasks.worker.catalogue.earlier_shards import BadItem, Counted, ShardNote, earlier_shards
from tasks.worker.process.job import Job

QUARANTINE_KIND = "quarantine"
_SHOWN = 3  # bad items in an error's sentence


class Shards:
    """The shards of the vectors that a job makes."""

    def __init__(self, job: Job) -> None:
        inputs = job.spec.inputs
        assert isinstance(inputs, InferInputs)
        self._job, self._store, self._inputs = job, job.store, inputs
        self.prefix = inputs.vectors
        self._of = {"run": job.spec.run_key, **inputs.vectors_of}
        self._notes = SHARD.within(**self._of)
        self._earlier = earlier_shards(job)

    def open(self) -> list[int]:
        """Return the partitions without a shard; each worker starts at a different one."""
        there = set(self._store.list(self._notes))
        count = self._inputs.catalogue.partitions
        first = self._job.share.index * count // self._job.share.of
        numbers = [(first + number) % count for number in range(count)]
        return [number for number in numbers if number not in self._earlier.notes and self._note(number) not in there]

    def check_earlier(self) -> None:
        """Delete the notes of an earlier attempt's damaged shards; each worker checks its share."""
        there = set(self._store.list(self._notes))
        for number in range(self._job.share.index, self._inputs.catalogue.partitions, self._job.share.of):
            if self._note(number) in there:
                note = self._read(number)
                if note.attempt != self._job.spec.submitted_as and not self._whole(note):
                    self._store.delete(self._note(number))

    def _read(self, number: int) -> ShardNote:
        return read_record(self._store, self._note(number), ShardNote, "delete it, and its shard is made again")

    def _whole(self, note: ShardNote) -> bool:
        if note.file is None:
            return True
        path = self._store.local(note.file.key(self.prefix))
        return path.is_file() and sha256_of(path) == note.file.sha256

    def done(self, number: int) -> bool:
        """Return True if another worker has finished the partition."""
        return self._store.exists(self._note(number))

    def lease(self, number: int) -> str:
        """Return the key of a partition's lease."""
        return SHARD_LEASE.key(**self._of, shard=number)

    def commit(self, number: int, path: Path, note: ShardNote, lease: HeldLease) -> None:
        """Upload a shard, then its note; a shard equal to an earlier one is named.

        Raises:
            StoreError: the lease was lost; another worker has the partition.
        """
        lease.check()
        if note.file is not None:
            same = self._same(number, note)
            note = note.model_copy(update={"file": same or place_beside(self._store, path, self.prefix, note.file)})
        settle(self._store, self._note(number), note.to_json())

    def _same(self, number: int, note: ShardNote) -> FileEntry | None:
        """Return the earlier shard with this content; an export, for example, gives all items another time."""
        there = self._earlier.files.get(number)
        if there is None or note.file is None or note.reused != note.vectors:
            return None  # not all reused: the earlier file may be damaged
        return there if there.sha256 == note.file.sha256 else None

    def seal(self) -> InferOutcome:
        """Write the manifest of the vectors and return the outcome; every worker would write the same.

        Raises:
            CodeError: too many items have no vector.
            StoreError: the shards don't contain every item of the catalogue exactly once.
        """
        catalogue, spec = self._inputs.catalogue, self._job.spec
        notes = [self._earlier.notes.get(number) or self._read(number) for number in range(catalogue.partitions)]
        bad = [item for note in notes for item in note.bad]
        vectors = sum(note.vectors for note in notes)
        self._refuse(bad, vectors)
        reused = sum(note.reused for note in notes)
        accelerators = self._accelerators(vectors - reused, reused)
        ids = hashlib.sha256("".join(note.ids_sha256 for note in notes).encode()).hexdigest()
        facts = {
            "model_version": self._inputs.model.version,
            "catalogue": catalogue.model_dump(),
            "vectors": vectors,
            "bad": len(bad),
            "width": max(note.width for note in notes),
            "type": self._job.config.infer.vectors,
            "max_tokens": self._job.config.infer.max_tokens,
            "accelerators": accelerators,
            "ids_sha256": ids,
            "shards": [list(Counted(note.vectors, len(note.bad), note.ids_sha256)) for note in notes],
        }
        files = tuple(note.file for note in notes if note.file is not None)
        seal(self._store, self.prefix, files, VECTORS_KIND, facts)
        seconds: dict[int, float] = {}
        for note in notes:
            seconds[note.worker] = seconds.get(note.worker, 0.0) + note.seconds
        embedded = vectors - reused
        return InferOutcome(
            prefix=self.prefix,
            catalogue=catalogue,
            vectors=vectors,
            width=facts["width"],
            shards=len(files),
            shards_reused=sum(note.attempt != spec.submitted_as for note in notes),
            vectors_reused=reused,
            accelerators=tuple(accelerators),
            bad=len(bad),
            quarantine=self._quarantine(bad),
            ids_sha256=ids,
            texts_per_second=round(embedded / max(seconds.values()), 2) if embedded else 0.0,
        )

    def _accelerators(self, embedded: int, reused: int) -> list[str]:
        """Return the accelerators of all vectors, as in `[cpu, xla]` after a refresh on another machine."""
        found = {self._job.config.accelerator} if embedded else set[str]()
        if reused and self._inputs.reuse is not None:
            facts = read_manifest(self._job.shared, self._inputs.reuse).facts
            found.update(facts.get("accelerators", ["not recorded"]))
        return sorted(found)

    def _refuse(self, bad: list[BadItem], vectors: int) -> None:
        catalogue = self._inputs.catalogue
        if vectors + len(bad) != catalogue.items:
            raise StoreError(
                f"{self._store.uri}/{self.prefix} has {vectors} vectors and {len(bad)} bad items, but "
                f"{catalogue.prefix} has {catalogue.items} items; run infer again"
            )
        if bad and len(bad) > self._job.config.infer.max_bad_share * catalogue.items:
            shown = "; ".join(f"{item.item_id!r}: {item.reason}" for item in bad[:_SHOWN])
            raise CodeError(
                f"{len(bad)} of {catalogue.items} items have no usable vector, more than infer.max_bad_share "
                f"{self._job.config.infer.max_bad_share:g}: {shown}; the model should not be released"
            )

    def _quarantine(self, bad: list[BadItem]) -> str | None:
        """Write the bad items as Parquet; return the file's key, None without bad items."""
        if not bad:
            return None
        prefix = BAD_ITEMS.of(self._job.spec)
        with self._job.scratch() as folder:
            pq.write_table(pa.Table.from_pylist([item.model_dump() for item in bad]), folder / "items.parquet")
            commit(self._store, prefix, folder, QUARANTINE_KIND, {"rows": len(bad)})
        return f"{prefix}/items.parquet"

    def _note(self, number: int) -> str:
        return SHARD.key(**self._of, shard=number)
