"""Release: its content, how to load it, and how to go back."""

import shlex

from flows.presentation import publications
from flows.presentation.changes import changes_section
from flows.presentation.model import Cell, Command, Section, Table, facts, table
from flows.presentation.stages.evaluate import by_human, gates
from flows.presentation.stages.facts import StageFacts
from flows.presentation.wording import AMONG_ALL, ON_HOLDOUT, count, moment, number
from tasks.contracts.evaluation import refusals, refused
from tasks.contracts.outcomes import ReleaseOutcome
from tasks.contracts.runs import Release
from tasks.contracts.workspace import RELEASE
from tasks.foundation.nouns import plural


def section(of: StageFacts) -> Section:
    """Return the release with the commands for it; of a model that was exported only, the export alone."""
    export, release = of.outcome, of.release
    probed = _probed(export) if isinstance(export, ReleaseOutcome) else ()
    searched = _searched(of, export) if isinstance(export, ReleaseOutcome) else ()
    exported = _exported(export) if isinstance(export, ReleaseOutcome) else ()
    judged = gates(of.release_verdicts)
    if release is None:
        title = "rejected" if refused(of.release_verdicts) else "the model is exported, not released"
        return Section(
            title,
            refusals(of.release_verdicts),
            tables=(*judged, *searched, facts(probed), *exported),
            files=(("model", export.model),),
        )
    published = publications.publications_section(of.publications, release)
    unpublished = publications.failed_publications(of.publications, of.workspace, release)
    rows: list[tuple[str, str | Cell]] = [
        ("release", str(release.number)),
        ("model", Cell(release.model.version, code=True)),
        *([("model of the items", Cell(release.model.items.version, code=True))] if release.model.items else []),
        ("vectors", count(release.vectors)),
        ("items without a usable vector", count(release.bad)),
        ("previous release", "none" if release.previous is None else str(release.previous)),
        ("made at", f"{moment(release.created_at)} UTC"),
        *((f"{name} {ON_HOLDOUT}", number(value)) for name, value in release.metrics.items()),
        *probed,
    ]
    return Section(
        f"number {release.number}",
        (
            _standing(release.number, of.serving),
            *(f"{box.title}, see below." for box in unpublished),
            *by_human(release.overrides),
        ),
        tables=(facts(rows), *exported, *searched, *judged),
        commands=(*_loading(of, release), *_rollback(of.workspace, release)),
        files=(
            ("release", RELEASE.key(number=release.number)),
            ("model", release.model_prefix),
            ("vectors", release.vectors_prefix),
            *(each for section in published for each in section.files),
        ),
        parts=(
            *unpublished,
            *published,
            *((changes_section(of.changes),) if of.changes else ()),
        ),
    )


def _standing(number: int, serving: int | None) -> str:
    if serving == number:
        return "It is the current release: readers of releases/CURRENT get this model and these vectors."
    return f"Release {serving or '(none)'} is current: a later one, or one that a rollback made current."


def _probed(export: ReleaseOutcome) -> tuple[tuple[str, str], ...]:
    smallest = f"at least {export.min_cosine:.6f} over {plural(export.probed, 'item')}"
    items = ("cosine of exported and released vectors", smallest)
    if export.min_query_cosine is None:
        return (items,)
    return (items, ("the same of queries", f"at least {export.min_query_cosine:.6f}"))


def _exported(export: ReleaseOutcome) -> tuple[Table, ...]:
    """Return the exports with their measurements, each beside its refusal."""
    rows = [
        (
            each.kind,
            "in the model's folder" if each.refused is None else f"refused: {each.refused}",
            "" if each.bytes is None else f"{each.bytes / 1e6:.1f}",
            "" if each.min_cosine is None else f"{each.min_cosine:.6f}",
            "" if each.recall_at_10 is None else number(each.recall_at_10),
            "" if each.p50_ms is None else f"{each.p50_ms:.2f}",
            "" if each.p99_ms is None else f"{each.p99_ms:.2f}",
        )
        for each in export.exports
    ]
    columns = ("export", "~result", ">MB", ">least cosine", ">recall@10", ">p50 ms", ">p99 ms")
    caption = "Exports, each opened by its runtime; milliseconds of one query on one core"
    return (table(caption, columns, rows),) if rows else ()


def _searched(of: StageFacts, export: ReleaseOutcome) -> tuple[Table, ...]:
    """Return the metrics of the search through all vectors, unless the changes section shows them."""
    if not export.metrics or export.changes:
        return ()
    rows = [(name, number(value)) for name, value in export.metrics.items()]
    queries = plural(export.queries, "holdout query", "holdout queries")
    caption = f"Metrics {AMONG_ALL}: {queries} searched with the exported model"
    return (table(caption, ("metric", ">value"), rows),)


def _loading(of: StageFacts, release: Release) -> tuple[Command, ...]:
    """Return the commands that load this model; a model with feature interaction has modules of its own."""
    folder, copied = f"{of.workspace}/{release.model_prefix}", ()
    if "://" in of.workspace:
        local = release.model.version
        copy = f"aws s3 cp --recursive {shlex.quote(folder)} {shlex.quote(local)}"
        folder, copied = local, (Command("Copy the model:", (copy,)),)
    plain = of.plan is not None and of.plan.config.model.interaction.kind == "none"
    lines = (
        "from sentence_transformers import SentenceTransformer",
        "",
        f"folder = {folder!r}",
        f"model = SentenceTransformer(folder{'' if plain else ', trust_remote_code=True'})",
    )
    return (*copied, Command("Load it in Python:", lines))


def _rollback(workspace: str, release: Release) -> tuple[Command, ...]:
    """Return the commands for a rollback of model and vectors together; none for the first release."""
    if release.previous is None:
        return ()
    command = f"millrace rollback --workspace {shlex.quote(workspace)} --to"
    return (
        Command(
            f"Go back to release {release.previous}, model and vectors at once:", (f"{command} {release.previous}",)
        ),
        Command(f"And to release {release.number} again:", (f"{command} {release.number}",)),
    )
