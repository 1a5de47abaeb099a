"""The profile of a span: statistics of its columns, kept in the workspace.

Samples and distinct counts take bounded memory, and are the same however the rows are split into pieces. Categories and
tokens that the parent checkpoint does not know are counted; its weights are not read.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pandas.util
import pyarrow as pa
import pyarrow.compute
from tokenizers import Tokenizer

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, open_file, read_manifest
from tasks.contracts import spans
from tasks.contracts.profiles import ColumnProfile, Histogram, Shared, SpanProfile
from tasks.contracts.references import CheckpointRef, SpanRef
from tasks.data.rows import ITEM, QUERY, ROW_ID, TIME
from tasks.foundation.errors import StoreError
from tasks.worker.model import features, tokens
from tasks.worker.model.features import FeatureTable
from tasks.worker.rows.columns import LANGUAGE_ROWS, Compared, compared, kind_of, language_of, length_of, spread
from tasks.worker.rows.drift import counted

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


@dataclass(frozen=True)
class Known:
    """`categories` by feature; `unknown` is the tokenizer's id for unknown text, None if it has none."""

    categories: Mapping[str, Sequence[str]]
    tokenizer: Tokenizer
    unknown: int | None

    def unseen(self, rows: pa.Table) -> dict[str, int]:
        """Return by feature the number of rows with a category never seen in training."""
        found = {}
        for name, values in self.categories.items():
            if name in rows.column_names:
                column = rows[name].cast(pa.string()).drop_null()
                known = pc.is_in(column, value_set=pa.array(values, pa.string()))
                found[name] = len(column) - int(pc.sum(known).as_py() or 0)
        return found

    def unknown_tokens(self, rows: pa.Table) -> float | None:
        """Return the share of unknown tokens in a sample of texts; None if the tokenizer has no unknown token."""
        if self.unknown is None:
            return None
        few = rows.take(pa.array(spread(len(rows), LANGUAGE_ROWS)))
        texts = [text for column in (QUERY, ITEM) for text in few[column].drop_null().to_pylist()]
        encoded = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        total = sum(len(each.ids) for each in encoded)
        return sum(each.ids.count(self.unknown) for each in encoded) / total if total else 0.0


def read_known(store: Store, parent: CheckpointRef) -> Known:
    """Return a checkpoint's vocabularies. Raises StoreError: its tokenizer or feature table is gone or damaged."""
    try:
        manifest = read_manifest(store, parent.prefix)
        names = (features.FILE, tokens.FILE)
        features_file, tokens_file = (open_file(store, parent.prefix, manifest, name) for name in names)
    except (MissingFolder, CorruptFolder) as error:
        raise StoreError(
            f"the parent checkpoint can't be read: {error}, or start a new lineage with --set lineage=NAME"
        ) from error
    table = FeatureTable.model_validate_json(features_file.read_bytes())
    described = tokens_file.read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_str(described)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    name = json.loads(described)["model"].get("unk_token")
    return Known(table.categorical, tokenizer, tokenizer.token_to_id(name) if name else None)


hash_array: Any = pandas.util.hash_array  # unknown to type checkers

_HASHES = 4096  # kept per column; fewer distinct values are counted exactly


class RowSample:
    """A uniform sample: the `most` rows with the smallest id hashes, in their order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tables: list[pa.Table] = []
        self._hashes: list[np.ndarray] = []
        self._held = 0

    def add(self, table: pa.Table) -> None:
        """Add rows; all tables have the same columns."""
        self._tables.append(table)
        self._hashes.append(_hashed(table[ROW_ID]))
        self._held += len(table)
        if self._held > 2 * self._most:
            self._thin()

    def table(self) -> pa.Table:
        """Return the sample; at least one table was added."""
        if self._held > self._most:
            self._thin()
        return pa.concat_tables(self._tables)

    def _thin(self) -> None:
        table, hashes = pa.concat_tables(self._tables), np.concatenate(self._hashes)
        kept = np.sort(np.argsort(hashes, kind="stable")[: self._most])
        self._tables, self._hashes, self._held = [table.take(pa.array(kept))], [hashes[kept]], len(kept)


class DistinctCounts:
    """Estimated number of distinct values per column, from the k smallest hashes (Bar-Yossef et al. 2002)."""

    def __init__(self) -> None:
        self._smallest: dict[str, np.ndarray] = {}

    def add(self, table: pa.Table) -> None:
        """Add rows."""
        for name in table.column_names:
            hashes = np.unique(_hashed(table[name].drop_null().unique()))
            known = self._smallest.get(name, np.empty(0, dtype=np.uint64))
            self._smallest[name] = np.union1d(known, hashes)[:_HASHES]

    def of(self, column: str) -> int:
        """Return the number of distinct non-null values of a column."""
        held = self._smallest.get(column, np.empty(0, dtype=np.uint64))
        if len(held) < _HASHES:
            return len(held)
        return round((_HASHES - 1) / (float(held[-1]) / 2**64))


def _hashed(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return uint64 hashes of a column without nulls, the same in every process."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    values = column.to_pandas().to_numpy()
    return np.asarray(hash_array(values if values.dtype.kind in "biuf" else values.astype(object)))


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
