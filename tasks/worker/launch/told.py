"""Whether this container was told to go away, and how often: SIGTERM from whoever runs it."""

from __future__ import annotations

import signal


class Told:
    """Counts the signals that ask for the end."""

    def __init__(self) -> None:
        self.times = 0

    def listen(self) -> None:
        """Take SIGTERM and Ctrl-C from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count)

    def _count(self, signum: int, frame: object) -> None:
        self.times += 1
