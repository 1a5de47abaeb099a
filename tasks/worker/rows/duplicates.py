"""Exclude rows from both splits, training and holdout, if the other split has a near-duplicate.

Earlier rows keep their split. A new row is excluded from training if it is a near-duplicate of a row held out in this
span or earlier, or has the texts of a golden row; and from the evaluation if it is a near-duplicate of an earlier
training row. DuckDB compares in bounded memory. Each span keeps the signatures of its rows, so the rows of the history
are not read again.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.factory import drop_copy
from infra.store.manifest import FileEntry, commit_by_content, find_entry, open_entry, open_manifest
from tasks.contracts.evaluation import GOLDEN
from tasks.contracts.outcomes import Check
from tasks.contracts.references import HoldoutRule, RowsRef
from tasks.data.holdout import HELD, LEFT_OUT, SIDES_KIND, Piece, pieces_of
from tasks.data.rows import ROW_ID, below_share, group_columns, hold_places, read_rows
from tasks.worker.catalogue.records import connect, literal
from tasks.worker.process.cores import Cores
from tasks.worker.rows.holdout import at_once
from tasks.worker.rows.signatures import EXACT_KEYS, signatures

SIGNATURES = "signatures.parquet"  # signatures of the rows in either split
MOST_LEFT_OUT = 0.2  # share of a span's clean rows; a larger one points to a faulty source
BYTES_AT_ONCE = 2**35  # on the disk, for signatures of earlier spans; the CPU queue's machines have 200 GB
ROWS_AT_ONCE = 2**16  # of a span, compared at once: many rows alike have many pairs, which must fit into memory
COMPARED = 20  # a row is compared with at most 20 rows of the other split per shared key


class Signed(NamedTuple):
    """A file with the signatures of an earlier span's rows, or of some of them."""

    sides: str  # the folder of the span's sides, which decides the order of spans
    span: str
    folder: str  # the folder that has the file
    entry: FileEntry


Meet = Callable[[RowsRef, Path], Sequence[Signed]]


class LeftOut(NamedTuple):
    """Numbers of rows excluded from both splits, by the split they would have been in."""

    training: int
    held: int
    golden: int  # part of `training`: rows with the texts of a golden row


def find_sides(
    store: Store,
    window: Sequence[RowsRef],
    history: Sequence[RowsRef],
    config: Config,
    prefix: str,
    scratch: Path,
    cores: Cores,
    golden: str | None = None,
    meet: Meet | None = None,
) -> tuple[tuple[RowsRef, ...], tuple[LeftOut, ...]]:
    """Write the excluded rows of each span below `prefix`; return the references with `sides`, and the numbers.

    Args:
        window: oldest first, like `history`.
        scratch: an empty local folder.
        golden: key of the golden set, if any.
        meet: returns the signatures of the history that a span must be compared with, by the file of the span's own;
            None: all.

    Raises:
        MissingFolder, CorruptFolder: the rows of the window, or signatures of the history, are missing or damaged.
        DataError: a span lacks the column of `evaluate.group`.
    """
    rule, near = HoldoutRule.of(config.evaluate, (*history, *window)), config.evaluate.near_duplicates is not None
    done: list[RowsRef] = []
    left: list[LeftOut] = []
    kept_out = {_draft_golden(store, golden, scratch): GOLDEN} if golden is not None else {}
    whole = signed_rows(store, history) if meet is None else []
    for ref in window:
        folder = scratch / ref.span.name
        folder.mkdir(parents=True)
        drafted = folder.with_suffix(".drafted")
        _draft(store, ref, rule, near, drafted, cores)
        earlier = [*(whole if meet is None else meet(ref, drafted)), *signed_rows(store, done)]
        with connect(scratch) as database:
            left_out = _compare(database, store, {drafted: ref.span.name, **kept_out}, drafted, earlier, config)
            database.sql(f"""
                COPY (SELECT * FROM {_parquet(drafted)} ANTI JOIN left_out USING ({ROW_ID}) ORDER BY place)
                TO {literal(str(folder / SIGNATURES))} (FORMAT parquet, COMPRESSION zstd)
            """)
        pq.write_table(left_out, folder / LEFT_OUT)
        drafted.unlink()
        held = sum(left_out[HELD].to_pylist())
        of_golden = left_out["like_span"].to_pylist().count(GOLDEN)
        left.append(LeftOut(left_out.num_rows - held, held, of_golden))
        facts = {"span": ref.span.name, **left[-1]._asdict()}
        sides = commit_by_content(store, f"{prefix}/{ref.span.name}", folder, SIDES_KIND, facts)
        done.append(ref.model_copy(update={"sides": sides}))
    return tuple(done), tuple(left)


def check_left_out(rows: Sequence[RowsRef], left: Sequence[LeftOut]) -> Check:
    """Return a check (a warning) of the span with the largest share of rows excluded from training.

    Args:
        rows: as returned by `find_sides`, like `left`; at least one span.
    """
    shares = [each.training / max(ref.rows, 1) for ref, each in zip(rows, left, strict=True)]
    share, ref, most = max(zip(shares, rows, left, strict=True), key=lambda found: found[0])
    return Check(
        name="left out of training",
        passed=share <= MOST_LEFT_OUT,
        severity="warning",
        observed=round(share, 6),
        sentence=f"{most.training} of {ref.rows} clean rows of span {ref.span.name} ({share:.2%}) are not trained on, "
        f"since they are like rows held out; at most {MOST_LEFT_OUT:.0%} is expected.",
    )


def _draft_golden(store: Store, key: str, scratch: Path) -> Path:
    """Write the signatures of the golden set, all of them held out; return the path."""
    rows = pq.read_table(store.local(key))
    path = scratch / "golden.drafted"
    held = pa.array([True] * rows.num_rows)
    pq.write_table(signatures(rows, 0, near=False).append_column(HELD, held), path)
    return path


def _draft(store: Store, ref: RowsRef, rule: HoldoutRule, near: bool, path: Path, cores: Cores) -> None:
    """Write the signatures of all rows of a span that the rule puts into a split, with HELD."""
    writer, none = None, pa.array([], pa.string())
    pieces = pieces_of(read_rows(store, [ref], group_columns(rule.group)), left_out=none)
    try:
        for _, table in cores.map(functools.partial(_drafted, rule=rule, near=near), pieces, ref.rows):
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _drafted(piece: Piece, rule: HoldoutRule, near: bool) -> pa.Table:
    first, rows, _ = piece
    places = hold_places(rows, rule.group)
    held, training = below_share(places, rule.measured), ~below_share(places, rule.share)
    table = signatures(rows, first, near).append_column(HELD, pa.array(held))
    return table.filter(pa.array(held | training))


def _compare(
    database: duckdb.DuckDBPyConnection,
    store: Store,
    held_here: Mapping[Path, str],
    drafted: Path,
    earlier: Sequence[Signed],
    config: Config,
) -> pa.Table:
    """Return the rows to exclude, in their order: ROW_ID, HELD, and the most similar row with its similarity.

    Also leaves them in the database's table `left_out`.

    Args:
        held_here: path of signatures -> span; near-duplicates of their held rows are not trained on. With this span's.
    """
    database.sql(f"CREATE TABLE own AS SELECT {ROW_ID}, place, {HELD}, keys, runs FROM {_parquet(drafted)}")
    load_keys(database, drafted)
    database.sql(f"CREATE TABLE found (place UINTEGER, {ROW_ID} VARCHAR, span VARCHAR, similarity DOUBLE)")
    # Within the span, only training rows are excluded.
    _find(database, [held_here], f"NOT o.{HELD} AND f.{HELD}", config)
    _find(database, some_at_once(store, earlier), OTHER_SIDE, config)
    database.sql(f"""
        CREATE TABLE left_out AS
        SELECT own.{ROW_ID}, own.{HELD}, found.span AS like_span, found.{ROW_ID} AS like_row_id, similarity
        FROM found JOIN own USING (place)
        QUALIFY row_number() OVER (PARTITION BY place ORDER BY similarity DESC, found.span, found.{ROW_ID}) = 1
        ORDER BY place
    """)
    return database.sql(f"SELECT left_out.* FROM left_out JOIN own USING ({ROW_ID}) ORDER BY place").to_arrow_table()


_KEYS = f"place, {HELD}, unnest(keys) AS key, generate_subscripts(keys, 1)::UTINYINT AS number"
OTHER_SIDE = f"o.{HELD} <> f.{HELD}"  # the rows of earlier spans that a row is compared with


def load_keys(database: duckdb.DuckDBPyConnection, drafted: Path) -> None:
    """Fill the table `own_keys` with the keys of a span's rows, from a file with PLACE, HELD and KEYS."""
    database.sql(f"CREATE OR REPLACE TABLE own_keys AS SELECT {_KEYS} FROM {_parquet(drafted)}")


def begin(database: duckdb.DuckDBPyConnection) -> None:
    """Empty the table `taken`: the number of rows that each key has given so far, COMPARED at most."""
    database.sql(f"CREATE OR REPLACE TABLE taken (number UTINYINT, key UBIGINT, {HELD} BOOLEAN, rows BIGINT)")


def take(database: duckdb.DuckDBPyConnection, files: Mapping[Path, str], sides: str) -> str:
    """Fill the table `few` with the rows to compare, COMPARED at most for each key; return `files` as a table of SQL.

    Args:
        files: path of signatures -> span, in the order in which rows are taken.
        sides: the condition for a row `o` of the span and a row `f` of the files to be compared.
    """
    theirs = f"read_parquet([{', '.join(literal(str(path)) for path in files)}], filename = true)"
    names = {"filename": [str(path) for path in files], "span": list(files.values()), "file": list(range(len(files)))}
    database.register("spans", pa.table(names))
    database.sql(f"""
        CREATE OR REPLACE TABLE few AS
        WITH met AS (
            SELECT * FROM (SELECT filename, {_KEYS} FROM {theirs}) f
            SEMI JOIN own_keys o ON o.number = f.number AND o.key = f.key AND {sides}
        ), before AS (
            SELECT number, key, {HELD}, sum(rows) AS rows FROM taken GROUP BY ALL
        )
        SELECT met.* FROM met JOIN spans USING (filename) LEFT JOIN before USING (number, key, {HELD})
        QUALIFY row_number() OVER (PARTITION BY number, key, {HELD} ORDER BY file, place)
            + coalesce(before.rows, 0) <= {COMPARED}
    """)
    database.sql(f"INSERT INTO taken SELECT number, key, {HELD}, count(*) FROM few GROUP BY ALL")
    return theirs


def _find(
    database: duckdb.DuckDBPyConnection, batches: Iterable[Mapping[Path, str]], sides: str, config: Config
) -> None:
    """Add the span's near-duplicates of rows in other files of signatures (path -> span) to the table `found`.

    Few rows share a key with the other side, so the files are read twice: first the keys, then the runs of the rows to
    compare.

    Args:
        batches: files that are read together; the same rows are found however the files are divided, in their order.
        sides: as in `take`.
    """
    near = config.evaluate.near_duplicates
    ((rows,),) = database.sql("SELECT coalesce(max(place) + 1, 0) FROM own").fetchall()
    begin(database)
    for files in batches:
        theirs = take(database, files, sides)
        database.sql(f"""
            CREATE OR REPLACE TABLE others AS
            SELECT filename, place, {ROW_ID}, runs FROM {theirs} SEMI JOIN few USING (filename, place)
        """)
        for first in range(0, rows, ROWS_AT_ONCE):
            some = f"place >= {first} AND place < {first + ROWS_AT_ONCE}"
            database.sql(f"""
                INSERT INTO found
                WITH pairs AS (
                    SELECT o.place, f.filename, f.place AS other, min(number) AS number
                    FROM (FROM own_keys WHERE {some}) o JOIN few f USING (number, key) WHERE {sides} GROUP BY ALL
                ), compared AS (
                    SELECT pairs.place, filename, t.{ROW_ID}, number,
                        len(list_intersect(own.runs, t.runs)) AS shared, len(own.runs) + len(t.runs) AS together
                    FROM pairs JOIN (FROM own WHERE {some}) own USING (place)
                    JOIN others t USING (filename) WHERE t.place = pairs.other
                ), judged AS (
                    SELECT place, filename, {ROW_ID},
                        CASE WHEN number <= {EXACT_KEYS} THEN 1.0 ELSE shared / (together - shared) END AS similarity
                    FROM compared
                )
                SELECT place, {ROW_ID}, span, similarity FROM judged JOIN spans USING (filename)
                WHERE similarity >= {near.similarity if near else 1.0}
            """)


def signed_rows(store: Store, refs: Sequence[RowsRef]) -> list[Signed]:
    """Return the signatures of earlier spans; a span that was never compared has none.

    Raises:
        MissingFolder, CorruptFolder: the sides of a span are missing, or their manifest is damaged.
    """
    spans = {ref.sides: ref.span.name for ref in refs if ref.sides is not None}
    manifests = at_once(lambda sides: open_manifest(store, sides, SIDES_KIND), [*spans])
    return [
        Signed(sides, span, sides, find_entry(store, sides, manifest, SIGNATURES))
        for (sides, span), manifest in zip(spans.items(), manifests, strict=True)
    ]


def some_at_once(store: Store, earlier: Sequence[Signed]) -> Iterator[dict[Path, str]]:
    """Yield the files of signatures of earlier spans (path -> span), in the order of their keys, BYTES_AT_ONCE at most.

    If there are more, a bucket's local copies are deleted after their turn, so that a long history fits on the disk.

    Raises:
        CorruptFolder: a file is gone or damaged.
    """
    batches, size = list[list[Signed]](), 0
    for each in sorted(earlier, key=lambda signed: signed.sides):
        if not batches or size + each.entry.bytes > BYTES_AT_ONCE:
            batches.append([])
            size = 0
        batches[-1].append(each)
        size += each.entry.bytes
    for batch in batches:
        yield {open_entry(store, each.folder, each.entry): each.span for each in batch}
        if len(batches) > 1:
            for each in batch:
                drop_copy(store, each.entry.key(each.folder))


def _parquet(path: Path) -> str:
    return f"read_parquet({literal(str(path))})"
