"""`millrace up`, `down` and `serve`: the Prefect server in the background, and the pages of a workspace.

Alone, so that they load no planning of runs.
"""

import shlex
from typing import Annotated

import typer

from flows.cli.serving import background_pages, server
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note, say
from infra import prefect_server
from infra.prefect_server import Server
from infra.store.base import Store


def show_server(output: Server) -> None:
    """Print the address of its pages, and the file with their password."""
    how = "started" if output.started else "runs already"
    whose = f"process {output.pid}, {output.home}/server.log" if output.pid is not None else "PREFECT_API_URL"
    say(f"Prefect UI: {output.ui_url} ({how}; {whose})")
    if output.password_file is not None:
        say(f"Its pages ask for a password: cat {shlex.quote(output.password_file)}")


@command(show_server)
def up() -> Server:
    """Start the Prefect server in the background, or find the running one."""
    return prefect_server.up(prefect_server.state_home(), note)


@command()
def down() -> None:
    """Stop the Prefect server that `up` or `run` started from this directory, and the demo's pages."""
    home = prefect_server.state_home()
    if background_pages.down(home):
        say("pages stopped")
    say("Prefect server stopped" if prefect_server.down(home) else f"no Prefect server of {home} is running")


@command()
def serve(
    store: Store,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0: any free port.")] = 4280,
) -> None:
    """Serve web pages on this machine: search, changes of releases, history. The workspace is only read."""
    server.serve(store, port)
