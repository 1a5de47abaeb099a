"""Files that commands write on request."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from tasks.foundation.errors import StoreError


def write(path: Path, data: bytes) -> None:
    """Write a file that was requested, and say so."""
    write_file(path, data)
    typer.echo(f"wrote {path}", err=True)


def write_file(path: Path, data: bytes) -> None:
    """Put a file in place at once: a reader such as node_exporter gets the old one or the new one.

    Raises:
        StoreError: it can't be written; names the path.
    """
    path = path.expanduser().absolute()
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            staged.write_bytes(data)
            os.replace(staged, path)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} can't be written: {error.strerror or error}") from error
