"""What a command does about its Prefect server while its flow run waits for it."""

from flows.cli.terminal.errors import explain
from flows.cli.terminal.leaving import leave_soon
from infra import prefect_server
from infra.prefect_server import Server
from tasks.foundation.errors import ServerError


class ServerKeeper:
    """Starts the server again if this project runs it, and ends the command if it stays away."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def restart(self, seconds: float) -> None:
        """Start it again, on its port. Raises HostError: it did not answer within `seconds`."""
        if self._server.pid is not None:
            prefect_server.restart(self._server, seconds)

    def give_up(self, error: ServerError) -> None:
        """End the process soon, whatever Prefect still tries."""
        leave_soon(lambda: explain(error))
