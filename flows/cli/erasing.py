"""`millrace erase`: an item, or the rows of a person, gone from the workspace and from the publish targets for good."""

from typing import Annotated

import typer

import tasks.erase.erase
from flows.cli.serving.search_worker import answered_once
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.presentation.model import Parts, table
from infra.store.base import Store
from tasks.contracts.erasing import ErasedTables, EraseItem
from tasks.contracts.workspace import CERTIFICATE
from tasks.data.rows import ITEM_ID
from tasks.erase.records import Certificate
from tasks.foundation.errors import ConfigError
from tasks.foundation.nouns import plural


def erase_page(done: Certificate) -> Parts:
    """Yield the changed kinds of file, the tables, the models that have learnt it, and the places beyond it."""
    if rows := [(k.kind, str(k.files), str(k.changed), str(k.rows), k.part) for k in done.kinds if k.changed]:
        yield table("", ("kind of file", ">looked at", ">changed", ">rows", "~how"), rows)
    verb, has = ("", "had") if done.erased else ("would be ", "has")
    files, gone = sum(kind.changed for kind in done.kinds), sum(kind.rows for kind in done.kinds)
    yield f"{plural(files, 'file')} {verb}changed, {plural(gone, 'row')} gone"
    for span in done.spans:
        yield f"span {span.name}: v{span.version} is without the rows"
    for each in done.targets:
        yield f"target {each.target} ({each.kind}): {each.table} {has} it{', and serves' if each.serving else ''}"
    if done.copies:
        yield f"kept copies on this machine: {done.copies}"
    for model in done.trained:
        of = f", release {', '.join(map(str, model.releases))}" if model.releases else ""
        yield f"trained on it: {model.version}{of}: {', '.join(model.spans) or 'its tokenizer'}"
    if done.backfill is not None:
        yield f"To train these spans without it: {done.backfill}"
    yield "Beyond this command:"
    yield from (f"- {each}" for each in done.beyond)
    if done.erased:
        yield f"Certificate: {CERTIFICATE.within(key=done.sha256[:16])}; no ingest takes it in again"


@command(erase_page)
def erase(
    store: Store,
    item: Annotated[str | None, typer.Option(help="Erase the item with this id, its rows, texts and vectors.")] = None,
    where: Annotated[
        str | None, typer.Option(help="Erase the rows with this value of a column, as in user_id=4711.")
    ] = None,
    dry_run: Annotated[bool, typer.Option(help="Only list the changes.", show_default=False)] = False,
) -> Certificate:
    """Erase an item, or a person's rows, from spans, releases, runs, caches and targets, for good.

    The same command goes on after a kill. It names the models that have learnt the rows.
    """
    column, value = _asked(item, where)

    def ask(asked: EraseItem) -> ErasedTables:
        return ErasedTables.model_validate_json(answered_once("export.erase_item", store, asked))

    return tasks.erase.erase.erase(store, column, value, dry_run, note, ask)


def _asked(item: str | None, where: str | None) -> tuple[str, str]:
    """Return the column and its value. Raises ConfigError: none of both options, both, or no value."""
    if (item is None) == (where is None):
        raise ConfigError("give one of --item ID and --where COLUMN=VALUE")
    column, equals, value = (ITEM_ID, "=", item) if item is not None else str(where).partition("=")
    if not (column and equals and value):
        raise ConfigError(f"--where {where}: write a column and its value, as in --where user_id=4711")
    return column, value
