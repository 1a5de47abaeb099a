"""The profile of a span: statistics of its columns, kept in the workspace."""

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute

from configs.schema.config import Config
from tasks.contracts import spans
from tasks.contracts.profiles import ColumnProfile, Histogram, Shared, SpanProfile
from tasks.contracts.references import SpanRef
from tasks.data.rows import TIME
from tasks.worker.rows.columns import Compared, compared, kind_of, language_of, length_of
from tasks.worker.rows.drift import counted
from tasks.worker.rows.parent_vocabulary import Known
from tasks.worker.rows.samples import DistinctCounts, RowSample

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

SAMPLE_ROWS = 50_000
_TOP = 20
_BARS = 24  # bars of a histogram
_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


class SpanReader:
    """Profiles the clean rows of one span, piece by piece, in bounded memory."""

    def __init__(self, span: SpanRef, config: Config, known: Known | None) -> None:
        self._span, self._config, self._known = span, config, known
        self._sample, self._distinct = RowSample(SAMPLE_ROWS), DistinctCounts()
        self._rows = 0
        self._unseen: dict[str, int] = {}
        self._times: Counter[str] = Counter()
        self._time_format = "%Y-%m-%dT%H" if spans.kind_of(span.name) is spans.SpanKind.day else "%Y-%m-%d"

    def add(self, clean: pa.Table) -> None:
        """Add a piece of clean rows."""
        self._rows += len(clean)
        self._sample.add(clean)
        self._distinct.add(clean)
        for each in pc.strftime(clean[TIME], format=self._time_format).value_counts().to_pylist():
            self._times[each["values"]] += each["counts"]
        for name, rows in self._known.unseen(clean).items() if self._known else ():
            self._unseen[name] = self._unseen.get(name, 0) + rows

    def profile(self) -> tuple[SpanProfile, Compared] | None:
        """Return the profile, and a sample of the rows prepared for comparison; None without clean rows."""
        if not self._rows:
            return None
        sample = self._sample.table()
        found = compared(sample, self._config)
        profile = SpanProfile(
            span=self._span.name,
            version=self._span.version,
            rows=self._rows,
            sampled=len(sample),
            columns=tuple(self._column(sample, found, name) for name in sample.column_names),
            times=dict(sorted(self._times.items())),
            unseen={name: round(rows / self._rows, 6) for name, rows in self._unseen.items()},
            unknown_tokens=self._known.unknown_tokens(sample) if self._known else None,
        )
        return profile, found

    def _column(self, sample: pa.Table, found: Compared, name: str) -> ColumnProfile:
        kind = kind_of(sample, name, self._config)
        numbers = found.series.get(length_of(name) if kind == "text" else name) if kind in ("text", "number") else None
        names = (
            found.series.get(language_of(name) if kind == "text" else name) if kind in ("text", "category") else None
        )
        if kind == "number" and numbers is not None and numbers.nunique() <= _TOP:
            names = numbers.dropna().map("{:g}".format).reindex(numbers.index)
        return ColumnProfile(
            name=name,
            kind=kind,
            type=str(sample.schema.field(name).type),
            null_share=round(sample[name].null_count / len(sample), 6),
            distinct=self._distinct.of(name),
            quantiles=_quantiles(numbers) if numbers is not None else {},
            histogram=_histogram(numbers) if numbers is not None else None,
            top=_top(names) if names is not None else (),
        )


def _quantiles(numbers: pd.Series) -> dict[str, float]:
    known = numbers.dropna().to_numpy()
    if not len(known):
        return {}
    return {
        f"{q:g}": round(float(value), 6) for q, value in zip(_QUANTILES, np.quantile(known, _QUANTILES), strict=True)
    }


def _histogram(numbers: pd.Series) -> Histogram | None:
    """Return bars of one width between the quantiles 1 % and 99 %, so that a few far numbers don't hide the others."""
    known = numbers.dropna().to_numpy()
    if len(np.unique(known)) <= _TOP:
        return None
    edges = np.linspace(*np.quantile(known, (0.01, 0.99)), num=_BARS + 1)
    if not edges[0] < edges[-1]:
        return None
    counts, _ = np.histogram(np.clip(known, edges[0], edges[-1]), bins=edges)
    shares = (counts / len(numbers)).tolist()
    return Histogram(edges=tuple(np.round(edges, 6).tolist()), shares=tuple(round(share, 6) for share in shares))


def _top(names: pd.Series) -> tuple[Shared, ...]:
    commonest = list(counted(names).items())[:_TOP]
    return tuple(Shared(value=name, share=round(times / len(names), 6)) for name, times in commonest)
