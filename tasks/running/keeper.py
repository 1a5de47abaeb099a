"""What keeps the Prefect server of a flow run, as the flow run sees it."""

from typing import Protocol


class Keeper(Protocol):
    """The command that a flow run belongs to."""

    def restart(self, seconds: float) -> None:
        """Start the server again if it is this machine's. Raises HostError: it did not answer within `seconds`."""
        ...

    def give_up(self, error: Exception) -> None:
        """End the process soon, with this error: Prefect's client does not know that the server stays away."""
        ...
