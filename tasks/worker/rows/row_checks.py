"""Checks of the columns of a span, and the rules for a single row: each reason for which it can be bad.

`validate.py` decides whether the share of bad rows, or a whole window, is good enough.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.config import Config
from configs.schema.validation import ExpectationConfig, Scope
from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, open_folder
from tasks.contracts.outcomes import Check
from tasks.contracts.profiles import REASON, SEPARATOR, SPAN
from tasks.contracts.references import HoldoutRule, SpanRef
from tasks.contracts.spans import first_day, last_day
from tasks.data.ids import MOST_ID_BYTES, NUL
from tasks.data.label_columns import bad_weights, cant_be_learnt, label_columns, own_label_columns, with_labels
from tasks.data.rows import CORE, ITEM, ITEM_ID, LABEL, NO_WIDTH, QUERY, ROW_ID, SPAN_KIND, TIME, group_columns
from tasks.foundation.errors import DataError
from tasks.quality.expectations import Expectation, Finding, between, judge, not_null
from tasks.worker.rows.seen_ids import Hashes, SeenIds
from tasks.worker.rows.suites import judge_own


class Rule(NamedTuple):
    """One reason for a row to be bad, the name of `expectation`. The rules of one `check` are reported together."""

    check: str
    expectation: Expectation

    @property
    def reason(self) -> str:
        return self.expectation.name


def row_rules(config: Config) -> list[Rule]:
    """Return the rules for a single row. NaN has become null before, and null passes any range."""
    limits = config.validate_
    rules = [
        Rule(f"{column} present", not_null(f"{column} is null", f"value:{column}"))
        for column in CORE
        if column != LABEL
    ]
    rules.append(Rule("time in its span", between("time is outside of its span", "outside", 0, 0)))
    low, high = limits.min_text_chars, limits.max_text_chars
    for text in (QUERY, ITEM):
        short = f"{text} is empty" if low == 1 else f"{text} shorter than {low} characters"
        rules += [
            Rule(f"{text} length", between(short, f"characters:{text}", low, None)),
            Rule(f"{text} length", between(f"{text} longer than {high} characters", f"characters:{text}", None, high)),
        ]
    rules.append(Rule(f"{ITEM_ID} length", between(f"{ITEM_ID} is blank", f"characters:{ITEM_ID}", 1, None)))
    long = f"{ITEM_ID} longer than {MOST_ID_BYTES} bytes"  # a release of it could not be published
    rules.append(Rule(f"{ITEM_ID} length", between(long, f"bytes:{ITEM_ID}", None, MOST_ID_BYTES)))
    rules += [
        Rule(f"{column} without NUL", between(f"{column} has a NUL character", f"nul:{column}", 0, 0))
        for column in (QUERY, ITEM, ITEM_ID)
    ]
    rules += [
        Rule(f"{column} readable", between(f"{column} is not a number", f"unreadable:{column}", 0, 0))
        for column in config.features.numeric
    ]
    rules += [
        Rule(f"{column} usable", between(f"{column} {why}", f"unusable:{key}", 0, 0))
        for key, column, why in _label_rules(config)
    ]
    ranges = dict.fromkeys(config.features.numeric, (limits.numeric_min, limits.numeric_max))
    ranges[LABEL] = (limits.label_min, limits.label_max)
    for column, (low, high) in ranges.items():
        # An infinite bound would let an infinite value through.
        low, high = max(low, -sys.float_info.max), min(high, sys.float_info.max)
        rules += [
            Rule(f"{column} range", between(f"{column} below {low:.10g}", f"value:{column}", low, None)),
            Rule(f"{column} range", between(f"{column} above {high:.10g}", f"value:{column}", None, high)),
        ]
    return rules


def _label_rules(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield for each column of labels or weights: its configuration key, the column, and the fault of a bad value."""
    for name, head in config.heads.of_labels.items():
        yield f"heads.{name}.column", head.column, head.why_not
    if config.train.row_weight is not None:
        yield "train.row_weight", config.train.row_weight, "is no weight, a number from 0 on"


ID_RULES = [
    Rule("row_id unique", between("row_id repeats an earlier row of the span", "repeated", 0, 0)),
    Rule("row_id in one span", between("row_id is in an earlier span of the window", "elsewhere", 0, 0)),
]


JUDGED_ROWS = 50_000  # rows in memory, in pandas

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

_NUMBERS = ("double", "bool", "string", "null")
_NAMES = ("string", "bool", "double", "null")


class ParquetPart(NamedTuple):
    """One Parquet file of a span."""

    span: SpanRef
    path: Path
    schema: pa.Schema


class CheckedRows(NamedTuple):
    """A piece of a span after the rules that see one row at a time.

    `unknown`: rows with unknown events, which are in no other table. `table` has the source's types, `typed` has them
    from `as_typed`. `own`: findings of the user's expectations, by name. `ids` and
    `repeated`, bool: of the rows that are not bad so far, the second one True for an id that the piece had before.
    """

    unknown: pa.Table
    table: pa.Table
    typed: pa.Table
    findings: Mapping[str, Finding]  # by reason
    own: Mapping[str, Finding]
    ids: Hashes
    repeated: np.ndarray


class JudgedRows(NamedTuple):
    """`clean` has the types of `as_typed`; `bad` has the source's columns, REASON and SPAN."""

    clean: pa.Table
    bad: pa.Table
    findings: Mapping[str, Finding]  # by reason


def open_span(store: Store, span: SpanRef) -> list[ParquetPart]:
    """Return the Parquet files of a span, checked against its manifest.

    Raises:
        MissingFolder, CorruptFolder: the span is missing, or its files differ from the ingested ones.
        DataError: a file is not Parquet, or no file exists.
    """
    try:
        folder, manifest = open_folder(store, span.prefix, SPAN_KIND)
    except (MissingFolder, CorruptFolder) as error:
        raise type(error)(f"span {span.name} v{span.version}: {error}, or ingest the span again") from error
    parts = []
    for name in (entry.name for entry in manifest.files if entry.name.endswith(".parquet")):
        try:
            parts.append(ParquetPart(span, folder / name, pq.read_schema(folder / name)))
        except pa.ArrowInvalid as error:
            raise DataError(f"span {span.name} v{span.version}: {name} is not readable as Parquet: {error}") from error
    if not parts:
        raise DataError(f"span {span.name} v{span.version} has no Parquet file; ingest it again")
    return parts


def check_columns(parts: Sequence[ParquetPart], config: Config) -> tuple[Check, ...]:
    """Check that every file has the columns that the configuration uses.

    Raises:
        DataError: a column is missing or has a wrong type; names each with its span and the columns or type found.
    """
    wanted = _wanted_columns(config)
    problems: dict[tuple[str, str, str], str] = {}  # one per span, not per file
    for key, column, allowed in wanted:
        for part in parts:
            found, where = _type_in(part, column), f"span {part.span.name} v{part.span.version}"
            if found is None:
                problem = f"no column {column!r}; {key}; {part.path.name} has {', '.join(part.schema.names)}"
            elif found not in allowed:
                suitable = " or ".join(kind for kind in allowed if kind != "null")
                problem = f"column {column!r} is {found} in {part.path.name}, but must be {suitable}; {key}"
            else:
                continue
            problems.setdefault((part.span.name, key, column), f"{where}: {problem}")
    if problems:
        raise DataError(
            "\n".join(problems.values())
            + "\nIngest the span again with these columns, or name others in the configuration."
        )
    used = len({column for _, column, _ in wanted})
    present = f"All {used} columns in use are in all {len(parts)} files of the window."
    typed = f"All {used} columns in use have a type that fits their use."
    return (
        Check.critical("columns present", True, present, observed=used),
        Check.critical("column types", True, typed, observed=used),
    )


def _wanted_columns(config: Config) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return (reason, column, suitable types) of each column in use, in the order of messages."""
    wanted: list[tuple[str, str, tuple[str, ...]]] = [
        ("every span must have it", column, (str(kind), "null") if column == LABEL else (str(kind),))
        for column, kind in CORE.items()
    ]
    wanted += [
        ("features.numeric names it", column, ("double",) if column in CORE else _NUMBERS)
        for column in config.features.numeric
    ]
    wanted += [("features.categorical names it", c, _NAMES) for c in config.features.categorical if c not in CORE]
    wanted += [("features.entity names it", c, _NAMES) for c in _entity(config) if c not in CORE]
    names = _named_labels(config)
    wanted += [
        (f"{key} names it", column, _NAMES if column in names else _NUMBERS)
        for key, column in label_columns(config).items()
        if column not in (*CORE, *config.validate_.made_columns)
    ]
    if config.validate_.events is not None:
        wanted.append(("validate.events.column names it", config.validate_.events.column, _NAMES))
    group = HoldoutRule.of(config.evaluate).group
    wanted += [("evaluate.group names it", c, _NUMBERS) for c in group_columns(group) if c not in CORE]
    wanted += [("evaluate.slices names it", c, _NAMES) for c in config.evaluate.slices if c not in CORE]
    judged = (each for each in config.validate_.expectations if each.scope is not Scope.columns)
    own = dict.fromkeys(column for each in judged for column in each.columns)
    wanted += [("validate.expectations names it", c, (*_NAMES, "int64")) for c in own if c not in CORE]
    return wanted


def _entity(config: Config) -> list[str]:
    return [config.features.entity] if config.features.entity else []


def _named_labels(config: Config) -> list[str]:
    """Return the label columns that hold names."""
    return [head.column for head in config.heads.of_labels.values() if head.of_names]


def _type_in(part: ParquetPart, column: str) -> str | None:
    return str(part.schema.field(column).type) if column in part.schema.names else None


def count_rows(parts: Sequence[ParquetPart]) -> int:
    """Return the number of rows of a span, by the footers of its files."""
    return sum(pq.read_metadata(part.path).num_rows for part in parts)


def read_span(parts: Sequence[ParquetPart]) -> Iterator[pa.Table]:
    """Yield all rows of a span in order, about JUDGED_ROWS at a time, with the united columns of all its files."""
    schema = pa.unify_schemas([part.schema.remove_metadata() for part in parts], promote_options="permissive")
    waiting, rows = [schema.empty_table()], 0
    for part in parts:
        with pq.ParquetFile(part.path, pre_buffer=False) as file:
            for batch in file.iter_batches(JUDGED_ROWS):
                waiting.append(pa.Table.from_batches([batch]).replace_schema_metadata(None))
                rows += batch.num_rows
                if rows >= JUDGED_ROWS:
                    yield pa.concat_tables(waiting, promote_options="permissive")
                    waiting, rows = [schema.empty_table()], 0
    if rows:
        yield pa.concat_tables(waiting, promote_options="permissive")


def as_typed(table: pa.Table, config: Config) -> pa.Table:
    """Convert the columns in use to the types that later stages rely on.

    Numeric features and labels become float64 with null for NaN, categorical features and slices strings. Text in a
    numeric feature is parsed; text that is no number becomes null, which the rule `readable` finds.
    """
    kinds = dict.fromkeys((*config.features.categorical, *_entity(config), *config.evaluate.slices), pa.string())
    kinds |= dict.fromkeys((*config.features.numeric, *own_label_columns(config)), pa.float64())
    kinds |= dict.fromkeys(_named_labels(config), pa.string()) | CORE
    for column, kind in kinds.items():
        index, values = table.schema.get_field_index(column), table[column]
        if pa.types.is_floating(values.type):
            values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        if kind == pa.float64() and pa.types.is_string(values.type):
            numbers = pd.to_numeric(values.to_pandas().astype("str").str.strip(), errors="coerce")
            values = pa.chunked_array([pa.array(numbers, pa.float64(), from_pandas=True)])
        table = table.set_column(index, column, values.cast(kind))
    return table


def characters(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the length in characters, without surrounding white space and zero-width characters."""
    return pc.utf8_length(pc.utf8_trim_whitespace(pc.replace_substring_regex(text, NO_WIDTH, "")))


def check_rows(piece: tuple[SpanRef, pa.Table], config: Config, own: Mapping[str, ExpectationConfig]) -> CheckedRows:
    """Judge each row of a piece by itself.

    Args:
        piece: rows, and the span that they were ingested in.
        own: the user's expectations of rows, by name.
    """
    span, table = piece
    unknown = table.slice(0, 0)
    if config.validate_.events is not None:
        labelled = with_labels(table, config.validate_.events)
        table, unknown = labelled.rows, labelled.unknown
    if not len(table):
        return CheckedRows(unknown, table, table, {}, {}, Hashes.of(table[ROW_ID]), np.zeros(0, dtype=bool))
    typed = as_typed(table, config)
    findings = judge(_frame(span, table, typed, config), [rule.expectation for rule in row_rules(config)])
    found = judge_own(own, typed)
    bad = [finding.unexpected for finding in findings.values()]
    bad += [found[name].unexpected for name, each in own.items() if each.quarantine]
    good = np.ones(len(typed), dtype=bool)
    good[list({row for rows in bad for row in rows})] = False
    ids = typed[ROW_ID].filter(pa.array(good))
    return CheckedRows(unknown, table, typed, findings, found, Hashes.of(ids), ids.to_pandas().duplicated().to_numpy())


def judge_rows(
    span: SpanRef, checked: CheckedRows, own: Mapping[str, Finding], own_ids: SeenIds, earlier_ids: SeenIds
) -> JudgedRows:
    """Separate the clean rows of a piece from the bad ones.

    The first of several rows with the same id is kept; rows that are bad for another reason don't count.

    Args:
        own: findings of the user's expectations whose rows are bad, by reason.
        own_ids: ids of the span's earlier pieces; those of this piece are added.
        earlier_ids: ids of the window's earlier spans.
    """
    typed, findings = checked.typed, {**checked.findings, **own}
    reasons: dict[int, list[str]] = defaultdict(list)
    for reason, finding in findings.items():
        for row in finding.unexpected:
            reasons[row].append(reason)
    good = np.ones(len(typed), dtype=bool)
    good[list(reasons)] = False
    repeated = checked.repeated | own_ids.has(checked.ids)
    frame = pd.DataFrame({"repeated": repeated, "elsewhere": earlier_ids.has(checked.ids)})
    own_ids.add(checked.ids.at(~repeated))
    id_findings = judge(frame.astype("int64"), [rule.expectation for rule in ID_RULES])
    positions = np.flatnonzero(good)
    for reason, finding in id_findings.items():
        for index in finding.unexpected:
            reasons[int(positions[index])].append(reason)
    good[list(reasons)] = False
    # Filter by mask, not by position: this works chunk by chunk, for columns of any size.
    named = [SEPARATOR.join(reasons[row]) for row in sorted(reasons)]
    bad = with_reasons(span, checked.table.filter(pa.array(~good)), named)
    return JudgedRows(typed.filter(pa.array(good)), bad, {**findings, **id_findings})


def with_reasons(span: SpanRef, bad: pa.Table, reasons: Sequence[str]) -> pa.Table:
    """Return rows of a span with REASON and SPAN; a column of the source with such a name gets another one."""
    bad = bad.rename_columns([f"{n}_in_source" if n in (REASON, SPAN) else n for n in bad.column_names])
    bad = bad.append_column(REASON, pa.array(reasons, pa.string()))
    return bad.append_column(SPAN, pa.array([span.name] * len(bad), pa.string()))


def _frame(span: SpanRef, table: pa.Table, typed: pa.Table, config: Config) -> pd.DataFrame:
    """Return the columns that the rules name. `unreadable` is 1 if a source's text was not a number, else 0."""
    frame = {f"value:{c}": typed[c].to_pandas() for c in (*CORE, *config.features.numeric)}
    days = frame[f"value:{TIME}"].dt.date
    frame["outside"] = ((days < first_day(span.name)) | (days > last_day(span.name))).astype("int64")
    frame |= {f"characters:{c}": characters(typed[c]).to_pandas() for c in (QUERY, ITEM, ITEM_ID)}
    frame |= {
        f"nul:{c}": pc.match_substring(typed[c], NUL).cast(pa.int64()).to_pandas() for c in (QUERY, ITEM, ITEM_ID)
    }
    frame[f"bytes:{ITEM_ID}"] = pc.binary_length(typed[ITEM_ID]).to_pandas()
    for column in config.features.numeric:
        frame[f"unreadable:{column}"] = pd.Series(_unreadable(table[column], typed[column]).astype("int64"))
    unusable = {f"heads.{name}.column": cant_be_learnt(typed, head) for name, head in config.heads.of_labels.items()}
    if config.train.row_weight is not None:
        unusable["train.row_weight"] = bad_weights(typed[config.train.row_weight])
    for key, column in label_columns(config).items():
        bad = unusable[key] | _unreadable(table[column], typed[column])
        frame[f"unusable:{key}"] = pd.Series(bad.astype("int64"))
    return pd.DataFrame(frame)


def _unreadable(values: pa.ChunkedArray, typed: pa.ChunkedArray) -> np.ndarray:
    """Return bool (rows,): True if the source's text is not a number."""
    if not pa.types.is_string(values.type):
        return np.zeros(len(values), dtype=bool)
    blank = pc.fill_null(pc.equal(characters(values), 0), True)
    found: np.ndarray = pc.and_not(typed.is_null(), blank).to_numpy()
    return found
