"""Expectation files of the user; their content becomes part of the configuration that names them."""

from pathlib import Path
from typing import Any

from configs.yaml_files import read_yaml_file
from tasks.foundation.errors import ConfigError


def take_in(tree: dict[str, Any]) -> None:
    """Move the expectations in the files of `validate.suites` to the front of `validate.expectations`.

    So a resolved configuration can be read on a machine without the files.

    Raises:
        ConfigError: a file can't be read, or is not a list of expectations; names it.
    """
    section = tree["validate"]
    if not isinstance(section, dict) or not all(isinstance(section[key], list) for key in ("suites", "expectations")):
        return  # the schema reports the fault
    read = [entry for name in section["suites"] for entry in _read(name)]
    section["expectations"] = [*read, *section["expectations"]]
    section["suites"] = []


def _read(name: object) -> list[Any]:
    if not isinstance(name, str):
        raise ConfigError(f"configuration: validate.suites: expected the paths of files, got {name!r:.50}")
    entries = read_yaml_file(Path(name), "configuration: validate.suites: ")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigError(
            f"configuration: validate.suites: {name}: expected a list, as in `- expectation: expect_column_to_exist`"
        )
    return entries
