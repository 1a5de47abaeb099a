"""The command `serve`."""

from typing import Annotated

import typer

from flows.cli.terminal.options import HERE, Workspace, existing


def serve(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: any free port.")] = 4280,
    workspace: Workspace = HERE,
) -> None:
    """Serve web pages on this machine: a search over the releases, what changed, the history. Changes nothing."""
    from flows.cli.serving import server

    server.serve(existing(workspace), port)
