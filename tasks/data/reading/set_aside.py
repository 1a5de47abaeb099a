"""Rows that can't be used, written to a file of the user instead of ending the ingest."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from tasks.foundation.errors import ConfigError, DataError

_WHY = "why"  # the column with the reason


class SetAside:
    """Writes records as JSON lines with the reason; the file is made with the first one."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError: the file is there, or its folder is not."""
        if path is not None and path.exists():
            raise ConfigError(f"--set-aside {path}: there is such a file; name a new one, or move it away")
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"--set-aside {path}: there is no folder {path.absolute().parent}; make it first")
        self.path = path
        self._out: IO[str] | None = None
        self.rows = 0
        self.first = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._out is not None:
            self._out.close()

    def take(self, values: Mapping[str, Any], error: DataError) -> None:
        """Write the values of a record. Raises `error` itself where no file was named."""
        if self.path is None:
            raise error
        if self._out is None:
            self._out = self.path.open("x")
        self._out.write(json.dumps({**values, _WHY: str(error)}, default=str) + "\n")
        self.first = self.first or str(error)
        self.rows += 1
