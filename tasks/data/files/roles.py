"""The likely roles of a source's columns, by their names and values.

Words by which an export says that an item is on sale, or gone, make a column a feed's `deleted`.
"""

import datetime as dt
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from tasks.data.files.facts import FALSE_WORDS, TRUE_WORDS, ColumnFacts, Shape
from tasks.data.files.names import TIME, named_like, score
from tasks.data.files.times import is_epoch

_LIVE = (
    "active activated live published publish publié publiée enabled online visible listed approved current aktiv "
    "veröffentlicht actif active activo activa publicado publicada attivo attiva actief"
)
_GONE = (
    "deleted delete removed archived archive inactive deactivated disabled hidden invisible unpublished unlisted draft "
    "trash trashed discontinued retired expired obsolete offline delisted terminated ended withdrawn private gelöscht "
    "archiviert inaktiv entwurf ausgelaufen supprimé supprimée archivé archivée inactif brouillon eliminado eliminada "
    "archivado archivada inactivo inactiva borrador eliminato inattivo bozza"
)
LIVE_WORDS = frozenset(_LIVE.split())
GONE_WORDS = frozenset(_GONE.split())
_STATES = frozenset(["status", "state", "lifecycle", "visibility", "zustand", "statut", "estado", "stato"])


class Flags(NamedTuple):
    """The words of a column, in lower case and sorted, by their meaning."""

    gone: tuple[str, ...]
    live: tuple[str, ...]
    others: tuple[str, ...]  # words that mean neither, as far as is known

    @property
    def options(self) -> str:
        """The options that read these words; a word of unknown meaning is taken as live."""
        words = (("--true", self.gone), ("--false", (*self.live, *self.others)))
        return " ".join(shlex.join([option, ",".join(said)]) for option, said in words if said)

    @property
    def opposite(self) -> "Flags":
        """The same words for a column that is true for a live item."""
        return Flags(tuple(sorted((*self.live, *self.others))), self.gone, ())


def flags_of(words: Iterable[str], gone: Iterable[str] = (), live: Iterable[str] = ()) -> Flags:
    """Return the words of a column that says if an item is deleted, by their meaning.

    Args:
        gone, live: further words, in lower case.
    """
    gone, live = {*gone, *GONE_WORDS, *TRUE_WORDS}, {*live, *LIVE_WORDS, *FALSE_WORDS}
    plain = sorted({word.strip().casefold() for word in words} - {""})
    return Flags(
        tuple(word for word in plain if word in gone),
        tuple(word for word in plain if word in live - gone),
        tuple(word for word in plain if word not in gone | live),
    )


def is_named_as_state(column: ColumnFacts) -> bool:
    """Return True if a column has the name of a status, such as `post_status`."""
    return bool(_STATES & {*re.split(r"[^\w]+|_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column.name).casefold())})


def column_flags(column: ColumnFacts) -> Flags | None:
    """Return the flags of a column that says of each item if it is gone; None for another column.

    Its values are words for both, or it has the name of a status and a word for one of them.
    """
    words = {each.value.strip().casefold() for each in column.common}
    if column.type != "text" or column.distinct != len(column.common) or words <= TRUE_WORDS | FALSE_WORDS:
        return None
    found = flags_of(words)
    named = is_named_as_state(column)
    if found.gone and (named or (found.live and not found.others)):
        return found
    return found if named and found.live and not found.others else None


_ROWS = (TIME, "item_id", "id", "label", "query", "item")
_FEED = (TIME, "id", "deleted", "text")
_TIMES = (Shape.time, Shape.day_first, Shape.month_first, Shape.short_year)
_MOST_GRADES = 100  # distinct labels
_LEAST_TEXT = 5  # characters, the median of a text that no name gives a role


def likely_roles(
    columns: Sequence[ColumnFacts], feed: bool, known: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Return the column of each role, a name of --map or `time`, without roles that no column fits.

    Args:
        known: roles that are decided.
        feed: True for the roles of an item feed, False for rows.
    """
    roles = dict(known)
    for role in (each for each in (_FEED if feed else _ROWS) if each not in known):
        words = role if role != "id" or not feed else "item_id"
        free = [each for each in columns if each.common and each.name not in roles.values() and _FITS[role](each)]
        named = {each.name: max(score(each.name, words), feed * score(each.name, role)) for each in free}
        best = max(free, key=lambda each: named[each.name], default=None)
        if best and named[best.name]:
            roles[role] = best.name
        elif role == TIME and (times := [each for each in free if each.suggests in _TIMES] or free):
            roles |= {role: times[0].name} if len(times) == 1 else {}
        elif role == "deleted" and (status := _status(columns)):
            roles[role] = status
    if not feed:
        _by_ids(columns, roles)
    _by_text(columns, roles, ("text",) if feed else ("query", "item"))
    return roles


def _is_text(column: ColumnFacts) -> bool:
    return column.type == "text" and column.suggests is None


def _is_value(column: ColumnFacts) -> bool:
    return column.type != "text" or column.suggests in (Shape.decimal_comma, Shape.word)


def _is_time(column: ColumnFacts) -> bool:
    now = dt.datetime.now(dt.UTC)
    epoch = bool(column.common) and all(is_epoch(each.value, now) for each in column.common)
    return epoch or column.suggests in _TIMES


_FITS: Mapping[str, Callable[[ColumnFacts], bool]] = {
    TIME: _is_time,
    "item_id": lambda column: column.suggests in (None, Shape.number),
    "id": lambda column: column.suggests in (None, Shape.number),
    "label": lambda column: _is_value(column) and column.distinct <= _MOST_GRADES,
    "query": lambda column: _is_text(column) and not column.ids,
    "item": lambda column: _is_text(column) and not column.ids,
    "deleted": lambda column: column.type == "boolean" or column.suggests is Shape.word or column.distinct <= 2,
    "text": lambda column: _is_text(column) and not column.ids,
}


def _status(columns: Sequence[ColumnFacts]) -> str | None:
    """Return the column whose words all say if an item is on sale or gone; None: no column, or several."""
    found = [each.name for each in columns if (flags := column_flags(each)) and not flags.others]
    return found[0] if len(found) == 1 else None


def _by_ids(columns: Sequence[ColumnFacts], roles: dict[str, str]) -> None:
    """Give `item_id` to the one column of numbers or ids with the name of an item, if no column has its text."""
    if "item" in roles or "item_id" in roles:
        return
    ids = [
        each.name
        for each in columns
        if each.name not in roles.values() and named_like(each.name, "item") and (each.ids or not _is_text(each))
    ]
    if len(ids) == 1:
        roles["item_id"] = ids[0]


def _by_text(columns: Sequence[ColumnFacts], roles: dict[str, str], wanted: Sequence[str]) -> None:
    """Give the roles of texts that no name gave to the longest texts; the shorter of two is the query."""
    missing = [role for role in wanted if role not in roles]
    if missing == ["item"] and "item_id" in roles:
        return  # a log of ids, whose texts an item feed has
    free = [
        each
        for each in columns
        if each.name not in roles.values() and _FITS["item"](each) and each.lengths and each.lengths[1] >= _LEAST_TEXT
    ]
    longest = sorted(free, key=lambda each: -(each.lengths or (0, 0, 0))[1])[: len(missing)]
    for role, column in zip(missing, reversed(longest) if len(longest) > 1 else longest, strict=False):
        roles[role] = column.name
