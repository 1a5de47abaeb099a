"""Publications: what became of a release at each search service, what was measured there, and the way out."""

import shlex
from collections.abc import Sequence

from flows.presentation.model import Cell, Command, Section, Table, table
from flows.presentation.wording import NONE, count, moment, number, own_settings, plural, sentence
from tasks.contracts.jobs import stage_prefix
from tasks.contracts.runs import Release
from tasks.contracts.stages import Chore
from tasks.foundation.errors import POLICIES
from tasks.targets.publications import Publication


def section(of: Sequence[Publication], release: Release) -> tuple[Section, ...]:
    """Return what each target serves, and what was measured of this release there; nothing without targets."""
    if not of:
        return ()
    serving = sum(_serves(each, release) for each in of)
    what = f"{serving} of {plural(len(of), 'target')} {'serves' if serving == 1 else 'serve'} release {release.number}."
    rows = [(_named(each), _state(each, release), _serving(each)) for each in of]
    return (
        Section(
            "Publications",
            (what,),
            id="publications",
            tables=(table("", ("target", "publication", "serves"), rows), *_measured(of)),
            files=tuple((f"publication to {each.target.name}", _folder(each)) for each in of if each.attempts),
        ),
    )


def failures(of: Sequence[Publication], workspace: str, release: Release) -> tuple[Section, ...]:
    """Return a box for each target whose last publication failed: its message, what it means, and the way out."""
    command = ("millrace publish", "--workspace", shlex.quote(workspace), *own_settings(workspace, release.run_key))
    go_on = Command("Then publish the current release again; what the target has of it stays:", (" ".join(command),))
    made = []
    for each in of:
        if each.last is not None and each.last.failure is not None:
            meaning = sentence(POLICIES[each.last.failure].meaning)
            made.append(
                Section(
                    f"Publication to {each.target.name} failed with {each.last.failure}",
                    (f"{meaning} {_still(each)}",),
                    mood="bad",
                    quote=each.last.message,
                    commands=(go_on,),
                )
            )
    return tuple(made)


def _measured(of: Sequence[Publication]) -> tuple[Table, ...]:
    rows = [
        (
            _named(each),
            Cell(each.measured.table, code=True),
            count(each.measured.vectors),
            number(each.measured.recall),
            f"{each.measured.query_ms:.1f}",
            NONE if each.measured.queries is None else count(each.measured.queries),
        )
        for each in of
        if each.measured is not None
    ]
    caption = "The index compared with exact search, then the same queries once more, now warm"
    columns = ("target", "table", ">rows", ">recall@10", ">median ms", ">queries")
    return (table(caption, columns, rows),) if rows else ()


def _named(of: Publication) -> str:
    return f"{of.target.name} ({of.target.kind})"


def _serves(of: Publication, release: Release) -> bool:
    return of.now is not None and of.now.release == release.number


def _state(of: Publication, release: Release) -> Cell:
    """Return how the last publication ended, as far as it has."""
    if of.last is None:
        return Cell("not yet", "○", "quiet")
    if of.last.failure is not None:
        return Cell(f"failed: {of.last.failure}", "✕", "bad")
    if of.last.ended_at is None:
        return Cell("no end on record", "▶", "going")
    return Cell("served", "✓", "good") if _serves(of, release) else Cell("not served now", "○", "quiet")


def _serving(of: Publication) -> str:
    return f"release {of.now.release}, found {moment(of.now.at)}" if of.now is not None else "no release yet"


def _still(of: Publication) -> str:
    return f"It still serves release {of.now.release}." if of.now is not None else "It serves no release yet."


def _folder(of: Publication) -> str:
    return stage_prefix(of.attempts[-1].run_key, Chore.publish)
