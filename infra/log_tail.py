"""The part of a log that says why its process died: its last lines, and the first ones that name a cause.

Thirty dying workers print more lines than a tail holds, and the cause is among the first.
"""

from collections import deque

from tasks.foundation.neuron_errors import classify_log

LINES = 20
SIGNS = 5
CHARACTERS = 500  # of one line


class LogTail:
    """Keeps the last `LINES` lines, and the first `SIGNS` that name a code of the Neuron SDK."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=LINES)
        self._signs: list[tuple[int, str]] = []
        self._count = 0

    def append(self, line: str) -> None:
        self._last.append(line[:CHARACTERS])
        if len(self._signs) < SIGNS and classify_log(line) is not None:
            self._signs.append((self._count, line[:CHARACTERS]))
        self._count += 1

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines kept, in the order in which they came, each once."""
        first_of_last = self._count - len(self._last)
        return (*(line for number, line in self._signs if number < first_of_last), *self._last)
