"""Likely mistakes in labels and ids, which `look` and `ingest` name before a run meets them.

Alone, since a run has no use for them.
"""

from configs.schema.config import Config
from tasks.data.files.facts import FALSE_WORDS, ColumnFacts, Problem
from tasks.data.join import LIKELY_MISTAKE, Join
from tasks.data.label_columns import label_columns
from tasks.data.rows import LABEL

_ZEROS = FALSE_WORDS | {"0", "0.0", "0,0", "false"}


def unread_label(config: Config, column: ColumnFacts) -> Problem | None:
    """Return the problem of a label that no setting of the configuration reads; None: a setting reads it."""
    if config.heads.classification is not None or LABEL in label_columns(config).values():
        return None
    zeros = _zeros(column)
    some = f"it is 0 in {zeros:.0%} of the rows, which are trained as hits too" if zeros else "every row is a pair"
    return Problem(
        kind="unread",
        column=column.name,
        text=f"no head reads the label {column.name!r} with this configuration: {some}. Set heads.classification, and "
        "heads.contrastive.positives_only to learn good pairs alone, as configs/demo.yaml does; or leave label out",
    )


def zeros_as_hits(column: ColumnFacts) -> Problem | None:
    """Return the problem of a label with zeros that settings, unknown here, may not read; None without zeros."""
    if not (zeros := _zeros(column)):
        return None
    text = (
        f"the label {column.name!r} is 0 in {zeros:.0%} of the rows, which are trained as hits unless a head reads it; "
        "millrace run --dry-run says if one does"
    )
    return Problem(kind="unread", column=column.name, text=text)


def _zeros(column: ColumnFacts) -> float:
    return sum(each.share for each in column.common if each.value.casefold() in _ZEROS)


def join_problem(join: Join, column: str, ids_alone: bool) -> Problem | None:
    """Return the likely mistake in the ids of a log; None if nearly all rows are about items of the feed.

    Args:
        column: the source's column of the ids.
        ids_alone: the rows have no texts, so that rows of unknown items are set apart.
    """
    if join.unknown_share <= LIKELY_MISTAKE or not (ids_alone or join.near):
        return None
    effect = "validate sets rows of unknown items apart" if ids_alone else "an item would be in releases under two ids"
    way_out = "" if join.near else "; ingest the missing items, or correct the ids in one of the exports"
    text = f"column {column!r}, mapped as item_id: {join.sentence}; {effect}{way_out}"
    return Problem(kind="join", column=column, text=text)
