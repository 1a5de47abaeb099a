"""`millrace up`, `down` and `serve`: the Prefect server in the background; a workspace's pages and online encoder.

Alone, so that they load no planning of runs.
"""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from flows.cli.serving import background_pages, server
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note, say
from flows.presentation.model import Parts
from infra import prefect_server
from infra.prefect_server import Server
from infra.store.base import Store
from tasks.foundation.errors import ConfigError


def up_page(output: Server) -> Parts:
    """Yield the address of its pages, and the file with their password."""
    how = "started" if output.started else "runs already"
    whose = f"process {output.pid}, {output.home}/server.log" if output.pid is not None else "PREFECT_API_URL"
    yield f"Prefect UI: {output.ui_url} ({how}; {whose})"
    if output.password_file is not None:
        yield f"Its pages ask for a password: cat {shlex.quote(output.password_file)}"


@command(up_page)
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
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1, or of --host; 0: any free port.")] = 4280,
    online: Annotated[
        bool, typer.Option("--online", help="Embed and search for programs with the current release, instead of pages.")
    ] = False,
    number: Annotated[
        int | None, typer.Option("--release", help="With --online: number of the only release that serves.")
    ] = None,
    host: Annotated[str, typer.Option(help="With --online: address to listen on.")] = server.HOST,
    token_file: Annotated[
        Path | None, typer.Option(help="With --online: file with the token that requests must carry.")
    ] = None,
) -> None:
    """Serve web pages on this machine: search, changes of releases, history. The workspace is only read."""
    if online:
        _become_encoder(store, port, number, host, token_file)
    if host != server.HOST:
        raise ConfigError(
            "serve listens on 127.0.0.1 alone, since its pages ask for no password; from another machine: ssh -L "
            "4280:127.0.0.1:4280 THIS-MACHINE, then open http://127.0.0.1:4280. --host is for the encoder: --online"
        )
    if (number, token_file) != (None, None):
        raise ConfigError("--release and --token-file are for the encoder: millrace serve --online")
    server.serve(store, port)


def _become_encoder(store: Store, port: int, release: int | None, host: str, token_file: Path | None) -> NoReturn:
    """Replace this process with the worker plane's, so that signals, output and exit code are the encoder's own."""
    arguments = ["--workspace", store.uri, "--port", str(port), "--host", host]
    arguments += [] if release is None else ["--release", str(release)]
    arguments += [] if token_file is None else ["--token-file", str(token_file)]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "tasks.worker.online", *arguments])
