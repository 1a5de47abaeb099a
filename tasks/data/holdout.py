"""The two sides of the validated rows: those that a lineage trains on, and its holdout.

A hash of its group decides the side of a row; after a change of the share, rows between the shares are on neither side.
Nor are rows that validate found to be too like a row of the other side: they are listed in the folder `RowsRef.sides`.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import open_file, open_manifest
from tasks.contracts.checkpoints import CheckpointState, HoldoutRule
from tasks.contracts.references import RowsRef
from tasks.data.rows import ROW_ID, below_share, group_columns, group_hashes, read_rows
from tasks.foundation.errors import ConfigError

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

SIDES_KIND = "sides"
LEFT_OUT = "left_out.parquet"  # ROW_ID and HELD of the rows that are on neither side, and the row that each is like
HELD = "held"  # bool: the side that a row would be on


class Sides(NamedTuple):
    """Rows by their side of the holdout."""

    training: pa.Table
    held: pa.Table


def held_out(rows: pa.Table, rule: HoldoutRule) -> np.ndarray:
    """Return whether each row belongs to the holdout, bool (rows,)."""
    return below_share(group_hashes(rows, rule.group), rule.measured_share)


def trainable(rows: pa.Table, rule: HoldoutRule) -> np.ndarray:
    """Return whether each row may be trained on, bool (rows,); no row of the holdout may."""
    return ~below_share(group_hashes(rows, rule.group), rule.share)


def split_holdout(rows: pa.Table, rule: HoldoutRule, left_out: pa.Array | None = None) -> Sides:
    """Return the rows by side, without those whose ids are in `left_out`."""
    if left_out is not None and len(left_out):
        rows = rows.filter(pc.invert(pc.is_in(rows[ROW_ID], value_set=left_out)))
    hashes = group_hashes(rows, rule.group)
    training, held = ~below_share(hashes, rule.share), below_share(hashes, rule.measured_share)
    return Sides(rows.filter(pa.array(training)), rows.filter(pa.array(held)))


def read_sides(
    store: Store, refs: Sequence[RowsRef], rule: HoldoutRule, columns: Sequence[str], newest_first: bool = False
) -> Iterator[Sides]:
    """Yield the rows of spans by side, some thousand at a time; arguments, order and errors are those of `read_rows`.

    Raises:
        MissingFolder, CorruptFolder: the rows of a span, or what is known about their sides, are gone or damaged.
    """
    wanted = [*columns, *group_columns(rule.group)]
    for ref in reversed(refs) if newest_first else refs:
        left_out = left_out_ids(store, ref)
        for rows in read_rows(store, [ref], wanted, newest_first):
            yield split_holdout(rows, rule, left_out)


def left_out_ids(store: Store, ref: RowsRef) -> pa.Array:
    """Return the ids of the rows of a span that are on neither side, string."""
    if ref.sides is None:
        return pa.array([], pa.string())
    file = open_file(store, ref.sides, open_manifest(store, ref.sides, SIDES_KIND), LEFT_OUT)
    return pq.read_table(file, columns=[ROW_ID])[ROW_ID].combine_chunks()


def with_rule_of(config: Config, state: CheckpointState | None) -> Config:
    """Return the configuration with the group that decides what is held out after this state of a lineage.

    Args:
        state: that training would continue from; None, or one without spans, leaves the choice to the configuration.

    Raises:
        ConfigError: the configuration has another group; says the ways out.
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
