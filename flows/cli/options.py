"""What the commands share: their common options, and how their output leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.store import Store, open_store
from tasks.errors import ConfigError

if TYPE_CHECKING:
    from tasks.records import Record

Workspace = Annotated[str, typer.Option(envvar="MILLRACE_WORKSPACE", help="Where spans, runs and releases lie.")]
Place = Annotated[Path | None, typer.Option(help="A YAML file of settings over those of base.yaml.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="One setting, as train.epochs=2.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts; its keys are in docs/cli.md.")]
HERE = "./workspace"


def existing(workspace: str) -> Store:
    """The store of a workspace that holds something; a typo must not look like an empty one."""
    store = open_store(workspace)
    if not store.list("spans"):
        raise ConfigError(
            f"{store.uri} holds no span, so it is no workspace yet; check --workspace, or begin with: millrace ingest"
        )
    return store


def tell(output: Record, show: Callable[[Any], None], as_json: bool) -> None:
    """Print what came of a command: for people, or as JSON."""
    if as_json:
        typer.echo(output.to_json(), nl=False)
    else:
        show(output)


def write(path: Path, data: bytes) -> None:
    """Write a file that was asked for, and say so."""
    from flows.cli import reporting

    reporting.write_file(path, data)
    typer.echo(f"wrote {path}", err=True)
