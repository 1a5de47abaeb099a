"""An object of a bucket as a stream, for reading from its begin to its end in bounded memory."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from botocore.exceptions import FlexibleChecksumError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError

CUT_OFF = (FlexibleChecksumError, IncompleteReadError, ReadTimeoutError, ResponseStreamingError)
ATTEMPTS = 5  # in a row without a byte; botocore does not retry a body


class ObjectStream(io.RawIOBase):
    """The bytes of one version of an object. After a broken connection a new one goes on at the same byte."""

    def __init__(
        self, size: int, get: Callable[[int], Any], explained: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """Send no request yet.

        Args:
            size: of the object, in bytes.
            get: requests the object from a position on, and returns the body.
            explained: converts the errors of requests.
        """
        self._size = size
        self._get = get
        self._explained = explained
        self._body: Any = None
        self._position = 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer, perhaps in part; return the number of bytes, 0 at the end.

        Raises:
            StoreError, ConfigError: the object can't be read, or is another one by now.
        """
        failures = 0
        while self._position < self._size:
            with self._explained():
                try:
                    self._body = self._body or self._get(self._position)
                    content = self._body.read(min(len(buffer), self._size - self._position))
                except CUT_OFF:
                    content, failures = b"", failures + 1
                    if failures == ATTEMPTS:
                        raise
            if content:
                buffer[: len(content)] = content
                self._position += len(content)
                return len(content)
            self._close_body()
        return 0

    def close(self) -> None:
        self._close_body()
        super().close()

    def _close_body(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None
