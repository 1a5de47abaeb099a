"""`millrace serve`: the pages of a workspace for a browser on this machine, served by uvicorn.

It listens on loopback only, and ends at a signal. app.py makes the answers.
"""

import contextlib
import socket
import sys

import uvicorn

from flows.cli.serving.app import App
from flows.cli.serving.connection import MOST_CONNECTIONS, Connection
from flows.cli.serving.pages import Pages
from flows.cli.terminal.ending import leave_soon
from infra.store.base import Store
from tasks.foundation.errors import ConfigError

HOST = "127.0.0.1"
END_SECONDS = 1  # for the answers that are on their way when it ends
LEAVE_SECONDS = 5.0  # a page that is being made ends with the process


class Server:
    """Listens from the start, and answers while `run` runs."""

    def __init__(self, store: Store, port: int) -> None:
        self._socket = _listening(port)
        self.port: int = self._socket.getsockname()[1]
        self._app = App(Pages(store), MOST_CONNECTIONS)
        config = uvicorn.Config(
            self._app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",  # the application prints its own failures
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=END_SECONDS,
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Answer until `stop`, or until a signal if this is the main thread; then end the search workers."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._app.close()

    def stop(self) -> None:
        """Let `run` end soon."""
        self._server.should_exit = True


def _listening(port: int) -> socket.socket:
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen()
        stack.pop_all()
    return listener


def make_server(store: Store, port: int) -> Server:
    """Return a server that listens; port 0 is any free one.

    Raises:
        ConfigError: the port is taken, or not allowed.
    """
    try:
        return Server(store, port)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"can't listen on {HOST}:{port}: {error}; choose another: --port 4281") from error


def serve(store: Store, port: int) -> None:
    """Answer until Ctrl-C or SIGTERM, either of which is the ordinary end. Raises as `make_server`."""
    server = make_server(store, port)
    print(f"http://{HOST}:{server.port} shows {store.uri}; Ctrl-C ends it", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    print("stopped", file=sys.stderr)
    leave_soon(lambda: 0, LEAVE_SECONDS)
