"""Files with expectations of one's own, which become part of the configuration that names them."""

from pathlib import Path
from typing import Any

import yaml

from tasks.foundation.errors import ConfigError


def take_in(tree: dict[str, Any]) -> None:
    """Put the expectations of `validate.suites` before those of `validate.expectations`, and the files' names away.

    A resolved configuration so says what is judged wherever it is read, also where the files are not.

    Raises:
        ConfigError: a file can't be read, or is not a list of expectations; names it.
    """
    section = tree["validate"]
    read = [entry for name in section["suites"] for entry in _read(Path(name))]
    section["expectations"] = [*read, *section["expectations"]]
    section["suites"] = []


def _read(path: Path) -> list[Any]:
    try:
        entries = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"validate.suites: {path}: no such file") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"validate.suites: {path}: not readable as YAML: {error}") from error
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(f"validate.suites: {path}: expected a list, as in `- expectation: expect_column_to_exist`")
    return entries
