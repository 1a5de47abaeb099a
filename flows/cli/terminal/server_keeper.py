"""What a command does about its Prefect server while its flow run waits for it."""

from flows.cli.terminal.errors import explain
from flows.cli.terminal.leaving import leave_soon
from infra import prefect_server
from infra.prefect_server import Server


class ServerKeeper:
    """Starts the server again if this project runs it, and ends the command if it stays away."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.error: Exception | None = None  # what the command ends with since the server stays away

    def restart(self, seconds: float) -> None:
        """Start it again, on its port. Raises HostError: it did not answer within `seconds`."""
        if self._server.pid is not None:
            prefect_server.restart(self._server, seconds)

    def give_up(self, error: Exception) -> None:
        """End the process soon with this error, whatever Prefect still tries."""
        self.error = error
        leave_soon(lambda: explain(error))
