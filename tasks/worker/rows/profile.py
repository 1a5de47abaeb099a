"""The profile of a span: statistics of its columns, kept in the workspace."""

import numpy as np
import pandas as pd
import pyarrow as pa

from configs.schema.config import Config
from tasks.contracts.profiles import ColumnProfile, Shared, SpanProfile
from tasks.contracts.references import SpanRef
from tasks.worker.rows.columns import Compared, compared, kind_of, language_of, length_of
from tasks.worker.rows.drift import counted
from tasks.worker.rows.parent_vocabulary import Known
from tasks.worker.rows.samples import DistinctCounts, RowSample

SAMPLE_ROWS = 50_000
_TOP = 20
_QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)


class SpanReader:
    """Profiles the clean rows of one span, piece by piece, in bounded memory."""

    def __init__(self, span: SpanRef, config: Config, known: Known | None) -> None:
        self._span, self._config, self._known = span, config, known
        self._sample, self._distinct = RowSample(SAMPLE_ROWS), DistinctCounts()
        self._rows = 0
        self._unseen: dict[str, int] = {}

    def add(self, clean: pa.Table) -> None:
        """Add a piece of clean rows."""
        self._rows += len(clean)
        self._sample.add(clean)
        self._distinct.add(clean)
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
        return ColumnProfile(
            name=name,
            kind=kind,
            type=str(sample.schema.field(name).type),
            null_share=round(sample[name].null_count / len(sample), 6),
            distinct=self._distinct.of(name),
            quantiles=_quantiles(numbers) if numbers is not None else {},
            top=_top(names) if names is not None else (),
        )


def _quantiles(numbers: pd.Series) -> dict[str, float]:
    known = numbers.dropna().to_numpy()
    if not len(known):
        return {}
    return {
        f"{q:g}": round(float(value), 6) for q, value in zip(_QUANTILES, np.quantile(known, _QUANTILES), strict=True)
    }


def _top(names: pd.Series) -> tuple[Shared, ...]:
    commonest = list(counted(names).items())[:_TOP]
    return tuple(Shared(value=name, share=round(times / len(names), 6)) for name, times in commonest)
