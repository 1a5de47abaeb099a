"""Development rows: training rows of a run that no step uses, chosen by the hash of their group.

They choose the step of `train.keep_best`, and fix slope, shift and threshold of solved heads. A head that is judged by
rows of the encoder's training is too sure of itself, as the encoder has pulled their vectors apart.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.checkpoints import GroupRange, HoldoutRule
from tasks.contracts.references import RowsRef
from tasks.data.holdout import read_sides, trainable

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
