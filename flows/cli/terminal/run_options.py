"""What every command that plans or runs is given: the workspace and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.store.base import Store

if TYPE_CHECKING:
    from configs.schema.config import Config


@dataclass(frozen=True)
class RunOptions:
    """The workspace, the config file over base.yaml, and the single settings over both."""

    store: Store
    config_file: Path | None = None
    overrides: Sequence[str] = ()

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
