"""Running counts of a window under validation; its clean rows are on disk."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tasks.contracts.profiles import REASON, SPAN, SampleRow, SpanProfile
from tasks.contracts.references import SpanRef
from tasks.worker.rows.columns import Compared
from tasks.worker.rows.row_checks import JudgedRows, with_reasons

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
    ids: dict[SpanRef, list[pa.ChunkedArray]] = field(default_factory=dict)
    filled: Counter[str] = field(default_factory=Counter)
    profiles: list[SpanProfile] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)

    @property
    def rows_clean(self) -> int:
        return sum(self.clean.values())

    def begin(self, span: SpanRef) -> None:
        self.clean[span], self.ids[span] = 0, []

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
        self.ids[span].append(judged.ids)
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
