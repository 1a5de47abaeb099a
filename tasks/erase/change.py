"""The changes of an erasure: planned with all checksums before the first write, then made, each so that a second time
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from infra.store.base import Store, sha256_of
from infra.store.manifest import MANIFEST, Manifest, entries_of, seal
from infra.store.records import place
from tasks.contracts.kinds import LINEAGES, Kind, lineage_of
from tasks.contracts.references import SpanRef
from tasks.contracts.workspace import CATALOGUE, FEED, SPAN, VECTORS, kind_of
from tasks.data.rows import SPAN_KIND
from tasks.data.span_versions import list_spans
from tasks.erase.files import emptied, ids_sha256, lowest_files, new_manifest, without_rows
from tasks.erase.handling import HANDLING, Part
from tasks.erase.records import Journal, Trained
from tasks.erase.survey import Survey
from tasks.erase.text import Redaction, changed_page, changed_record
from tasks.erase.wanted import Wanted
from tasks.foundation.clock import now
from tasks.foundation.errors import StoreError
from tasks.runs import lineage

SOURCES = (SPAN, FEED)  # they tell the rows, so they change last
_PAGES = (".html", ".svg")


class NewManifest(NamedTuple):
    kind: Kind
    before: Manifest
    after: Manifest


class Work(NamedTuple):
    """The planned changes: the journal, and by folder the manifests that change."""

    journal: Journal
    manifests: Mapping[str, NewManifest]


def plan_changes(
    store: Store, survey: Survey, wanted: Wanted, scratch: Path, before: Journal | None, trained: tuple[Trained, ...]
) -> Work:
    """Return the changes of all Parquet files and manifests, and of a journal that was left."""
    files = dict(before.files) if before is not None else {}
    sha256 = dict(before.sha256) if before is not None else {}
    counts = dict(before.counts) if before is not None else {}
    below = lowest_files(survey.manifests)
    for each in survey.parquet:
        new = without_rows(store.local(each.key), to := scratch / "planned.parquet", wanted, each.span)
        if emptied(each.kind, to) and each.key not in below:
            new = new.model_copy(update={"sha256": "", "bytes": 0})
        files[sha256_of(store.local(each.key))] = new
        if each.kind is VECTORS:  # of a folder without a manifest, its note alone has the checksum of its ids
            before_and_after = ids_sha256([store.local(each.key)], None), ids_sha256([store.local(each.key)], wanted)
            sha256.update([before_and_after])
    manifests: dict[str, NewManifest] = {}
    for of_vectors in (False, True):  # these name the checksums of catalogues
        for prefix, (kind, there) in survey.manifests.items():
            if (kind is VECTORS) is not of_vectors or HANDLING[kind].part is not Part.rows:
                continue
            made = new_manifest(
                kind, there, files, sha256, counts, wanted, lambda entry, of=prefix: store.local(entry.key(of))
            )
            if made == there:
                continue
            manifests[prefix] = NewManifest(kind, there, made)
            sha256[there.sha256] = made.sha256
            if kind is CATALOGUE:
                counts[prefix] = {"items": made.facts["items"]}
            elif kind is VECTORS:
                counts[prefix] = {"vectors": made.facts["vectors"], "bad": made.facts["bad"]}
                ids = zip(there.facts["shards"], made.facts["shards"], strict=True)
                sha256.update((old[2], new[2]) for old, new in ids if old != new)
                sha256[there.facts["ids_sha256"]] = made.facts["ids_sha256"]
    newest = {f"{ref.name}/v{ref.version}" for ref in list_spans(store)}
    spans = {name: rows for name, rows in survey.spans.items() if name in newest}
    journal = Journal(
        files=files,
        sha256=sha256,
        counts=counts,
        spans={**(before.spans if before is not None else {}), **spans},
        trained=before.trained if before is not None else trained,
    )
    return Work(journal, manifests)


def change_derived(store: Store, survey: Survey, work: Work, wanted: Wanted, scratch: Path) -> None:
    """Change all files that are made of spans and feeds, and their manifests; delete folders that are made again.

    Checkpoints of a training that was interrupted go too: the run trains its rows from its beginning.
    """
    for key in survey.deleted:
        if f"{key}/{MANIFEST}" in store.list(key):  # first, so that no reader takes the rest for a whole folder
            store.delete(f"{key}/{MANIFEST}")
        store.delete(key)
    if survey.spans:
        for name in {lineage_of(key) for key in store.list(LINEAGES)}:
            for prefix in lineage.partial(store, name):
                lineage.prune_checkpoint(store, prefix)
    _change_files(store, survey, work, wanted, scratch, lambda kind: kind not in SOURCES)


def change_sources(store: Store, survey: Survey, work: Work, wanted: Wanted, scratch: Path) -> None:
    """Make new versions of the spans without the rows, then change all versions of spans and feeds."""
    for ref in list_spans(store):
        if f"{ref.name}/v{ref.version}" in work.journal.spans and ref.prefix in work.manifests:
            _new_version(store, ref, work, wanted, scratch)
    _change_files(store, survey, work, wanted, scratch, lambda kind: kind in SOURCES)


def new_versions(store: Store, spans: Collection[str], made: bool) -> list[SpanRef]:
    """Return the versions of spans without the rows, as they are `made`, or will be."""
    newest = {ref.name: ref.version for ref in list_spans(store)}
    found = [SpanRef(name=name, version=int(number)) for name, _, number in (each.partition("/v") for each in spans)]
    found = [ref.model_copy(update={"version": ref.version + 1}) for ref in found]
    return sorted((ref for ref in found if not made or newest.get(ref.name) == ref.version), key=lambda ref: ref.name)


def _new_version(store: Store, ref: SpanRef, work: Work, wanted: Wanted, scratch: Path) -> None:
    """Write the rows that stay as the next version, so that a backfill trains them in place of the earlier ones."""
    folder = scratch / "version"
    folder.mkdir(exist_ok=True)
    for entry in work.manifests[ref.prefix].before.files:
        to = folder / entry.name
        to.parent.mkdir(parents=True, exist_ok=True)
        without_rows(store.local(entry.key(ref.prefix)), to, wanted, ref.name)
    made = SpanRef(name=ref.name, version=ref.version + 1)
    files = entries_of(folder)
    for entry in files:
        place(store, folder / entry.name, f"{made.prefix}/{entry.name}")
        (folder / entry.name).unlink()
    facts = {**work.manifests[ref.prefix].after.facts, "version": made.version, "ingested_at": now()}
    seal(store, made.prefix, files, SPAN_KIND, facts)


def _change_files(
    store: Store, survey: Survey, work: Work, wanted: Wanted, scratch: Path, of: Callable[[Kind], bool]
) -> None:
    gone = []
    for each in survey.parquet:
        if not of(each.kind):
            continue
        to, planned = scratch / "new.parquet", work.journal.files[sha256_of(store.local(each.key))]
        if not planned.sha256:
            gone.append(each.key)
            continue
        if without_rows(store.local(each.key), to, wanted, each.span).sha256 != planned.sha256:
            raise StoreError(f"{store.uri}/{each.key} changed meanwhile; give the same command again")
        store.upload(to, each.key, store.tags(each.key)[each.key])
    for prefix, (kind, _, after) in work.manifests.items():
        if of(kind):
            key = f"{prefix}/{MANIFEST}"
            store.swap(key, after.to_json(), expected=store.read(key))
    for key in gone:
        store.delete(key)


def change_texts(store: Store, survey: Survey, journal: Journal, redaction: Redaction, dry_run: bool) -> None:
    """Change the records and pages that hold a word, a text or a checksum that goes, or only count them."""
    changed = bool(journal.files)
    for key in survey.texts:
        raw = store.read(key)
        after = changed_page(raw, redaction) if key.endswith(_PAGES) else changed_record(key, raw, journal, redaction)
        if after is not None:
            changed = True
            survey.changed[kind_of(key)[0].name] += 1
            if not dry_run:
                store.swap(key, after, raw)
    for key in survey.packed if changed else ():  # copies of records, which are packed again
        survey.changed[kind_of(key)[0].name] += 1
        if not dry_run:
            store.delete(key)
