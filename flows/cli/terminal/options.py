"""What the commands share: their common options, and how their output leaves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.store.base import Store
from infra.store.factory import open_store
from tasks.foundation.errors import ConfigError

if TYPE_CHECKING:
    from tasks.foundation.records import Record

Workspace = Annotated[
    str,
    typer.Option(
        envvar="MILLRACE_WORKSPACE", help="Where spans, runs and releases are stored: a folder or s3://bucket/prefix."
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A YAML file with settings that replace those of base.yaml.")
]
Settings = Annotated[list[str] | None, typer.Option("--set", help="One setting over both, as in train.epochs=2.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts; its keys are in docs/json.md.")]
HERE = "./workspace"


def existing(workspace: str) -> Store:
    """Return the store of a workspace that has spans; a mistyped name must not look like an empty workspace."""
    store = open_store(workspace)
    if not store.list("spans"):
        raise ConfigError(
            f"{store.uri} holds no span, so it is no workspace yet; check --workspace, or begin with: millrace ingest"
        )
    return store


def tell(output: Record, show: Callable[[Any], None], as_json: bool) -> None:
    """Print the output of a command: for people, or as JSON."""
    if as_json:
        typer.echo(output.to_json(), nl=False)
    else:
        show(output)
