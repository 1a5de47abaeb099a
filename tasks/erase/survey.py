"""A look at every file of the workspace: which have rows, items or words that go. It changes nothing."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import MANIFEST, Manifest, read_manifest
from infra.store.records import read_record
from tasks.contracts.kinds import Kind
from tasks.contracts.references import CheckpointState
from tasks.contracts.workspace import CHECKPOINT, MODEL, SPAN, kind_of
from tasks.data.erased import equal_to
from tasks.erase.files import count_rows
from tasks.erase.handling import HANDLING, Part
from tasks.erase.records import KindLine, Trained
from tasks.erase.text import Redaction
from tasks.erase.wanted import Wanted, naming_damage, row_groups, span_of_folder
from tasks.foundation.errors import StoreError
from tasks.runs import releases
from tasks.runs.lineage import STATE

_LOCKS = ".locks/"
_PACKED = ((b"\x1f\x8b", gzip.decompress), (b"BZh", bz2.decompress), (b"\xfd7zXZ", lzma.decompress))


class Changing(NamedTuple):
    """A Parquet file with rows that go."""

    key: str
    kind: Kind
    span: str | None
    rows: int


@dataclass
class Survey:
    """The files that change, by the part that an erasure has in them."""

    parquet: list[Changing] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)  # keys of files and folders that go whole
    texts: list[str] = field(default_factory=list)
    packed: list[str] = field(default_factory=list)
    words: dict[str, list[str]] = field(default_factory=dict)  # folder of a model or checkpoint -> its files with it
    manifests: dict[str, tuple[Kind, Manifest]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)  # keys that are of no kind
    looked: Counter[str] = field(default_factory=Counter)  # by name of the kind
    changed: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)

    @property
    def spans(self) -> dict[str, int]:
        """Rows that go by version of a span, as `2026-W47/v1`."""
        found: Counter[str] = Counter()
        for each in self.parquet:
            if each.kind is SPAN:
                found["/".join(each.key.split("/")[1:3])] += each.rows
        return dict(found)

    def lines(self) -> tuple[KindLine, ...]:
        """Return one line for each kind, in the order of the workspace's table."""
        return tuple(
            KindLine(
                kind=kind.name,
                pattern=kind.pattern,
                part=handling.why or handling.part.value,
                files=self.looked[kind.name],
                changed=self.changed[kind.name],
                rows=self.rows[kind.name],
            )
            for kind, handling in HANDLING.items()
        )


def look(store: Store, wanted: Wanted, redaction: Redaction, say: Callable[[str], None]) -> Survey:
    """Read every file of the workspace, and return the changing ones.

    Raises:
        StoreError: a manifest is not readable; names it.
    """
    found = Survey()
    keys = [key for key in store.list("") if not key.startswith(_LOCKS)]
    for key in keys:
        try:
            kind, _ = kind_of(key)
        except ValueError:
            found.unknown.append(key)
            continue
        if key.endswith(f"/{MANIFEST}") and HANDLING[kind].part in (Part.rows, Part.made_again):
            prefix = key.removesuffix(f"/{MANIFEST}")
            found.manifests[prefix] = kind, read_manifest(store, prefix)
    for number, key in enumerate(keys, start=1):
        if key not in found.unknown:
            _look_at(store, key, kind_of(key)[0], wanted, redaction, found)
        if number % 500 == 0:
            say(f"looked at {number:,} of {len(keys):,} files")
    _derived(found)
    return found


def _look_at(store: Store, key: str, kind: Kind, wanted: Wanted, redaction: Redaction, found: Survey) -> None:
    found.looked[kind.name] += 1
    part = HANDLING[kind].part
    if key.endswith(".parquet") and part in (Part.rows, Part.file, Part.never_needed, Part.made_again, Part.damaged):
        span = None
        folder = kind.folder_of(key) if kind.is_folder else None
        if folder in found.manifests:
            span = span_of_folder(found.manifests[folder][1].facts)
        try:
            with naming_damage(store, key):
                rows = count_rows(store.local(key), wanted, span)
        except StoreError:
            if part in (Part.rows, Part.file):
                raise
            rows = 1  # it may hold anything, and goes
        if rows:
            found.changed[kind.name] += 1
            found.rows[kind.name] += rows
            if part in (Part.rows, Part.file):
                found.parquet.append(Changing(key, kind, span, rows))
            else:
                found.deleted.append(folder if part is Part.made_again and folder is not None else key)
    elif part is Part.damaged:
        if redaction.holds(store.read(key)):
            found.changed[kind.name] += 1
            found.deleted.append(key)
    elif part is Part.text or part is Part.packed:
        (found.texts if part is Part.text else found.packed).append(key)
    elif part is Part.weights and not key.endswith(".safetensors") and redaction.holds(store.read(key)):
        found.words.setdefault(kind.folder_of(key) or key, []).append(key)


def _derived(found: Survey) -> None:
    """Add the folders that are made of rows that go, such as their tokens."""
    changing = {each.kind.folder_of(each.key) if each.kind.is_folder else each.key for each in found.parquet}
    for prefix, (kind, manifest) in found.manifests.items():
        of = manifest.facts.get("of")
        if HANDLING[kind].part is Part.made_again and not changing.isdisjoint(of if isinstance(of, list) else [of]):
            found.deleted.append(prefix)
            found.changed[kind.name] += 1
    found.deleted = list(dict.fromkeys(found.deleted))


def trained_on(store: Store, found: Survey) -> tuple[Trained, ...]:
    """Return the models that were trained on a span version with rows that go, or whose files have the word."""
    of_checkpoint: dict[str, list[int]] = {}
    versions: dict[str, str] = {}
    models: dict[str, str] = {}
    for release in releases.history(store):
        for prefix in {release.model.checkpoint.prefix, release.model.of_items.checkpoint.prefix}:
            of_checkpoint.setdefault(prefix, []).append(release.number)
        versions[release.model.checkpoint.prefix] = release.model.version
        models[release.model.checkpoint.prefix] = release.model_prefix
    trained = []
    for key in store.list("lineages"):
        if CHECKPOINT.match(key) is None or not key.endswith(f"/{STATE}"):
            continue
        prefix = key.rpartition("/")[0]
        state = read_record(store, key, CheckpointState, "restore the checkpoint from a backup")
        spans = [rows.span for rows in state.consumed if f"{rows.span.name}/v{rows.span.version}" in found.spans]
        words = [*found.words.get(prefix, []), *found.words.get(models.get(prefix, MODEL.within()), [])]
        if spans or words:
            trained.append(
                Trained(
                    version=versions.get(prefix, prefix),
                    releases=tuple(of_checkpoint.get(prefix, [])),
                    spans=tuple(span.name for span in spans),
                    words=tuple(words),
                )
            )
    return tuple(trained)


def found_again(store: Store, wanted: Wanted, redaction: Redaction, say: Callable[[str], None]) -> list[str]:
    """Return the keys of files, apart from weights, whose bytes or cells still have the value, or a row that goes."""
    again = look(store, wanted, redaction, say)
    left = [*(each.key for each in again.parquet), *again.deleted]
    for key in store.list(""):
        if key.startswith(_LOCKS) or (key not in again.unknown and HANDLING[kind_of(key)[0]].part is Part.weights):
            continue
        data = store.read(key)
        if redaction.holds(_unpacked(data)) or (key.endswith(".parquet") and _has_cell(store.local(key), wanted)):
            left.append(key)
    return list(dict.fromkeys(left))


def _has_cell(path: Path, wanted: Wanted) -> bool:
    """Return True if a text of any column is the value."""
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError):
        return False
    texts = [each.name for each in schema if pa.types.is_string(each.type)]
    return any(equal_to(table[name], wanted.value).any() for table in row_groups(path, texts) for name in texts)


def _unpacked(data: bytes) -> bytes:
    for magic, unpack in _PACKED:
        if data.startswith(magic):
            try:
                return unpack(data)
            except (OSError, EOFError, ValueError, lzma.LZMAError):
                return data
    return data
