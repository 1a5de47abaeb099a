"""Workspace and settings of a command, and files that it writes on request."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from infra.store.base import Store
from infra.store.factory import open_store
from tasks.foundation.errors import ConfigError, StoreError

if TYPE_CHECKING:
    from configs.schema.config import Config


HERE = "./workspace"
OWN_CONFIG = Path("millrace.yaml")  # in the working directory


@dataclass(frozen=True)
class RunOptions:
    """The workspace, the config file over base.yaml, and the single settings over both."""

    store: Store
    config_file: Path | None = None
    overrides: Sequence[str] = ()
    named: bool = (
        False  # True: --config or MILLRACE_CONFIG names the file; False: millrace.yaml of this folder, or no file
    )

    def config(self) -> Config:
        """Return the resolved configuration. Raises ConfigError as `load_config` does."""
        from configs.load import load_config  # only when a command runs, so that `--help` is fast

        return load_config(self.config_file, self.overrides)

    def flow_settings(self) -> tuple[str | None, tuple[str, ...]]:
        """Return the values of a flow's parameters `config_file` and `overrides`."""
        return str(self.config_file) if self.config_file else None, tuple(self.overrides)

    def arguments(self) -> list[str]:
        """Return the same as words of a command line."""
        config = ["--config", str(self.config_file)] if self.config_file else []
        settings = [word for override in self.overrides for word in ("--set", override)]
        return ["--workspace", self.store.uri, *config, *settings]


def workspace_words(store: Store) -> list[str]:
    """Return the words that name the workspace in a command; none if it is the default."""
    uri = store.uri
    return [] if uri == open_store(os.environ.get("MILLRACE_WORKSPACE", HERE)).uri else ["--workspace", uri]


def found_config() -> Path | None:
    """Return the configuration file of this folder, which counts if no option names another; None without one."""
    return OWN_CONFIG if OWN_CONFIG.is_file() else None


def existing(workspace: str) -> Store:
    """Return the store of a workspace that has spans; a mistyped name must not look like an empty workspace."""
    store = open_store(workspace)
    if not store.list("spans"):
        raise ConfigError(
            f"{store.uri} holds no span, so it is no workspace yet; check --workspace, or begin: millrace look FILE"
            f"{_above()}"
        )
    return store


def _above() -> str:
    """Return the folder above this one that has a workspace, as the end of a message; else an empty text."""
    found = next((each for each in Path.cwd().parents if (each / "workspace" / "spans").is_dir()), None)
    return f". {found} has a workspace: cd {shlex.quote(str(found))}" if found is not None else ""


def write(path: Path, data: bytes) -> None:
    """Write a file that was requested, and say so. Raises StoreError as `write_all`."""
    write_all({path: data})
    typer.echo(f"wrote {path}", err=True)


def write_all(files: Mapping[Path, bytes]) -> None:
    """Write files, none before all can be. A reader such as node_exporter gets the old file or the new one.

    Raises:
        StoreError: one can't be written; names the path.
    """
    staged: dict[Path, Path] = {}
    target = Path()
    try:
        try:
            for path, data in files.items():
                target = path.expanduser().absolute()
                staged[target] = target.with_name(f".{target.name}.{os.getpid()}.tmp")
                staged[target].write_bytes(data)
            for target, whole in staged.items():
                os.replace(whole, target)
        finally:
            for whole in staged.values():
                whole.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{target} can't be written: {error.strerror or error}") from error
