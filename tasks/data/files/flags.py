"""Words by which an export says that an item is on sale, or gone: a column of them is a feed's `deleted`."""

import re
import shlex
from collections.abc import Iterable
from typing import NamedTuple

from tasks.data.files.facts import ColumnFacts
from tasks.data.files.shapes import FALSE_WORDS, TRUE_WORDS

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
_NAMES = frozenset(["status", "state", "lifecycle", "visibility", "zustand", "statut", "estado", "stato"])


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
    return bool(_NAMES & {*re.split(r"[^\w]+|_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", column.name).casefold())})


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
