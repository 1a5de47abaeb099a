"""Files that commands write on request."""

import os
from pathlib import Path

import typer

from tasks.foundation.errors import StoreError


def write(path: Path, data: bytes) -> None:
    """Write a file that was requested, and say so. A reader such as node_exporter gets the old file or the new one.

    Raises:
        StoreError: it can't be written; names the path.
    """
    target = path.expanduser().absolute()
    staged = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            staged.write_bytes(data)
            os.replace(staged, target)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{target} can't be written: {error.strerror or error}") from error
    typer.echo(f"wrote {path}", err=True)
