"""How many signals to stop this container has received."""

import signal


class StopSignals:
    """Counts SIGTERM and Ctrl-C."""

    def __init__(self) -> None:
        self.count = 0

    def listen(self) -> None:
        """Count from now on, in place of ending the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count)

    def _count(self, signum: int, frame: object) -> None:
        self.count += 1
