"""validate: puts rows that are not fit for training into quarantine; a window that is not fit stops the run.

All items known by then become the catalogue of the run.

great-expectations judges the columns, every row, and the window as a whole. Clean rows become one folder for each
span; bad rows become a Parquet file with their reasons. It needs no torch.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.config import Config
from configs.schema.stages import Severity
from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, commit, open_folder
from tasks.contracts.jobs import ValidateInputs
from tasks.contracts.outcomes import Check, ValidateOutcome
from tasks.contracts.progress import report
from tasks.contracts.references import RowsRef, SpanRef, newest_rows
from tasks.data.rows import ITEM, LABEL, QUERY, ROWS_KIND
from tasks.foundation.errors import CodeError, DataError
from tasks.gates.expectations import Limit, judge_numbers
from tasks.worker.catalogue.build import Sources, build
from tasks.worker.checks.drift import MIN_ROWS, population_stability
from tasks.worker.checks.row_checks import (
    ID_RULES,
    JUDGED_ROWS,
    JudgedRows,
    ParquetPart,
    characters,
    check_columns,
    judge_rows,
    open_span,
    read_span,
    row_rules,
)
from tasks.worker.duplicates.sides import find_sides
from tasks.worker.process.job import Job

QUARANTINE_KIND = "quarantine"
_HISTORY_ROWS = 200_000  # the drift is measured against the newest earlier spans, up to about so many rows
_LABELS, _QUERY_LENGTHS, _ITEM_LENGTHS = "label drift", "query length drift", "item length drift"


class Measure(NamedTuple):
    """A number about the whole window, and its limit."""

    value: float
    limit: Limit
    severity: Severity
    sentence: str


@dataclass
class WindowCounts:
    """What is known about the window so far; the clean rows themselves are on disk."""

    rows_in: int = 0
    clean: dict[SpanRef, int] = field(default_factory=dict)
    bad: list[pa.Table] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    failed: set[str] = field(default_factory=set)
    ids: dict[SpanRef, list[pa.ChunkedArray]] = field(default_factory=dict)
    filled: Counter[str] = field(default_factory=Counter)
    distributions: list[dict[str, np.ndarray]] = field(default_factory=list)

    @property
    def rows_clean(self) -> int:
        return sum(self.clean.values())

    def begin(self, span: SpanRef) -> None:
        self.clean[span], self.ids[span] = 0, []

    def add(self, span: SpanRef, judged: JudgedRows, features: Sequence[str]) -> None:
        self.rows_in += len(judged.clean) + len(judged.bad)
        self.clean[span] += len(judged.clean)
        if len(judged.bad):
            self.bad.append(judged.bad)
        for reason, finding in judged.findings.items():
            self.reasons.update({reason: len(finding.unexpected)})
            if not finding.passed:
                self.failed.add(reason)
        self.ids[span].append(judged.ids)
        self.filled.update({column: len(judged.clean) - judged.clean[column].null_count for column in features})
        self.distributions.append(_distributions(judged.clean))


def run(job: Job) -> ValidateOutcome:
    """Judge the window, write its clean rows and its bad ones.

    Raises:
        DataError: a column is missing (nothing is written), or a critical check failed (bad rows and the checks are
            written, clean rows are not); the message names each check with its numbers, and the files.
        MissingFolder, CorruptFolder: a span, or the rows of an earlier span, are missing or damaged.
    """
    inputs = job.spec.inputs
    if not isinstance(inputs, ValidateInputs):
        raise CodeError(f"validate was given the inputs of {inputs.stage.value}")
    config = job.config
    if not inputs.window:  # a refresh: no new rows, but perhaps new items
        return _only_catalogue(job, inputs)
    window = [open_span(job.store, span) for span in inputs.window]
    checks = list(check_columns([part for parts in window for part in parts], config))
    history = _history(job.store, inputs.history)
    features = tuple(dict.fromkeys((*config.features.numeric, *config.features.categorical)))
    counts = WindowCounts()
    with job.scratch() as scratch:
        for number, (span, parts) in enumerate(zip(inputs.window, window, strict=True), start=1):
            bad = _judge(span, parts, counts, features, _rows_folder(scratch, span), config)
            report("spans validated", number, len(window), f"{span.name}: {counts.clean[span]} rows clean, {bad} bad")
        checks += _row_checks(counts, config)
        checks += _window_checks(counts, features, history, inputs.window[-1], config)
        outcome = ValidateOutcome(
            rows=(),
            rows_in=counts.rows_in,
            rows_clean=counts.rows_clean,
            rows_quarantined=counts.rows_in - counts.rows_clean,
            reasons={reason: rows for reason, rows in counts.reasons.most_common() if rows},
            quarantine=_quarantine(job, scratch, counts),
            checks=tuple(checks),
        )
        _stop_if_critical(job, outcome, inputs.window)
        rows = tuple(_commit(job, scratch, span, rows) for span, rows in counts.clean.items() if rows)
        sides = f"{job.spec.attempt_prefix}/sides"
        rows, left_out = find_sides(job.store, rows, inputs.history, config, sides, scratch / "sides")
        outcome = outcome.model_copy(
            update={"rows": rows, "left_out_of_training": left_out.training, "left_out_of_holdout": left_out.held}
        )
        if not inputs.catalogue:
            return outcome
        catalogue = build(job.store, _sources(inputs, rows), inputs.bases, config)
        return outcome.model_copy(update={"catalogue": catalogue})


def _sources(inputs: ValidateInputs, rows: tuple[RowsRef, ...]) -> Sources:
    return Sources(newest_rows(inputs.history, rows, inputs.others), inputs.feeds)


def _judge(
    span: SpanRef,
    parts: Sequence[ParquetPart],
    counts: WindowCounts,
    features: Sequence[str],
    folder: Path,
    config: Config,
) -> int:
    """Judge a span piece by piece, write its clean rows into `folder`, and return the number of bad ones."""
    earlier_ids = _chunks(ids for each in counts.ids.values() for ids in each)
    counts.begin(span)
    before = counts.rows_in
    with contextlib.ExitStack() as opened:
        writer = None
        for table in read_span(parts):
            judged = judge_rows(span, table, config, _chunks(counts.ids[span]), earlier_ids)
            counts.add(span, judged, features)
            if writer is None:
                folder.mkdir(parents=True)
                writer = opened.enter_context(pq.ParquetWriter(folder / "part-00000.parquet", judged.clean.schema))
            writer.write_table(judged.clean)
    return counts.rows_in - before - counts.clean[span]


def _chunks(columns: Iterable[pa.ChunkedArray]) -> pa.ChunkedArray:
    return pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())


def _only_catalogue(job: Job, inputs: ValidateInputs) -> ValidateOutcome:
    catalogue = build(job.store, _sources(inputs, ()), inputs.bases, job.config)
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


# --- the window against its limits ------------------------------------------------------------------------------


def _row_checks(counts: WindowCounts, config: Config) -> list[Check]:
    """Return one check for each group of row rules. Single bad rows are a warning; their share is judged on its own."""
    groups: dict[str, list[str]] = {}
    for rule in (*row_rules(config), *ID_RULES):
        groups.setdefault(rule.check, []).append(rule.reason)
    checks = []
    for name, reasons in groups.items():
        bad = sum(counts.reasons[reason] for reason in reasons)
        share = bad / max(counts.rows_in, 1)
        found = ", ".join(f"{reason} in {counts.reasons[reason]}" for reason in reasons if counts.reasons[reason])
        checks.append(
            Check(
                name=name,
                passed=not counts.failed.intersection(reasons),
                severity="warning",
                observed=float(bad),
                sentence=f"{bad} of {counts.rows_in} rows are bad ({share:.2%})" + (f": {found}." if bad else "."),
            )
        )
    return checks


def _window_checks(
    counts: WindowCounts,
    features: Sequence[str],
    history: Mapping[str, np.ndarray],
    last: SpanRef,
    config: Config,
) -> list[Check]:
    limits = config.validate_
    clean, total = counts.rows_clean, counts.rows_in
    share = (total - clean) / max(total, 1)
    measures = {
        "clean rows": Measure(clean, Limit(limits.min_rows, None), "critical",
            f"{clean} clean rows in the window; at least {limits.min_rows} are required."),
        "rows in the last span": Measure(counts.clean[last], Limit(1, None), "critical",
            f"{counts.clean[last]} clean rows in span {last.name}, for which this run is; at least 1 is required."),
        "quarantined share": Measure(share, Limit(None, limits.max_quarantined_share), "critical",
            f"{total - clean} of {total} rows are bad ({share:.2%}); at most "
            f"{limits.max_quarantined_share:.2%} may be."),
    }  # fmt: skip
    for column in features:
        sentence = f"{counts.filled[column]} of {clean} clean rows have a {column}; at least 1 is required."
        measures[f"{column} filled"] = Measure(counts.filled[column], Limit(1, None), "warning", sentence)
    now = _joined(counts.distributions)
    skipped = []
    for name, limit in (
        (_LABELS, limits.max_label_drift),
        (_QUERY_LENGTHS, limits.max_length_drift),
        (_ITEM_LENGTHS, limits.max_length_drift),
    ):
        if (fewest := min(len(history[name]), len(now[name]))) < MIN_ROWS:
            what = f"{len(history[name])} earlier rows and {len(now[name])} in the window"
            sentence = f"Not judged: {what}; {fewest} on one side is fewer than the {MIN_ROWS} needed."
            skipped.append(Check(name=name, passed=True, severity="warning", observed=None, sentence=sentence))
        else:
            measures[name] = _drift(history[name], now[name], limit)
    passed = judge_numbers(
        {name: measure.value for name, measure in measures.items()},
        {name: measure.limit for name, measure in measures.items()},
    )
    return [
        Check(
            name=name, passed=passed[name], severity=m.severity, observed=round(float(m.value), 6), sentence=m.sentence
        )
        for name, m in measures.items()
    ] + skipped


def _drift(earlier: np.ndarray, now: np.ndarray, limit: float) -> Measure:
    """Compare with the limit plus what chance gives, or each small span would warn; with many rows that is near 0."""
    drift = population_stability(earlier, now)
    highest = limit + drift.by_chance
    sentence = (
        f"Population stability index {drift.psi:.3f} of {len(now)} rows against {len(earlier)} earlier ones, over "
        f"{drift.bins} bins; at most {highest:.3f} is expected: {limit:g}, and {drift.by_chance:.3f} that chance gives."
    )
    return Measure(drift.psi, Limit(None, highest), "warning", sentence)


# --- distributions for the drift --------------------------------------------------------------------------------


def _distributions(table: pa.Table) -> dict[str, np.ndarray]:
    """Return by check 1-d float64, one number for each row, NaN where null."""
    return {
        _LABELS: table[LABEL].to_pandas().to_numpy(dtype="float64"),
        _QUERY_LENGTHS: characters(table[QUERY]).to_pandas().to_numpy(dtype="float64"),
        _ITEM_LENGTHS: characters(table[ITEM]).to_pandas().to_numpy(dtype="float64"),
    }


def _joined(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {
        name: np.concatenate([np.empty(0), *(part[name] for part in parts)])
        for name in (_LABELS, _QUERY_LENGTHS, _ITEM_LENGTHS)
    }


def _history(store: Store, refs: Sequence[RowsRef]) -> dict[str, np.ndarray]:
    parts, rows = [], 0
    for ref in reversed(refs):
        if rows >= _HISTORY_ROWS:
            break
        try:
            folder, manifest = open_folder(store, ref.prefix, ROWS_KIND)
        except (MissingFolder, CorruptFolder) as error:
            raise type(error)(f"rows of the earlier span {ref.span.name}: {error}") from error
        for entry in manifest.files:
            with pq.ParquetFile(folder / entry.name, pre_buffer=False) as file:
                batches = file.iter_batches(JUDGED_ROWS, columns=[QUERY, ITEM, LABEL])
                parts.extend(_distributions(pa.Table.from_batches([batch])) for batch in batches)
        rows += ref.rows
    return _joined(parts)


# --- what is written --------------------------------------------------------------------------------------------


def _rows_folder(scratch: Path, span: SpanRef) -> Path:
    return scratch / "rows" / span.name


def _write(table: pa.Table, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def _commit(job: Job, scratch: Path, span: SpanRef, rows: int) -> RowsRef:
    prefix = f"{job.spec.attempt_prefix}/rows/{span.name}"
    facts = {"span": span.name, "span_version": span.version, "rows": rows}
    commit(job.store, prefix, _rows_folder(scratch, span), ROWS_KIND, facts)
    return RowsRef(span=span, prefix=prefix, rows=rows)


def _quarantine(job: Job, scratch: Path, counts: WindowCounts) -> str | None:
    """Write the bad rows of all spans; return the key of their file, None without bad rows."""
    if not counts.bad:
        return None
    try:
        table = pa.concat_tables(counts.bad, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid):  # an unused column is text in one span, numbers in another
        as_text = (t.cast(pa.schema([(name, pa.string()) for name in t.column_names])) for t in counts.bad)
        table = pa.concat_tables(as_text, promote_options="default")
    _write(table, scratch / "quarantine" / "quarantine.parquet")
    prefix = f"{job.spec.attempt_prefix}/quarantine"
    commit(job.store, prefix, scratch / "quarantine", QUARANTINE_KIND, {"rows": len(table)})
    return f"{prefix}/quarantine.parquet"


def _stop_if_critical(job: Job, outcome: ValidateOutcome, window: Sequence[SpanRef]) -> None:
    failed = [check for check in outcome.checks if check.severity == "critical" and not check.passed]
    if not failed:
        return
    key = f"{job.spec.attempt_prefix}/report.json"
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
