"""Erase an item, or the rows with one value of a column, from the whole workspace and from its publish targets.

The value is recorded first, as a hash: from then on no ingest and no run takes it in. Then the journal is written, and
each change after it can be made again, so a killed erasure is finished by the same command. Meanwhile no run, refresh,
ingest or backfill works on the workspace; a reader may find a folder damaged until its manifest follows its files.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store import kept_copies
from infra.store.base import Conflict, Store, wait_for_lock
from infra.store.lease import CheckedStore, convert_lost_lease
from infra.store.manifest import read_manifest
from infra.store.records import find_record
from tasks.contracts.erasing import ErasedTables, EraseItem, TargetLine
from tasks.contracts.kinds import LINEAGES, lineage_of
from tasks.contracts.spans import in_order
from tasks.contracts.workspace import CERTIFICATE, ERASED, ERASURE, PLAN
from tasks.data.erased import Erased, hash_of_value, text_of
from tasks.data.rows import CORE
from tasks.data.span_versions import list_feeds, list_spans
from tasks.erase.change import change_derived, change_sources, change_texts, new_versions, plan_changes
from tasks.erase.files import count_rows
from tasks.erase.records import Certificate, Journal, Trained
from tasks.erase.survey import found_again, look, trained_on
from tasks.erase.text import Redaction
from tasks.erase.wanted import Wanted, find_wanted
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, StoreError
from tasks.foundation.nouns import plural
from tasks.running.lineage_lock import confirm_lineages, hold_lineages
from tasks.runs import releases, served_targets
from tasks.runs.plan import BACKFILL, read_plan

Say = Callable[[str], None]
AskTarget = Callable[[EraseItem], ErasedTables]

BEYOND = (
    "weights: the models named here have learnt from the rows, until the backfill has trained them again and "
    "`millrace prune` has deleted the old ones",
    "files outside of the workspace: exports, the golden set's file, backups, and earlier versions that a bucket keeps",
    "pages in the Prefect server's database, which show samples of rows: delete its old flow runs",
    "memory of processes: restart `millrace serve`, and `millrace serve --online`",
    "copies of a bucket's files on other machines (MILLRACE_CACHE): give the same command there",
)


def erase(store: Store, column: str, value: str, dry_run: bool, say: Say, ask: AskTarget) -> Certificate:
    """Erase all rows with a value of a column; of `item_id`, the item with its text and vectors too.

    Args:
        say: gets a line of progress, or a warning about a lock.
        ask: deletes the item from a target's tables, in a worker process, since the clients belong to workers.

    Returns:
        The certificate, which the workspace keeps unless this is a dry run.

    Raises:
        Conflict: a process works on a lineage, ingests or publishes.
        ConfigError: no span has the column.
        StoreError: a file that decides on the rows is not readable, a target failed, or a file still has the value;
            names it. The same command goes on.
    """
    value = text_of(value)
    one = Erased(column=column, sha256=hash_of_value(column, value), at=now())
    key = one.sha256[:16]
    _expect_column(store, column)
    with contextlib.ExitStack() as held, tempfile.TemporaryDirectory(prefix="millrace-") as folder:
        if not dry_run:
            held.enter_context(convert_lost_lease("ingest"))
            ingests = held.enter_context(wait_for_lock(store, "ingest", say, patience_seconds=0.0))
            held.enter_context(hold_lineages(store, _lineages(store), say))
            store = CheckedStore(store, lambda _: (confirm_lineages(), ingests.confirm())[0])
        wanted, scratch = find_wanted(store, column, value), Path(folder)
        redaction = Redaction(wanted)
        survey = look(store, wanted, redaction, say)
        left = find_record(store, ERASURE.key(key=key), Journal, "delete it, and erase again")
        work = plan_changes(store, survey, wanted, scratch, left, trained_on(store, survey))
        if not dry_run:
            with contextlib.suppress(Conflict):
                store.create(ERASED.key(key=key), one.to_json())
            _note(store, ERASURE.key(key=key), work.journal)
            change_derived(store, survey, work, wanted, scratch)
        change_texts(store, survey, work.journal, redaction, dry_run)
        targets = tuple(_in_targets(store, wanted, dry_run, ask)) if wanted.of_item else ()
        if not dry_run:
            change_sources(store, survey, work, wanted, scratch)
        copies = kept_copies.forget_where(lambda path: _is_copy(path, wanted, work.journal), delete=not dry_run)
        if not dry_run and (again := found_again(store, wanted, redaction, say)):
            raise StoreError(
                f"{store.uri}: {plural(len(again), 'file still has', 'files still have')} the value, such as {again[0]}"
                "; it is of no kind that the workspace knows, or holds the value as another column's: delete it, then "
                "give the same command again"
            )
        certificate = Certificate(
            column=column,
            sha256=one.sha256,
            at=now(),
            erased=not dry_run,
            kinds=survey.lines(),
            spans=tuple(new_versions(store, work.journal.spans, made=not dry_run)),
            releases=_releases(store, work.journal),
            trained=work.journal.trained,
            backfill=_backfill(work.journal.trained),
            targets=targets,
            copies=copies,
            found_again=0,
            beyond=BEYOND,
        )
        if not dry_run:
            _certify(store, key, certificate)
            store.delete(ERASURE.key(key=key))
    return certificate


def _lineages(store: Store) -> set[str]:
    """Return all lineages, also of runs that have not trained yet."""
    planned = {read_plan(store, found["run"]).config.lineage for found in map(PLAN.match, _plans(store)) if found}
    return {lineage_of(key) for key in store.list(LINEAGES)} | planned


def _plans(store: Store) -> Iterator[str]:
    for root in ("runs", "refreshes"):
        yield from (key for key in store.list(root) if PLAN.match(key))


def _expect_column(store: Store, column: str) -> None:
    """Raise ConfigError if no newest version of a span or of a feed has the column."""
    known = set(CORE)
    for ref in (*list_spans(store), *list_feeds(store)):
        known |= read_manifest(store, ref.prefix).facts.get("columns", {}).keys()
    if column not in known:
        raise ConfigError(f"--where {column}=...: no span has this column; they have {', '.join(sorted(known))}")


def _note(store: Store, key: str, journal: Journal) -> None:
    """Write the journal in place of one that a killed erasure left, which it contains."""
    try:
        before = store.read(key)
    except FileNotFoundError:
        before = None
    store.swap(key, journal.to_json(), expected=before)


def _certify(store: Store, key: str, certificate: Certificate) -> None:
    number = 1
    while True:
        with contextlib.suppress(Conflict):
            store.create(CERTIFICATE.key(key=key, number=number), certificate.to_json())
            return
        number += 1


def _in_targets(store: Store, wanted: Wanted, dry_run: bool, ask: AskTarget) -> Iterator[TargetLine]:
    """Yield the tables of all targets that had the item."""
    ids = tuple(sorted(wanted.forms))
    for served in served_targets.of_all_targets(store):
        with store.lock(served_targets.lock_of(served.target.name)) if not dry_run else contextlib.nullcontext():
            yield from ask(EraseItem(target=served.target, item_ids=ids, dry_run=dry_run)).tables


def _is_copy(path: Path, wanted: Wanted, journal: Journal) -> bool:
    """Return True if a kept copy, in a folder with the name of its checksum, has rows that go."""
    if path.parent.name in journal.files:
        return True
    try:
        return wanted.column in pq.read_schema(path).names and count_rows(path, wanted, None) > 0
    except (pa.ArrowException, OSError):
        with path.open("rb") as file:
            return file.read(4) == b"PAR1"  # damaged: it may hold anything, and is fetched again


def _releases(store: Store, journal: Journal) -> tuple[int, ...]:
    """Return the releases whose vectors changed and are still there."""
    gone = releases.pruned(store)
    made = (each for each in releases.history(store) if each.number not in gone)
    return tuple(sorted(each.number for each in made if each.vectors_prefix in journal.counts))


def _backfill(trained: tuple[Trained, ...]) -> str | None:
    """Return the command that trains all spans with erased rows again; None if no model was trained on one."""
    spans = in_order(list({span for each in trained for span in each.spans}))
    return f"{BACKFILL.format(first=spans[0], last=spans[-1])} --reason erased" if spans else None
