"""A window under validation: its running counts, the checks of the whole, and its drift against earlier spans.

The checks are of its bad rows, its size, its events, its features, and categories and tokens new to the parent.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.config import Config
from configs.schema.gates import Severity
from configs.schema.validation import DriftConfig
from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, open_folder
from tasks.contracts.outcomes import Check
from tasks.contracts.profiles import REASON, SPAN, ColumnDrift, SampleRow, SpanProfile
from tasks.contracts.references import RowsRef, SpanRef
from tasks.data.rows import ITEM, QUERY, ROWS_KIND
from tasks.foundation.nouns import plural
from tasks.quality.expectations import Limit
from tasks.worker.rows.columns import Compared, compared, joined, swapped
from tasks.worker.rows.drift import MIN_ROWS, category_stability, population_stability
from tasks.worker.rows.profile import RowSample
from tasks.worker.rows.row_checks import ID_RULES, JudgedRows, row_rules, with_reasons
from tasks.worker.rows.seen_ids import SeenIds

_EACH_REASON, _SAMPLE_ROWS = 3, 12
_SHOWN_CHARS = 80  # characters shown of a sample row's value
_MOST_EVENTS = 1_000
_LOOKED_AT = 1_000  # bad rows of a piece from which samples are taken


@dataclass
class WindowCounts:
    """Counts over the validated spans, their bad rows, and their ids."""

    rows_in: int = 0
    clean: dict[SpanRef, int] = field(default_factory=dict)
    bad: list[pa.Table] = field(default_factory=list)
    samples: list[SampleRow] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    unknown_events: Counter[str] = field(default_factory=Counter)
    failed: set[str] = field(default_factory=set)
    ids: SeenIds = field(default_factory=SeenIds)  # spans before the current one
    own_ids: SeenIds = field(default_factory=SeenIds)  # the current span
    filled: Counter[str] = field(default_factory=Counter)
    profiles: list[SpanProfile] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)

    @property
    def rows_clean(self) -> int:
        return sum(self.clean.values())

    def begin(self, span: SpanRef) -> None:
        self.clean[span] = 0
        self.ids.take(self.own_ids)
        self.own_ids = SeenIds()

    def add(self, span: SpanRef, judged: JudgedRows, features: Sequence[str]) -> None:
        """Count the rows of one piece of a span."""
        self.rows_in += len(judged.clean) + len(judged.bad)
        self.clean[span] += len(judged.clean)
        if len(judged.bad):
            self.bad.append(judged.bad)
            self._show(judged.bad.slice(0, _LOOKED_AT))
        for reason, finding in judged.findings.items():
            self.reasons.update({reason: len(finding.unexpected)})
            if not finding.passed:
                self.failed.add(reason)
        self.filled.update({column: len(judged.clean) - judged.clean[column].null_count for column in features})

    def set_apart(self, span: SpanRef, rows: pa.Table, reason: str) -> None:
        """Count rows of a span that are set apart for one reason, before any other rule."""
        self.rows_in += len(rows)
        self.reasons[reason] += len(rows)
        self.bad.append(with_reasons(span, rows, [reason] * len(rows)))
        self._show(self.bad[-1].slice(0, _LOOKED_AT))

    def count_events(self, unknown: pa.ChunkedArray) -> None:
        """Count unknown events by name; the names beyond the first thousand are not kept."""
        for each in unknown.value_counts().to_pylist():
            name = "no value" if each["values"] is None else repr(each["values"])
            if name in self.unknown_events or len(self.unknown_events) < _MOST_EVENTS:
                self.unknown_events[name] += each["counts"]

    def _show(self, bad: pa.Table) -> None:
        """Keep a few sample rows per reason, for the report."""
        met = Counter(sample.reason for sample in self.samples)
        for position, reason in enumerate(bad[REASON].to_pylist()):
            if len(self.samples) == _SAMPLE_ROWS:
                return
            if met[reason] < _EACH_REASON:
                met[reason] += 1
                (row,) = bad.slice(position, 1).to_pylist()
                values = {name: _cut(value) for name, value in row.items() if name not in (REASON, SPAN)}
                self.samples.append(SampleRow(reason=reason, span=row[SPAN], values=values))


def _cut(value: object) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


UNKNOWN_EVENT = "unknown event"
_NAMED = 5  # events in a sentence


def known_events(counts: WindowCounts) -> Check:
    """Return the check that the table has the events of all rows."""
    unknown, total = counts.reasons[UNKNOWN_EVENT], counts.rows_in
    sentence = "validate.events names the events of all rows."
    if unknown:
        sentence = (
            f"{unknown} of {total} rows ({unknown / total:.2%}) have an event that validate.events does not name: "
            f"{_names(counts.unknown_events)}; they are set apart."
        )
    return Check(
        name="events known", passed=not unknown, severity="warning", observed=float(unknown), sentence=sentence
    )


def way_out(counts: WindowCounts) -> str:
    """Return the end of a sentence about too many bad rows, if some have unknown events."""
    unknown = counts.reasons[UNKNOWN_EVENT]
    if not unknown:
        return ""
    return (
        f" {unknown} of them have an event that validate.events does not name, {_names(counts.unknown_events)}: name "
        "it in validate.events, or leave such rows out of the log."
    )


def _names(events: Counter[str]) -> str:
    return ", ".join(f"{name} ({rows})" for name, rows in events.most_common(_NAMED))


class Measure(NamedTuple):
    """A figure of the whole window, and its limit."""

    value: float
    limit: Limit
    severity: Severity
    sentence: str


def row_checks(counts: WindowCounts, config: Config) -> list[Check]:
    """Return one check per group of row rules. A bad row is a warning; the share of bad rows has its own check."""
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


def window_checks(
    counts: WindowCounts, features: Sequence[str], last: SpanRef, config: Config, more: str = ""
) -> list[Check]:
    """Return the checks of row counts, of features, and of categories and tokens new to the parent.

    Args:
        more: an end of the sentence on the share of bad rows.
    """
    measures = {**_sizes(counts, last, config, more), **_features(counts, features), **_unseen(counts, config)}
    return [
        Check(
            name=name,
            passed=m.limit.admits(m.value),
            severity=m.severity,
            observed=round(float(m.value), 6),
            sentence=m.sentence,
        )
        for name, m in measures.items()
    ]


def _way_on(clean: int, last: SpanRef, config: Config) -> str:
    """Return advice for a window with too few rows; empty if it has enough."""
    limits = config.validate_
    if clean >= limits.min_rows:
        return ""
    merge = "set validate.small_spans=merge to train it together with the next span, " * (limits.small_spans == "stop")
    return (
        f" Add rows to {last.name}, {merge}lower validate.min_rows, or leave the span out: "
        f"millrace skip {last.name} --reason TEXT."
    )


def _sizes(counts: WindowCounts, last: SpanRef, config: Config, more: str) -> dict[str, Measure]:
    limits = config.validate_
    clean, total = counts.rows_clean, counts.rows_in
    share = (total - clean) / max(total, 1)
    return {
        "clean rows": Measure(clean, Limit(limits.min_rows, None), "critical",
            f"{plural(clean, 'clean row')} in the window; at least {limits.min_rows} are required."
            f"{_way_on(clean, last, config)}"),
        "rows in the last span": Measure(counts.clean[last], Limit(1, None), "critical",
            f"{plural(counts.clean[last], 'clean row')} in span {last.name}, for which this run is; "
            "at least 1 is required."),
        "quarantined share": Measure(share, Limit(None, limits.max_bad_share), "critical",
            f"{total - clean} of {total} rows are bad ({share:.2%}); at most "
            f"{limits.max_bad_share:.2%} may be.{more}"),
    }  # fmt: skip


def _features(counts: WindowCounts, features: Sequence[str]) -> dict[str, Measure]:
    measures = {}
    for column in features:
        sentence = f"{counts.filled[column]} of {counts.rows_clean} clean rows have a {column}; at least 1 is required."
        measures[f"{column} filled"] = Measure(counts.filled[column], Limit(1, None), "warning", sentence)
    return measures


def _unseen(counts: WindowCounts, config: Config) -> dict[str, Measure]:
    """Return the window's shares of categories and tokens that the parent has never seen; empty without a parent."""
    limits = config.validate_
    measures = {}
    rows = sum(profile.rows for profile in counts.profiles)
    for feature in dict.fromkeys(name for profile in counts.profiles for name in profile.unseen):
        share = sum(profile.unseen.get(feature, 0.0) * profile.rows for profile in counts.profiles) / rows
        measures[f"{feature} unseen"] = Measure(
            share,
            Limit(None, limits.max_unseen_share),
            "warning",
            f"{share:.2%} of {rows} clean rows have a {feature} that the parent has never seen; at most "
            f"{limits.max_unseen_share:.2%} is expected.",
        )
    known = [
        (profile.unknown_tokens, profile.rows) for profile in counts.profiles if profile.unknown_tokens is not None
    ]
    if known:
        share = sum(tokens * each for tokens, each in known) / sum(each for _, each in known)
        measures["unknown tokens"] = Measure(
            share,
            Limit(None, limits.max_unknown_token_share),
            "warning",
            f"{share:.2%} of the tokens of a sample of texts are unknown to the parent's tokenizer; at most "
            f"{limits.max_unknown_token_share:.2%} is expected.",
        )
    return measures


HISTORY_ROWS = 200_000  # the window is compared with about this many rows of the newest earlier spans
_JUDGED_ROWS = 50_000


def read_earlier(store: Store, refs: Sequence[RowsRef], config: Config) -> Compared:
    """Return the newest earlier rows, prepared for comparison, oldest span first; of a large span a uniform sample.

    Raises:
        MissingFolder, CorruptFolder: the rows of a span are missing or damaged; names the span.
    """
    parts: list[Compared] = []
    for ref in reversed(refs):
        if sum(part.rows for part in parts) >= HISTORY_ROWS:
            break
        try:
            folder, manifest = open_folder(store, ref.prefix, ROWS_KIND)
        except (MissingFolder, CorruptFolder) as error:
            raise type(error)(f"rows of the earlier span {ref.span.name}: {error}") from error
        tables = _tables(folder / entry.name for entry in manifest.files)
        if ref.rows > HISTORY_ROWS:
            sample = RowSample(HISTORY_ROWS)
            for table in tables:
                sample.add(table)
            whole = sample.table()
            tables = (whole.slice(start, _JUDGED_ROWS) for start in range(0, len(whole), _JUDGED_ROWS))
        parts.append(joined([compared(table, config) for table in tables]))
    return joined(parts[::-1])


def _tables(files: Iterable[Path]) -> Iterator[pa.Table]:
    for path in files:
        with pq.ParquetFile(path, pre_buffer=False) as file:
            for batch in file.iter_batches(_JUDGED_ROWS):
                yield pa.Table.from_batches([batch])


def judge_drift(earlier: Compared, now: Compared, rules: DriftConfig) -> tuple[list[Check], tuple[ColumnDrift, ...]]:
    """Return a drift check for each compared series, and the drifts, the largest beside its limit first."""
    checks: list[Check] = []
    drifts: list[ColumnDrift] = []
    for column in now.series:
        drift = _drift(earlier, now, column, rules)
        if isinstance(drift, ColumnDrift):
            drifts.append(drift)
        else:
            sentence = f"Not judged: {drift}"
            severity = rules.severity_of(column)
            checks.append(
                Check(name=f"{column} drift", passed=True, severity=severity, observed=None, sentence=sentence)
            )
    judged = [
        Check(
            name=f"{drift.name} drift",
            passed=Limit(None, drift.limit).admits(drift.psi),
            severity=drift.severity,
            observed=round(drift.psi, 6),
            sentence=_sentence(drift, earlier, now, rules.limit_of(drift.name)),
        )
        for drift in drifts
    ]
    return [*judged, *checks], tuple(sorted(drifts, key=lambda drift: (-drift.psi / drift.limit, drift.name)))


def judge_places(earlier: Compared, now: Compared) -> list[Check]:
    """Return the check that the columns query and item are not swapped; empty if rows are too few."""
    if min(earlier.rows, now.rows) < MIN_ROWS:
        return []
    wrong = swapped(earlier.words, now.words, (QUERY, ITEM))
    found = (
        "The words of query are those that item had before, and the other way round: the columns have changed places."
        if wrong
        else "The words of query and item are in the columns that they were in before."
    )
    return [Check.critical("query and item in place", not wrong, found)]


def judge_columns(earlier: Compared, now: Compared) -> list[Check]:
    """Return the check that columns and types are as in the previous span; empty without one."""
    if not earlier.types:
        return []
    gone = [f"{name} is gone" for name in earlier.types if name not in now.types]
    new = [f"{name} is new" for name in now.types if name not in earlier.types]
    other = [
        f"{name} is {now.types[name]}, it was {kind}"
        for name, kind in earlier.types.items()
        if now.types.get(name, kind) != kind
    ]
    changes = [*gone, *new, *other]
    sentence = f"{', '.join(changes)}." if changes else f"All {len(now.types)} columns are as in the last span before."
    return [
        Check(
            name="columns as before",
            passed=not changes,
            severity="warning",
            observed=float(len(changes)),
            sentence=sentence,
        )
    ]


def _drift(earlier: Compared, now: Compared, column: str, rules: DriftConfig) -> ColumnDrift | str:
    """Return the drift of a column, or the reason why it can't be measured."""
    after = now.series[column]
    before = earlier.series.get(column)
    rows = 0 if before is None else len(before)
    if before is None or (fewest := min(rows, len(after))) < MIN_ROWS:
        fewest = min(rows, len(after))
        what = f"{plural(rows, 'earlier row')} and {len(after)} in the window"
        return f"{what}; {fewest} on one side is fewer than the {MIN_ROWS} needed."
    numbers = after.dtype.kind == "f"
    if numbers != (before.dtype.kind == "f"):
        return "it was numbers in one of the spans and names in another."
    drift = population_stability(before.to_numpy(), after.to_numpy()) if numbers else category_stability(before, after)
    # Add the drift expected by chance to the limit, or each small span would warn; with many rows it is near 0.
    return ColumnDrift(
        name=column,
        psi=drift.psi,
        limit=rules.limit_of(column) + drift.by_chance,
        severity=rules.severity_of(column),
        bins=drift.bins,
    )


def _sentence(drift: ColumnDrift, earlier: Compared, now: Compared, limit: float) -> str:
    by_chance = drift.limit - limit
    return (
        f"Population stability index {drift.psi:.3f} of {len(now.series[drift.name])} rows against "
        f"{len(earlier.series[drift.name])} earlier ones, over {len(drift.bins)} bins; at most {drift.limit:.3f} is "
        f"expected: {limit:g}, and {by_chance:.3f} that chance gives."
    )
