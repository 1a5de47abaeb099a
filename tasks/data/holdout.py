"""The split of the validated rows into training rows, development rows and holdout.

Hashes of its query and of its group decide the split of a row; after a change of the share, rows between the shares
are in neither. Near-duplicates of a row in the other split are in neither too: validate lists them in the folder
`RowsRef.sides`.

Development rows are training rows that no step uses, chosen by the hash of their group. They choose the step of
`train.keep_best`, and fix slope, shift and threshold of solved heads. A head that is judged by rows of the
encoder's training is too sure of itself, as the encoder has pulled their vectors apart.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import open_file, open_manifest
from tasks.contracts.references import CheckpointState, GroupRange, HoldoutRule, RowsRef
from tasks.data.rows import ITEM, QUERY, ROW_ID, below_share, group_columns, hold_places, read_rows, unseen_places
from tasks.foundation.errors import ConfigError

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

SIDES_KIND = "sides"
LEFT_OUT = "left_out.parquet"  # ROW_ID and HELD of the excluded near-duplicates, and the row that each resembles
HELD = "held"  # bool: true if the row would be in the holdout


class Sides(NamedTuple):
    """Rows by split."""

    training: pa.Table
    held: pa.Table


def held_out(rows: pa.Table, rule: HoldoutRule) -> np.ndarray:
    """Return a mask of the rows in the holdout, bool (rows,)."""
    return below_share(hold_places(rows, rule.group), rule.measured)


def unseen(rows: pa.Table, rule: HoldoutRule) -> np.ndarray:
    """Return a mask of the rows whose query is held out with all its rows, bool (rows,)."""
    return below_share(unseen_places(rows, rule.group), rule.measured)


def trainable(rows: pa.Table, rule: HoldoutRule) -> np.ndarray:
    """Return a mask of the rows that may be trained on, bool (rows,); no row of the holdout is in it."""
    return ~below_share(hold_places(rows, rule.group), rule.share)


def is_training(rows: pa.Table, rule: HoldoutRule, left_out: pa.Array | None) -> np.ndarray:
    """Return a mask of the training rows, bool (rows,), without the row ids in `left_out`."""
    found = trainable(rows, rule)
    if left_out is not None and len(left_out):
        found &= pc.invert(pc.is_in(rows[ROW_ID], value_set=left_out)).to_numpy()
    return found


def split_holdout(rows: pa.Table, rule: HoldoutRule, left_out: pa.Array | None = None) -> Sides:
    """Return the rows by split, without the row ids in `left_out`."""
    return split_by_places(rows, hold_places(rows, rule.group), rule, left_out)


def split_by_places(rows: pa.Table, places: np.ndarray, rule: HoldoutRule, left_out: pa.Array | None) -> Sides:
    """Do `split_holdout` with the rows' known places, uint64 (rows,), from `hold_places`."""
    training, held = ~below_share(places, rule.share), below_share(places, rule.measured)
    if left_out is not None and len(left_out):
        kept = pc.invert(pc.is_in(rows[ROW_ID], value_set=left_out)).to_numpy()
        training, held = training & kept, held & kept
    return Sides(rows.filter(pa.array(training)), rows.filter(pa.array(held)))


def read_sides(
    store: Store, refs: Sequence[RowsRef], rule: HoldoutRule, columns: Sequence[str], newest_first: bool = False
) -> Iterator[Sides]:
    """Yield the rows of spans by split, a few thousand at a time; arguments, order and errors as in `read_rows`.

    Raises:
        MissingFolder, CorruptFolder: the rows of a span, or the list of its near-duplicates, are gone or damaged.
    """
    wanted = [*columns, *group_columns(rule.group)]
    for ref in reversed(refs) if newest_first else refs:
        left_out = left_out_ids(store, ref)
        for rows in read_rows(store, [ref], wanted, newest_first):
            yield split_holdout(rows, rule, left_out)


class Piece(NamedTuple):
    """Some rows of a span, the number of the first one, and the ids among them that are in no split."""

    first: int
    rows: pa.Table
    left_out: pa.Array


def pieces_of(tables: Iterable[pa.Table], left_out: pa.Array) -> Iterator[Piece]:
    """Yield the rows of a span with their own ids of `left_out`, which has the order of the rows."""
    first = used = 0
    for rows in tables:
        next_ones = left_out.slice(used, rows.num_rows)
        own = next_ones.filter(pc.is_in(next_ones, value_set=rows[ROW_ID].combine_chunks()))
        yield Piece(first, rows, own)
        first, used = first + rows.num_rows, used + len(own)


class TrainingSpan:
    """The training rows of one span, with the core columns and `columns`; read again in each iteration.

    The first iteration finds them by hashes of their texts. They are remembered in `found`, bool (rows of the span,),
    which a caller may set to what another process has found.
    """

    def __init__(self, store: Store, ref: RowsRef, rule: HoldoutRule, columns: Sequence[str]) -> None:
        self.store, self.ref, self.rule = store, ref, rule
        self.found: np.ndarray | None = None
        self._columns = [*columns, *group_columns(rule.group)]

    def __iter__(self) -> Iterator[pa.Table]:
        found = [np.zeros(0, dtype=bool)]
        for piece in self.pieces():
            known = None if self.found is None else self.found[piece.first : piece.first + piece.rows.num_rows]
            found.append(is_training(piece.rows, self.rule, piece.left_out) if known is None else known)
            if found[-1].any():
                yield piece.rows.filter(pa.array(found[-1]))
        self.found = np.concatenate(found)

    def pieces(self) -> Iterator[Piece]:
        """Yield all rows of the span, a few thousand at a time."""
        rows = read_rows(self.store, [self.ref], self._columns)
        return pieces_of(rows, left_out_ids(self.store, self.ref))

    def where(self, wanted: Callable[[pa.Table], np.ndarray]) -> Iterator[pa.Table]:
        """Yield the training rows that `wanted` selects, bool (rows,); no text of another row is hashed."""
        for piece in self.pieces():
            if (few := piece.rows.filter(pa.array(wanted(piece.rows)))).num_rows:
                yield few.filter(pa.array(is_training(few, self.rule, piece.left_out)))


def left_out_ids(store: Store, ref: RowsRef) -> pa.Array:
    """Return the ids of a span's rows that are in neither split as near-duplicates, string."""
    if ref.sides is None:
        return pa.array([], pa.string())
    file = open_file(store, ref.sides, open_manifest(store, ref.sides, SIDES_KIND), LEFT_OUT)
    return pq.read_table(file, columns=[ROW_ID])[ROW_ID].combine_chunks()


def held_texts(store: Store, folder: str, ids: Collection[str]) -> dict[str, tuple[str, str]]:
    """Return the texts of query and item of some held-out rows of a span, by row id.

    Args:
        folder: `RowsRef.held`.

    Raises:
        MissingFolder, CorruptFolder: the folder, or a file of it, is gone or damaged.
    """
    found: dict[str, tuple[str, str]] = {}
    manifest, wanted = open_manifest(store, folder, HELD), pa.array(sorted(ids), pa.string())
    for entry in manifest.files:
        if entry.name.startswith("rows-"):
            table = pq.read_table(open_file(store, folder, manifest, entry.name), columns=[ROW_ID, QUERY, ITEM])
            table = table.filter(pc.is_in(table[ROW_ID], value_set=wanted))
            texts = zip(table[QUERY].to_pylist(), table[ITEM].to_pylist(), strict=True)
            found |= dict(zip(table[ROW_ID].to_pylist(), texts, strict=True))
    return found


def with_rule_of(config: Config, state: CheckpointState | None) -> Config:
    """Return the configuration with the holdout grouping that a lineage in this state is bound to.

    Args:
        state: the checkpoint that training would continue; None, or one without spans: the configuration decides.

    Raises:
        ConfigError: the configuration has another group; names the remedies.
    """
    group = HoldoutRule.of(config.evaluate).group
    if state is not None and state.consumed:
        assert state.holdout is not None, "a checkpoint that consumed spans has the rule by which it held rows out"
        before = state.holdout.group
        if config.evaluate.group is None:
            group = before
        if group != before:
            first, last = state.consumed[0].span.name, state.consumed[-1].span.name
            raise ConfigError(
                f"lineage {state.lineage} has trained with evaluate.group={before}, and the configuration has "
                f"evaluate.group={group}: rows that were trained on would be in the holdout. Restore the setting, "
                f"train all spans again with the new one (millrace backfill --from {first} --to {last}), or start a "
                "new lineage: --set lineage=NAME"
            )
    evaluate = config.evaluate.model_copy(update={"group": group})
    return config.model_copy(update={"evaluate": evaluate})


LARGEST_SHARE = 0.1  # development rows are at most this share of the training rows
CALIBRATION_ROWS = 500  # in a run: a slope that is known to about a tenth, and little of a large span
CALIBRATION_SHARE = 0.05  # at most, as a small span needs its rows; the next spans of the lineage add theirs
MOST_CALIBRATION_ROWS = 5000  # in a lineage; with more, a slope changes by less than 0.03


def exclude_development_rows(rule: HoldoutRule, config: Config, rows: Sequence[RowsRef]) -> HoldoutRule:
    """Return the holdout rule without the development rows of a run over `rows` on its training side.

    Development rows are the groups with the next hashes after the holdout's, so equal texts stay in one split.
    """
    training = max(1.0, sum(ref.rows for ref in rows) * (1 - rule.share))
    heads, best = (config.heads.classification, *config.heads.of_labels.values()), config.train.keep_best
    share = 0.0 if best is None else min(LARGEST_SHARE, best.rows / training)
    if any(head is not None and head.refit_rows is not None for head in heads):
        share = max(share, min(CALIBRATION_SHARE, CALIBRATION_ROWS / training))
    return rule.model_copy(update={"share": rule.share + share * (1 - rule.share)}) if share else rule


def spared_groups(rule: HoldoutRule, wider: HoldoutRule, rows: Iterable[RowsRef]) -> dict[str, GroupRange]:
    """Return the development groups of a run over `rows`, by span; `wider` is the rule without them. Empty: none."""
    if wider == rule:
        return {}
    return {ref.span.name: GroupRange(start=rule.share, end=wider.share) for ref in rows}


def in_range(rows: pa.Table, rule: HoldoutRule, groups: GroupRange) -> np.ndarray:
    """Return bool (rows,): True if the row's group is in the range; `rule` says how groups are hashed."""
    start, end = (rule.model_copy(update={"share": share}) for share in (groups.start, groups.end))
    found: np.ndarray = trainable(rows, start) & ~trainable(rows, end)
    return found


def calibration_rows(
    store: Store,
    refs: Sequence[RowsRef],
    rule: HoldoutRule,
    spared: Mapping[str, GroupRange],
    columns: Sequence[str],
    known: Callable[[pa.Table], np.ndarray],
) -> pa.Table | None:
    """Return the newest usable development rows of a lineage, oldest first; None if there are none.

    A group that is in several spans counts only if each of them spared it: no step has seen its texts.

    Args:
        refs: spans of the lineage, oldest first.
        spared: development groups by span; a span that is not in it spared none.
        known: returns the usable rows of a table, bool (rows,).
    """
    mine = [ref for ref in refs if ref.span.name in spared]
    if not mine:
        return None
    ranges = [spared[ref.span.name] for ref in mine]
    common = GroupRange(start=max(rule.share, *(each.start for each in ranges)), end=min(each.end for each in ranges))
    tables, missing = [], MOST_CALIBRATION_ROWS
    for training, _ in read_sides(store, mine, rule, columns, newest_first=True):
        found = training.filter(pa.array(in_range(training, rule, common)))
        found = found.filter(pa.array(known(found)))
        tables.append(found.slice(max(0, found.num_rows - missing)))
        missing -= tables[-1].num_rows
        if not missing:
            break
    rows = pa.concat_tables(reversed(tables), promote_options="permissive") if tables else None
    return rows if rows is not None and rows.num_rows else None
