"""Publications of a release: their outcome and measurements at each search service, and the repair of failures."""

from collections.abc import Sequence

from configs.schema.stages import narrowing
from flows.presentation.model import Cell, Command, Section, Table, table
from flows.presentation.wording import BY_NARROW, NONE, OF_INDEX, WITHOUT_INDEX, count, moment, number, with_settings
from tasks.contracts.runs import Release
from tasks.contracts.workspace import MEASURED
from tasks.foundation.nouns import plural
from tasks.runs.served_targets import Publication


def publications_section(of: Sequence[Publication], release: Release) -> tuple[Section, ...]:
    """Return the release that each target serves, and the measurements of this one; empty without targets."""
    if not of:
        return ()
    serving = sum(_serves(each, release) for each in of)
    what = f"{serving} of {plural(len(of), 'target')} {'serves' if serving == 1 else 'serve'} release {release.number}."
    rows = [(_named(each), _publication_state(each, release), *_serving(each)) for each in of]
    return (
        Section(
            "Publications",
            (what,),
            id="publications",
            tables=(table("", ("target", "publication", "serves", "found at"), rows), *_measured(of)),
            files=tuple((f"publication to {each.target.name}", _folder(each)) for each in of if each.attempts),
        ),
    )


def failed_publications(of: Sequence[Publication], workspace: str, release: Release) -> tuple[Section, ...]:
    """Return a box of the targets whose last publication failed, with the repair; empty if none failed."""
    failed = [each for each in of if each.failure is not None]
    if not failed:
        return ()
    does = "Repair what is named below, then publish the current release again; what a target has of it stays:"
    command = with_settings("millrace publish", workspace, release.run_key)
    return (
        Section(
            f"Release {release.number} did not reach {', '.join(each.target.name for each in failed)}",
            mood="bad",
            commands=(Command(does, tuple(command.splitlines())),),
            parts=tuple(_failure(each) for each in failed),
        ),
    )


def _failure(of: Publication) -> Section:
    serves = f"still serves release {of.now.release}" if of.now is not None else "serves no release yet"
    tried = plural(len(of.attempts), "attempt")
    return Section(
        f"{_named(of)} failed with {of.failure}", (f"It {serves}, after {tried}.",), quote=of.attempts[-1].message
    )


def _measured(of: Sequence[Publication]) -> tuple[Table, ...]:
    rows = [
        (
            _named(each),
            number(each.measured.recall),
            f"{each.measured.query_ms:.1f}",
            count(each.measured.queries),
            count(each.measured.vectors),
            Cell(each.measured.table, code=True),
            Cell(each.measured.index, code=True) if each.measured.index is not None else NONE,
        )
        for each in of
        if each.measured is not None
    ]
    caption = f"recall@10 {OF_INDEX}, or {WITHOUT_INDEX}; then the same queries once more, now warm"
    columns = ("target", ">recall@10", ">median ms", ">queries", ">rows", "table", "index")
    return (table(caption, columns, rows), *_narrow(of)) if rows else ()


def _narrow(of: Sequence[Publication]) -> tuple[Table, ...]:
    """Return the recall of targets with a form or a width; empty without such a target."""
    rows = [
        (
            _named(each),
            narrowing(each.measured.target),
            number(found.recall_at_10),
            number(found.whole),
            f"{found.loss:.4f} ({found.loss_low:.4f} to {found.loss_high:.4f})",
            count(found.queries),
        )
        for each in of
        if each.measured is not None and (found := each.measured.narrow) is not None
    ]
    caption = f"recall@10 {BY_NARROW}, beside an exact search of the release's; the loss with its interval of 95 %"
    columns = ("target", "vectors", ">recall@10", ">by the release's", ">loss", ">queries")
    return (table(caption, columns, rows),) if rows else ()


def _named(of: Publication) -> str:
    return f"{of.target.name} ({of.target.kind})"


def _serves(of: Publication, release: Release) -> bool:
    return of.now is not None and of.now.release == release.number


def _publication_state(of: Publication, release: Release) -> Cell:
    """Return how the last publication ended, as far as it has."""
    if not of.attempts:
        return Cell("not yet", "○", "quiet")
    if of.failure is not None:
        return Cell(f"failed: {of.failure}", "✕", "bad")
    if of.attempts[-1].ended_at is None:
        return Cell("no end on record", "▶", "going")
    return Cell("served", "✓", "good") if _serves(of, release) else Cell("not served now", "○", "quiet")


def _serving(of: Publication) -> tuple[str, str]:
    """Return the release that a target serves, and when that was found."""
    return (f"release {of.now.release}", moment(of.now.at)) if of.now is not None else ("no release yet", NONE)


def _folder(of: Publication) -> str:
    return MEASURED.within(run=of.attempts[-1].run_key)
