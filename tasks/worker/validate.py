"""validate: puts bad rows into quarantine, and stops the run if the window as a whole is bad.

All known items become the catalogue of the run.

great-expectations judges the columns, every row, and the window as a whole, which is also compared with the spans
before it. Clean rows become one folder per span, with a profile; bad rows become a Parquet file with their reasons.
torch is needed only if a lineage begins with a pretrained folder: its release is tried first.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.manifest import commit
from infra.store.records import read_record
from tasks.contracts.evaluation import ENOUGH_SPANS
from tasks.contracts.jobs import ValidateInputs, report
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.profiles import BAD_ROWS_KIND, KnownRelation, SpanProfile
from tasks.contracts.references import HoldoutRule, RowsRef, SpanRef, newest_rows
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import BAD_ROWS, DATA_REPORT, HELD, KEYS, POSITIVES, PROFILE, REPLAYED, SIDES
from tasks.data.erased import Erasures, read_erased
from tasks.data.rows import has_ids_alone
from tasks.foundation.errors import CodeError, DataError, StoreError
from tasks.foundation.languages import load_identifier
from tasks.foundation.nouns import plural
from tasks.preflight.encoder import pretrained_folder
from tasks.quality.expectations import load_great_expectations
from tasks.runs.results import read_result
from tasks.worker.catalogue.against import SpanItems, compare_items
from tasks.worker.catalogue.build import build
from tasks.worker.catalogue.item_checks import item_checks
from tasks.worker.catalogue.sources import Sources
from tasks.worker.process.cores import Cores
from tasks.worker.process.job import Job
from tasks.worker.rows import ids_alone, window
from tasks.worker.rows.clean_rows import RowFiles, commit_rows, rows_files, rows_folder
from tasks.worker.rows.columns import joined
from tasks.worker.rows.duplicates import check_left_out, find_sides
from tasks.worker.rows.holdout import judge_before, write_held
from tasks.worker.rows.ids_alone import FilledSpan, LateRows, late_tables, look_up, write_waiting
from tasks.worker.rows.profile import SpanReader, read_known
from tasks.worker.rows.row_checks import (
    ParquetPart,
    check_columns,
    check_rows,
    count_rows,
    judge_rows,
    open_span,
    read_span,
)
from tasks.worker.rows.shares import Asking, answer, asking
from tasks.worker.rows.signs import judge_signs
from tasks.worker.rows.suites import OwnExpectations
from tasks.worker.rows.values import judge_labels, judge_values
from tasks.worker.rows.window import WindowCounts, judge_columns, judge_drift, judge_places, read_earlier
from tasks.worker.training.known_pairs import LineageKeys
from tasks.worker.training.replay import ReplayedRows
from tasks.worker.training.row_keys import write_span_keys
from tasks.worker.training.tokens_ahead import tokenise_ahead


def write_profiles(job: Job, profiles: Sequence[SpanProfile], items: Sequence[SpanItems]) -> dict[str, str]:
    """Write the profiles, with the relations of the spans' items; return their keys by span."""
    keys, found = {}, {each.span: each.relations for each in items}
    for profile in profiles:
        keys[profile.span] = PROFILE.of(job.spec, span=profile.span)
        relations = found.get(profile.span, {}).items()
        known = {name: KnownRelation(items=each.items, kept=each.kept) for name, each in relations}
        job.store.write(keys[profile.span], profile.model_copy(update={"relations": known}).to_json())
    return keys


def write_quarantine(job: Job, scratch: Path, bad: Sequence[pa.Table]) -> str | None:
    """Write the bad rows of all spans; return the key of the file, None without bad rows."""
    if not bad:
        return None
    try:
        table = pa.concat_tables(bad, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid):  # an unused column is text in one span, numbers in another
        as_text = (t.cast(pa.schema([(name, pa.string()) for name in t.column_names])) for t in bad)
        table = pa.concat_tables(as_text, promote_options="default")
    folder = scratch / "quarantine"
    folder.mkdir()
    pq.write_table(table, folder / "quarantine.parquet")
    prefix = BAD_ROWS.of(job.spec)
    commit(job.store, prefix, folder, BAD_ROWS_KIND, {"rows": len(table)})
    return f"{prefix}/quarantine.parquet"


def stop_if_critical(job: Job, outcome: ValidateOutcome, window: Sequence[SpanRef]) -> None:
    """Write the report of the window and raise, if a critical check failed.

    Raises:
        DataError: a critical check failed; the message names each with its numbers, and the files.
    """
    failed = [check for check in outcome.checks if check.severity == "critical" and not check.passed]
    if not failed:
        return
    key = DATA_REPORT.of(job.spec)
    job.store.write(key, outcome.to_json())
    spans = window[0].name if len(window) == 1 else f"{window[0].name} to {window[-1].name}"
    reasons = ", ".join(f"{reason} ({rows})" for reason, rows in outcome.reasons.items())
    lines = [
        f"span {spans} is not fit to train on:",
        *(f"- {check.name}: {check.sentence}" for check in failed),
        f"Bad rows by reason: {reasons or 'none'}.",
        *([f"The bad rows are in {job.store.uri}/{outcome.quarantine}"] if outcome.quarantine else []),
        f"All checks are in {job.store.uri}/{key}",
        "Correct the source and ingest the span again, or change the limits under validate: in the configuration.",
    ]
    raise DataError("\n".join(lines))


def run(job: Job) -> ValidateOutcome | None:
    """Judge the window as the first worker, or help it; return the outcome as the first. Raises as `judge`."""
    return judge(job) if job.share.index == 0 else answer(job, functools.partial(_write_met, job))


def judge(job: Job) -> ValidateOutcome:
    """Judge the window; write its clean and bad rows.

    Raises:
        DataError: a column is missing (nothing is written), or a critical check failed (bad rows and checks are
            written, clean rows are not); the message names each check with its numbers, and the files.
        ConfigError: a configured expectation can't be judged on the actual values; or the lineage would begin with a
            pretrained folder whose model can't be released.
        MissingFolder, CorruptFolder: a span, or the rows of an earlier span, are missing or damaged.
        StoreError: the parent checkpoint can't be read.
    """
    inputs = job.spec.inputs
    if not isinstance(inputs, ValidateInputs):
        raise CodeError(f"validate was given the inputs of {inputs.stage.value}")
    _try_pretrained(job, inputs)
    if not inputs.window:  # a refresh: no new rows, but perhaps new items
        with job.clock.phase("productive"):
            return _only_catalogue(job, inputs)
    with asking(job, functools.partial(_write_met, job)) as asked:
        load_great_expectations()
        load_identifier()
        with job.scratch() as scratch, Cores((__name__, "great_expectations")) as cores:
            judged = _judge_window(job, inputs, scratch, cores)
            with job.clock.phase("productive"):
                return _written(job, inputs, judged, scratch, cores, asked)


class _Judged(NamedTuple):
    """A window after its checks; no clean row is in the workspace yet."""

    outcome: ValidateOutcome
    counts: WindowCounts
    filled: Mapping[SpanRef, FilledSpan]  # spans of ids alone
    late: LateRows
    items: Sequence[SpanItems]


def _judge_window(job: Job, inputs: ValidateInputs, scratch: Path, cores: Cores) -> _Judged:
    """Split the window's rows into clean and bad ones, in files of `scratch`, and judge them.

    Raises:
        DataError: as in `run`; bad rows and checks are in the workspace then.
    """
    config = job.config
    own = OwnExpectations(config.validate_.expectations)
    with job.clock.phase("restoring"):
        spans = {span: open_span(job.store, span) for span in inputs.window}
        earlier = read_earlier(job.store, inputs.history, config)
        known = read_known(job.store, inputs.parent) if inputs.parent else None
    entity = (config.features.entity,) if config.features.entity else ()
    features = tuple(dict.fromkeys((*config.features.numeric, *config.features.categorical, *entity)))
    counts, erased = WindowCounts(), read_erased(job.store)
    with job.clock.phase("productive"):
        filled = _with_texts(job, inputs, spans, scratch)
        spans |= {span: each.parts for span, each in filled.items()}
        late, takes_late = LateRows(None, None), next(iter(filled), None)
        if inputs.waiting is not None and takes_late is not None:
            late = look_up(job, inputs.waiting, inputs.texts, scratch / "late")
        checks = list(check_columns([part for parts in spans.values() for part in parts], config))
        for number, (span, parts) in enumerate(spans.items(), start=1):
            reader = SpanReader(span, config, known)
            tables = _tables(span, parts, late if span == takes_late else None, erased)
            bad = _judge(span, parts, tables, counts, features, rows_folder(scratch, span), config, own, reader, cores)
            if span in filled:
                bad += ids_alone.set_unknown_apart(counts, span, filled[span])
            if (profiled := reader.profile()) is not None:
                counts.profiles.append(profiled[0])
                counts.compared.append(profiled[1])
            report(
                "spans validated",
                number,
                len(spans),
                f"{span.name}: {plural(counts.clean[span], 'row')} clean, {bad} bad",
            )
        now = joined(counts.compared)
        drift, drifts = judge_drift(earlier, now, config.validate_.drift)
        checks += window.row_checks(counts, config)
        more = ids_alone.way_out(counts, inputs.texts) + window.way_out(counts)
        checks += window.window_checks(counts, features, inputs.window[-1], config, more)
        gone = sum(each.rows_deleted for each in filled.values())
        checks += [ids_alone.unknown_items(counts, inputs.texts, late.rows, gone)] if filled else []
        checks += [window.known_events(counts)] if config.validate_.events else []
        checks += [*judge_columns(earlier, now), *judge_places(earlier, now), *drift, *own.checks()]
        checks += judge_signs(earlier.signs, earlier.rows, now.signs, now.rows, config.validate_.signs, now.examples)
        checks += [*judge_values(earlier, now, config), *judge_labels(earlier, now, config)]
        files = {span: rows_files(scratch, span) for span, rows in counts.clean.items() if rows}
        clean = {span.name: rows for span, rows in counts.clean.items()}
        every = [file for own_files in files.values() for file in own_files]
        checks += judge_before(job.store, inputs.history, clean, every, config.validate_.before)
        with_own_texts = {span: own_files for span, own_files in files.items() if span not in filled}
        compared = _compared_items(job, inputs, with_own_texts)
        checks += item_checks(compared, config.validate_.items, lambda: _usual_relations(job, inputs))
        outcome = ValidateOutcome(
            rows=(),
            rows_in=counts.rows_in,
            rows_clean=counts.rows_clean,
            rows_quarantined=counts.rows_in - counts.rows_clean,
            reasons={reason: rows for reason, rows in counts.reasons.most_common() if rows},
            quarantine=write_quarantine(job, scratch, counts.bad),
            checks=tuple(checks),
            drifts=drifts,
            texts=inputs.texts,
            rows_late=late.rows,
        )
        stop_if_critical(job, outcome.model_copy(update={"samples": tuple(counts.samples)}), inputs.window)
    return _Judged(outcome, counts, filled, late, compared)


def _written(
    job: Job, inputs: ValidateInputs, judged: _Judged, scratch: Path, cores: Cores, asked: Asking | None
) -> ValidateOutcome:
    """Write the clean rows with their holdout and keys, and the catalogue; return the whole outcome.

    Args:
        asked: the questions to the other workers, if any.
    """
    config, (outcome, counts, filled, late, compared) = job.config, judged
    rows = tuple(commit_rows(job, scratch, span, rows, span in filled) for span, rows in counts.clean.items() if rows)
    waiting = inputs.waiting
    if filled:
        unknown = [(span, each.unknown) for span, each in filled.items() if each.unknown is not None]
        waiting = write_waiting(job, inputs.window, unknown, late, scratch / "waiting")
    sides, meet = SIDES.within(run=job.spec.run_key), asked.meet if asked is not None else None
    (scratch / "sides").mkdir()
    rows, left = find_sides(
        job.store, rows, inputs.history, config, sides, scratch / "sides", cores, inputs.kept_out, meet
    )
    rows = tuple(_with_keys(job, _with_held(job, inputs, ref, scratch, cores), scratch, cores) for ref in rows)
    divided = asked if config.train.replay == 0 else None
    if divided is not None:
        divided.ask_pairs(rows)  # others look for them while this worker tokenises
    elif asked is not None:
        asked.end()
    tokenise_ahead(job.store, config, rows, inputs.history, inputs.parent, cores)
    replayed = _replayed(job, inputs, rows, scratch)
    outcome = outcome.model_copy(
        update={
            "rows": rows,
            "waiting": waiting,
            "checks": (*outcome.checks, check_left_out(rows, left)),
            "profiles": write_profiles(job, counts.profiles, compared),
            "left_out_of_training": sum(each.training for each in left),
            "left_out_of_holdout": sum(each.held for each in left),
            "golden": inputs.kept_out,
            "positives": _positives(job, inputs, rows, replayed, scratch, divided),
            "replayed": replayed.folder,
            "left_out_as_golden": sum(each.golden for each in left) if inputs.kept_out else None,
        }
    )
    if not inputs.catalogue:
        return outcome
    catalogue = build(job.store, _sources(inputs, rows), inputs.bases, config, inputs.turn)
    return outcome.model_copy(update={"catalogue": catalogue})


def _with_texts(
    job: Job, inputs: ValidateInputs, spans: Mapping[SpanRef, Sequence[ParquetPart]], scratch: Path
) -> dict[SpanRef, FilledSpan]:
    """Return the spans of ids alone, with texts from the feed."""
    return {
        span: ids_alone.fill_span(job.store, span, parts, inputs.texts, job.config, scratch / "texts" / span.name)
        for span, parts in spans.items()
        if has_ids_alone(job.store, span)
    }


def _try_pretrained(job: Job, inputs: ValidateInputs) -> None:
    """Try the release of the pretrained folder's model, if the lineage begins here with one."""
    name = job.config.model.pretrained
    if name is None or inputs.parent is not None or not inputs.window or not inputs.catalogue:
        return
    if not pretrained_folder(name).is_dir():
        print(f"there is no folder {name} where validate runs, so a release of its model is not tried", flush=True)
        return
    from tasks.worker.export.trial_release import try_release  # torch and its libraries

    try_release(job.config)


def _sources(inputs: ValidateInputs, rows: tuple[RowsRef, ...]) -> Sources:
    return Sources(newest_rows(inputs.history, rows, inputs.others), inputs.feeds)


def _with_held(job: Job, inputs: ValidateInputs, ref: RowsRef, scratch: Path, cores: Cores) -> RowsRef:
    """Write a span's holdout rows; return its reference with them."""
    prefix = HELD.of(job.spec, folder=ref.span.name)
    rule = HoldoutRule.of(job.config.evaluate, (*inputs.history, ref))  # all spans of a window have one share
    return write_held(job.store, ref, rule, prefix, scratch, cores, inputs.kept_out)


def _with_keys(job: Job, ref: RowsRef, scratch: Path, cores: Cores) -> RowsRef:
    """Write the keys of a span's rows; return its reference with them."""
    prefix = KEYS.of(job.spec, folder=ref.span.name)
    return write_span_keys(job.store, ref, job.config.heads, prefix, scratch / "keys" / ref.span.name, cores)


def _replayed(job: Job, inputs: ValidateInputs, rows: Sequence[RowsRef], scratch: Path) -> ReplayedRows:
    """Write the rows of earlier spans that the run's training replays, if any; return them with their folder."""
    drawn = ReplayedRows.of(job.store, job.config, rows, inputs.history, inputs.parent)
    prefix = REPLAYED.of(job.spec, folder=inputs.window[-1].name)
    return replace(drawn, folder=drawn.commit(prefix, scratch / "replayed"))


def _positives(
    job: Job,
    inputs: ValidateInputs,
    rows: Sequence[RowsRef],
    replayed: ReplayedRows,
    scratch: Path,
    divided: Asking | None,
) -> str:
    """Write the right items of the run's queries, by all rows so far, for its training; return their folder."""
    keys = LineageKeys(job.store, rows, inputs.history, inputs.kept_out, job.config.heads, replayed)
    met = divided.pairs() if divided is not None else None
    return keys.commit_known(POSITIVES.of(job.spec, folder=inputs.window[-1].name), scratch / "positives", met)


def _write_met(job: Job, rows: Sequence[RowsRef], earlier: Sequence[RowsRef], folder: Path, scratch: Path) -> None:
    """Write the keys of earlier rows that the known positives of some spans are made of."""
    no_rows = ReplayedRows.of(job.store, job.config, rows, (), None)
    LineageKeys(job.store, rows, earlier, None, job.config.heads, no_rows).write_met(folder, scratch)


def _compared_items(job: Job, inputs: ValidateInputs, files: Mapping[SpanRef, Sequence[Path]]) -> list[SpanItems]:
    """Return the comparison of each span's items with the items known before the window."""
    before = Sources(newest_rows(inputs.history, inputs.others), inputs.feeds)
    found = (compare_items(job.store, span.name, f, before, inputs.bases, job.config) for span, f in files.items())
    return [each for each in found if each is not None]


def _usual_relations(job: Job, inputs: ValidateInputs) -> Mapping[str, KnownRelation]:
    """Return the relations of the last earlier span's features, by feature, as its own validation found them."""
    if len(inputs.history) < ENOUGH_SPANS:
        return {}
    last = inputs.history[-1]
    try:
        result = read_result(job.store, last.run_key, Stage.validate)
        profiles = result.outcome.profiles if result and isinstance(result.outcome, ValidateOutcome) else {}
        key = profiles.get(last.span.name)
        return read_record(job.store, key, SpanProfile).relations if key is not None else {}
    except StoreError as error:
        print(f"{error}; nothing is usual for the relations of features", flush=True)
        return {}


def _judge(
    span: SpanRef,
    parts: Sequence[ParquetPart],
    tables: Iterable[tuple[SpanRef, pa.Table]],
    counts: WindowCounts,
    features: Sequence[str],
    folder: Path,
    config: Config,
    own: OwnExpectations,
    reader: SpanReader,
    cores: Cores,
) -> int:
    """Judge a span in pieces, write its clean rows to `folder`, and return the number of bad rows.

    Args:
        tables: its rows, and late rows, each with the span that they were ingested in.
    """
    counts.begin(span)
    own.judge_columns(span.name, list(dict.fromkeys(name for part in parts for name in part.schema.names)))
    before = counts.rows_in
    check = functools.partial(check_rows, config=config, own=own.of_rows)
    with contextlib.closing(RowFiles(folder)) as written:
        for (origin, _), checked in cores.map(check, tables, count_rows(parts)):
            if config.validate_.events is not None and len(checked.unknown):
                counts.set_apart(origin, checked.unknown, window.UNKNOWN_EVENT)
                counts.count_events(checked.unknown[config.validate_.events.column])
            if not len(checked.table):
                continue
            judged = judge_rows(origin, checked, own.count_rows(checked.own), counts.own_ids, counts.ids)
            counts.add(span, judged, features)
            own.add_clean(judged.clean)
            reader.add(judged.clean)
            written.write(judged.clean)
    return counts.rows_in - before - counts.clean[span]


def _tables(
    span: SpanRef, parts: Sequence[ParquetPart], late: LateRows | None, erased: Erasures
) -> Iterator[tuple[SpanRef, pa.Table]]:
    """Yield the rows of a span, then late rows with its columns; none with an erased value, as of an old backup."""
    for table in read_span(parts):
        yield span, erased.without(table)
    if late is not None:
        for of, table in late_tables(late, parts[0].schema):
            yield of, erased.without(table)


def _only_catalogue(job: Job, inputs: ValidateInputs) -> ValidateOutcome:
    catalogue = build(job.store, _sources(inputs, ()), inputs.bases, job.config, inputs.turn)
    return ValidateOutcome(
        rows=(),
        rows_in=0,
        rows_clean=0,
        rows_quarantined=0,
        reasons={},
        quarantine=None,
        checks=(),
        catalogue=catalogue,
    )
