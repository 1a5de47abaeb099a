"""Comparison of a span's items with the catalogue before it: changed contents, new items, known items with new ids.

DuckDB joins them in bounded memory; this process holds one batch of items and 16 bytes for each new item.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np
import pandas.util
import pyarrow as pa
import pyarrow.compute

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.references import CatalogueRef
from tasks.data.rows import ITEM, ITEM_ID, QUERY, ROW_ID, TEXT, UPDATED_AT, normal_text, plain_ids
from tasks.worker.catalogue.build import BATCH_ITEMS
from tasks.worker.catalogue.records import Source, connect, from_rows, quoted, records_of
from tasks.worker.catalogue.sources import DamagedBase, Sources, feature_names, feature_types, inputs_of, on_base
from tasks.worker.catalogue.wrong_joins import Relation, SharedWords, relation_of, shared_words

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers
hash_array: Any = pandas.util.hash_array  # unknown to type checkers

_NOW, _BEFORE = "span_items", "known_items"  # tables: ITEM_ID and _CONTENT
_CONTENT = "content"  # a struct of UPDATED_AT, TEXT and the features
_TEXT_NOW, _TEXT_BEFORE = "text_now", "text_before"
_SHOWN = 3  # examples of each kind
_RELATED = 50_000  # known items whose values are compared
_WORDED = 20_000  # rows about known items, and about new ones, whose words are compared
_NUMBERS = ("DOUBLE", "FLOAT")


class SpanItems(NamedTuple):
    """Counts of a span's items. `changes` has examples, e.g. `'i1': 'old' became 'new'`; `doubles` has some new ids."""

    span: str
    items: int
    known: int  # in the catalogue before
    changed: int  # known items with another text, compared after `normal_text`
    values: dict[str, int]  # feature -> known items with another value
    same_id: int  # new items with a known item's id in another form
    same_text: int  # other new items with exactly the text of a known item
    changes: tuple[str, ...] = ()
    doubles: tuple[str, ...] = ()
    alike: int = 0  # new items whose text another new item has
    alike_before: float = 0.0  # the same share of the known items, by their texts before
    texts_alike: tuple[str, ...] = ()  # the commonest text of new items
    relations: Mapping[str, Relation] = {}  # feature -> relation of the known items' values to the earlier ones
    words_of_known: SharedWords = shared_words((), ())  # on rows about known items
    words_of_new: SharedWords = shared_words((), ())

    @property
    def new(self) -> int:
        return self.items - self.known

    @property
    def doubled(self) -> int:
        """New items that are probably known items under another id."""
        return self.same_id + self.same_text


def compare_items(
    store: Store, span: str, rows: Sequence[Path], before: Sources, bases: Sequence[CatalogueRef], config: Config
) -> SpanItems | None:
    """Return the differences between a span's items and their earlier contents; None if no item was known before.

    Args:
        rows: the Parquet files with the span's clean rows.
        before: the sources of the catalogue before the span.
        bases: earlier catalogues, as for `build`; one made of a part of `before` saves reading that part.

    Raises:
        MissingFolder, CorruptFolder: a source is missing or damaged; names the file.
    """
    base, left = on_base(store, bases, before, feature_names(config))
    try:
        known = [*inputs_of(store, left, base)]
    except DamagedBase as error:
        print(f"{error}; the span is compared with the sources of {error.prefix}", flush=True)
        sound = [each for each in bases if each.prefix != error.prefix]
        return compare_items(store, span, rows, before, sound, config)
    if not known:
        return None
    types = feature_types([from_rows(rows), *known], config)
    with tempfile.TemporaryDirectory(prefix="millrace-") as scratch, connect(Path(scratch)) as database:
        database.execute(f"CREATE TABLE {_NOW} AS {_newest([from_rows(rows)], types)}")
        mine = f"WHERE {ITEM_ID} IN (SELECT {ITEM_ID} FROM {_NOW})"
        database.execute(f"CREATE TABLE {_BEFORE} AS {_newest(known, types, mine)}")
        found = _counted(database, span, known, types)
        relations = {name: _relation(database, name, kind) for name, kind in types.items()} if found.known else {}
        alike, text = _alike(database)
        return found._replace(
            relations=relations,
            alike=alike,
            alike_before=_alike_before(database),
            texts_alike=text,
            words_of_known=_words(database, rows, "SEMI"),
            words_of_new=_words(database, rows, "ANTI"),
        )


def _records(sources: Sequence[Source], types: dict[str, str]) -> str:
    """Return the query for all contents of all items of the sources."""
    records = " UNION ALL ".join(f"({records_of(source, types, 1)})" for source in sources)
    return f"SELECT * FROM ({records}) WHERE {TEXT} IS NOT NULL"


def _newest(sources: Sequence[Source], types: dict[str, str], where: str = "") -> str:
    """Return the query for the newest content of each item: the largest by time, then by text and features."""
    parts = ", ".join(quoted(each) for each in (UPDATED_AT, TEXT, *types))
    return f"""
        SELECT {ITEM_ID}, max(struct_pack({parts})) AS {_CONTENT}
        FROM ({_records(sources, types)}) {where} GROUP BY {ITEM_ID}
    """


def _counted(
    database: duckdb.DuckDBPyConnection, span: str, known: Sequence[Source], types: dict[str, str]
) -> SpanItems:
    """Count the items of the tables _NOW and _BEFORE, in the order of their ids."""
    items = there = changed = 0
    values = dict.fromkeys(types, 0)
    changes: list[str] = []
    new_ids: list[pa.Array] = []
    texts: list[np.ndarray] = []
    for batch in _joined(database, types):
        old = pc.is_valid(batch[_TEXT_BEFORE])
        both, new = batch.filter(old), batch.filter(pc.invert(old))
        items, there = items + batch.num_rows, there + both.num_rows
        other = both.filter(pc.not_equal(both[_TEXT_BEFORE], both[_TEXT_NOW]))
        pairs = zip(*(other[name].to_pylist() for name in (ITEM_ID, _TEXT_BEFORE, _TEXT_NOW)), strict=True)
        for item, before, now in pairs:
            if normal_text(before) != normal_text(now):
                changed += 1
                changes += [f"{item!r}: {before!r} became {now!r}"] * (len(changes) < _SHOWN)
        for name in types:
            values[name] += int(pc.sum(both[_other(name)]).as_py() or 0)
        new_ids += new[ITEM_ID].chunks
        texts.append(_hashed(new[_TEXT_NOW]))
    ids = pa.chunked_array(new_ids, pa.string())
    same_id, same_text, doubles = _doubles(database, known, types, ids, np.concatenate(texts))
    return SpanItems(span, items, there, changed, values, same_id, same_text, tuple(changes), doubles)


def _relation(database: duckdb.DuckDBPyConnection, feature: str, kind: str) -> Relation:
    """Return the relation of a feature's values to the earlier ones, over a sample of the items with both."""
    now, before = (f"{table}.{_CONTENT}.{quoted(feature)}" for table in (_NOW, _BEFORE))
    found = database.sql(f"""
        SELECT {ITEM_ID}, {before} AS old, {now} AS new FROM {_NOW} JOIN {_BEFORE} USING ({ITEM_ID})
        WHERE old IS NOT NULL AND new IS NOT NULL ORDER BY hash({ITEM_ID}), {ITEM_ID} LIMIT {_RELATED}
    """).to_arrow_table()
    number = kind.upper() in _NUMBERS
    old, new = (
        found[name].cast(pa.float64()).to_numpy() if number else np.asarray(found[name].to_pylist(), dtype=object)
        for name in ("old", "new")
    )
    return relation_of(np.asarray(found[ITEM_ID].to_pylist(), dtype=object), old, new)


def _alike(database: duckdb.DuckDBPyConnection) -> tuple[int, tuple[str, ...]]:
    """Return the number of new items whose text another new item has, and the commonest such text."""
    texts = f"""
        SELECT {_CONTENT}.{TEXT} AS text, count(*) AS times FROM {_NOW} ANTI JOIN {_BEFORE} USING ({ITEM_ID})
        GROUP BY 1 HAVING times > 1
    """
    many, text = database.sql(f"SELECT coalesce(sum(times), 0), max_by(text, (times, text)) FROM ({texts})").fetchall()[
        0
    ]
    return int(many), () if text is None else (repr(text),)


def _words(database: duckdb.DuckDBPyConnection, rows: Sequence[Path], join: str) -> SharedWords:
    """Return the words that a sample of the rows shares with its items: known ones by a SEMI join, new ones by ANTI."""
    found = database.sql(
        f"""
        SELECT {QUERY}, {ITEM} FROM read_parquet(?) {join} JOIN {_BEFORE} USING ({ITEM_ID})
        WHERE {QUERY} IS NOT NULL AND {ITEM} IS NOT NULL ORDER BY hash({ROW_ID}), {ROW_ID} LIMIT {_WORDED}
        """,
        params=[[str(path) for path in rows]],
    ).to_arrow_table()
    return shared_words(found[QUERY].to_pylist(), found[ITEM].to_pylist())


def _alike_before(database: duckdb.DuckDBPyConnection) -> float:
    texts = f"SELECT count(*) AS times FROM {_BEFORE} GROUP BY {_CONTENT}.{TEXT}"
    query = f"SELECT coalesce(sum(times) FILTER (times > 1) / sum(times), 0) FROM ({texts})"
    return float(database.sql(query).fetchall()[0][0])


def _other(feature: str) -> str:
    return f"other {feature}"


def _joined(database: duckdb.DuckDBPyConnection, types: dict[str, str]) -> Iterator[pa.Table]:
    """Yield the span's items with both texts (null before for a new item) and one flag per feature that differs."""
    now, before = (f"{table}.{_CONTENT}" for table in (_NOW, _BEFORE))
    others = "".join(
        f", {now}.{quoted(name)} IS DISTINCT FROM {before}.{quoted(name)} AS {quoted(_other(name))}" for name in types
    )
    reader = database.sql(f"""
        SELECT {ITEM_ID}, {before}.{TEXT} AS {_TEXT_BEFORE}, {now}.{TEXT} AS {_TEXT_NOW}{others}
        FROM {_NOW} LEFT JOIN {_BEFORE} USING ({ITEM_ID}) ORDER BY {ITEM_ID}
    """).to_arrow_reader(BATCH_ITEMS)
    for batch in reader:
        yield pa.Table.from_batches([batch])


def _doubles(
    database: duckdb.DuckDBPyConnection,
    known: Sequence[Source],
    types: dict[str, str],
    ids: pa.ChunkedArray,
    texts: np.ndarray,
) -> tuple[int, int, tuple[str, ...]]:
    """Count new items with a known item's id in another form, and others with its text; also return some ids.

    Args:
        ids: of the new items.
        texts: hashes of their texts, uint64 (new items,).
    """
    if not len(ids):
        return 0, 0, ()
    same_id, same_text = _Sought(_hashed(plain_ids(ids))), _Sought(texts)
    columns = f"SELECT {ITEM_ID}, {TEXT} FROM ({_records(known, types)})"
    for batch in database.sql(columns).to_arrow_reader(BATCH_ITEMS):
        table = pa.Table.from_batches([batch])
        same_id.look(_hashed(plain_ids(table[ITEM_ID])))
        same_text.look(_hashed(table[TEXT]))
    by_id, by_text = same_id.found, same_text.found
    places = np.flatnonzero(by_id | by_text)[:_SHOWN].tolist()
    return int(by_id.sum()), int((by_text & ~by_id).sum()), tuple(repr(ids[place].as_py()) for place in places)


class _Sought:
    """Hashes to find among many others, a batch at a time."""

    def __init__(self, hashes: np.ndarray) -> None:
        self._sorted, self._place = np.unique(hashes, return_inverse=True)
        self._met = np.zeros(len(self._sorted), dtype=bool)

    def look(self, hashes: np.ndarray) -> None:
        places = np.minimum(np.searchsorted(self._sorted, hashes), len(self._sorted) - 1)
        self._met[places[self._sorted[places] == hashes]] = True

    @property
    def found(self) -> np.ndarray:
        """A bool for each hash: True if it was found."""
        return self._met[self._place]


def _hashed(column: pa.ChunkedArray) -> np.ndarray:
    """Return uint64 hashes of texts without nulls."""
    values = np.asarray(column.to_pandas().to_numpy(), dtype=object)
    hashed: np.ndarray = hash_array(values) if len(values) else np.empty(0, dtype=np.uint64)
    return hashed
